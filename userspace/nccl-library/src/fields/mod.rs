//! Every field of NCCL's structs that ncclflow uses, and every fact that holds from a version on, stated
//! once.
//!
//! Probes, decoding and dumps name a field by the constants here ([`comm::RANK`], [`proxy_op::CHANNEL_ID`])
//! and ask for it in the layouts of the library at hand. Where NCCL moved or renamed a field, its constant
//! gets a second name and nothing else changes. The versions that a name is stated to hold for are compared
//! with NCCL's libraries in `tests/field_versions.rs`; at run time only the library's own layout counts.

mod api_info;
mod bootstrap;
mod channels;
mod communicator;
mod connectors;
mod device_work;
pub mod enums;
mod field_ref;
mod int;
mod network;
mod plan;
mod proxy_ops;
mod proxy_progress;
pub mod ras;
mod versions;

pub use api_info::info;
pub use bootstrap::bootstrap_state;
pub use channels::{channel, channel_peer};
pub use communicator::{comm, peer_info, shared_resources};
pub use connectors::{connector, transport, transport_comm};
pub use device_work::{
    dev_kernel_args, dev_work_batch, dev_work_coll, dev_work_p2p, work, work_elem, work_elem_p2p,
    work_elem_reg,
};
pub use field_ref::{ArrayField, FieldName, FieldRef, MissingField, StructRef};
pub use int::{BitField, IntField, signed, unsigned};
pub use network::{conn_fifo, recv_mem, recv_net_resources, send_mem, send_net_resources};
pub use plan::{kernel_plan, task_coll, task_p2p, work_list};
pub use proxy_ops::proxy_op;
pub use proxy_progress::{proxy_args, proxy_connection, proxy_state, proxy_sub_args};
pub use ras::ras_peer;
pub use versions::{
    counts_always, op_counts_extent, ops_lead_to_tasks, ops_say_their_share, parts_are_reversed,
    peers_are_pointers, root_answers_each_rank,
};

/// `ncclConfig_t`.
pub const CONFIG: StructRef = StructRef::whole("ncclConfig_t", "the name and the settings of a communicator");
/// `ncclProxyConnector`.
pub const PROXY_CONNECTOR: StructRef =
    StructRef::whole("ncclProxyConnector", "whether a connection has a proxy");
/// `ncclProxyProgressState`.
pub const PROXY_PROGRESS_STATE: StructRef = StructRef::whole("ncclProxyProgressState", "the ops in flight");

/// Structs that are asked of every library.
pub const STRUCTS: &[StructRef] = &[
    StructRef::whole("RingAlgorithm", "exact sizes of ring steps that were registered"),
    channel::STRUCT,
    channel_peer::STRUCT,
    comm::STRUCT,
    CONFIG,
    conn_fifo::STRUCT,
    StructRef::whole("ncclConnInfo", "the state of a connection"),
    connector::STRUCT,
    StructRef::whole("ncclDevRedOpFull", "reduction operations as the device sees them"),
    dev_kernel_args::STRUCT,
    dev_work_batch::STRUCT,
    dev_work_coll::STRUCT,
    dev_work_p2p::STRUCT,
    StructRef::whole("ncclDirect", "the neighbours in the CollNet direct graph"),
    info::STRUCT,
    kernel_plan::STRUCT,
    StructRef::whole("ncclNvls", "the neighbours in the NVLink SHARP graph"),
    peer_info::STRUCT,
    proxy_args::STRUCT,
    proxy_connection::STRUCT,
    PROXY_CONNECTOR,
    StructRef::whole("ncclProxyEventHandle", "the profiler's handle of an op"),
    proxy_op::STRUCT,
    StructRef::whole("ncclProxyOpSpecifics", "the steps of grouped broadcasts"),
    StructRef::whole("ncclProxyOps", "ops queued but not yet taken by the proxy thread"),
    StructRef::whole("ncclProxyOpsPool", "ops queued but not yet taken by the proxy thread"),
    PROXY_PROGRESS_STATE,
    proxy_state::STRUCT,
    proxy_sub_args::STRUCT,
    recv_mem::STRUCT,
    StructRef::whole("ncclRing", "the neighbours in the ring"),
    shared_resources::STRUCT,
    task_coll::STRUCT,
    task_p2p::STRUCT,
    transport::STRUCT,
    transport_comm::STRUCT,
    StructRef::whole("ncclTree", "the neighbours in the trees"),
    send_net_resources::STRUCT,
    work_elem::STRUCT,
    work_list::STRUCT,
];

/// Structs that only `ncclflow dump` reads.
pub const STRUCTS_OF_DUMP: &[StructRef] =
    &[send_mem::STRUCT, recv_net_resources::STRUCT, bootstrap_state::STRUCT, ras_peer::STRUCT];

/// Variables that only `ncclflow dump` reads.
pub fn variables_of_dump() -> Vec<&'static str> {
    [ras::COMMUNICATORS.as_slice(), &ras::PEERS].concat()
}

/// Structs that come with those that contain them.
const STRUCTS_INSIDE: &[StructRef] = &[work::STRUCT, work_elem_reg::STRUCT, work_elem_p2p::STRUCT];

/// Returns all fields that ncclflow uses.
pub fn all() -> impl Iterator<Item = &'static FieldRef> {
    [STRUCTS, STRUCTS_OF_DUMP, STRUCTS_INSIDE].into_iter().flatten().flat_map(|strukt| strukt.fields)
}

/// Returns structs that serve the same purpose in other versions: work elements up to 2.21, device work from
/// 2.22 on.
pub(crate) fn alternatives(name: &str) -> &'static [&'static str] {
    const LATER: &[&str] = &[
        dev_work_coll::STRUCT.name,
        dev_work_p2p::STRUCT.name,
        dev_work_batch::STRUCT.name,
        dev_kernel_args::STRUCT.name,
        enums::DEV_WORK_TYPE,
    ];
    if name == work_elem::STRUCT.name {
        &[dev_work_coll::STRUCT.name]
    } else if LATER.contains(&name) {
        &[work_elem::STRUCT.name]
    } else {
        &[]
    }
}
