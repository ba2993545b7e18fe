//! Every field of NCCL's structs that ncclflow uses, and every fact that holds from a version on, stated
//! once.
//!
//! Probes, decoding and dumps name a field by the constants here ([`comm::RANK`], [`proxy_op::CHANNEL_ID`])
//! and ask for it in the layouts of the library at hand. Where NCCL moved or renamed a field, its constant
//! gets a second name and nothing else changes. The versions that a name is stated to hold for are compared
//! with NCCL's libraries in `tests/field_versions.rs`; at run time only the library's own layout counts.

pub mod enums;
mod field_ref;
mod int;
mod launches;
pub mod nets;
mod one_sided;
pub mod ras;
mod resources;
mod structs;
mod versions;

pub use field_ref::{ArrayField, AskedBy, FieldName, FieldRef, MissingField, StructRef};
pub use int::{BitField, IntField, signed, unsigned};
pub use launches::{
    ce_coll_args, dev_work_bcast, flag_of_launch, kernel_plan, rma_args, sym_dev_args, symk_channel_range,
    symk_dev_work, symk_dev_work_args, task_rma,
};
pub use nets::{ib_merged_dev, net_socket_dev, topo_node, topo_node_set, topo_system};
pub use one_sided::{
    GIN_BY_PROXY, gin_context, gin_descriptor_state, gin_dev_comm, gin_queues, rma_context, rma_descriptor,
};
pub use resources::shared_resources;
pub use structs::*;
pub use versions::{
    captures_have_an_origin, counts_always, op_counts_extent, ops_lead_to_tasks, ops_say_their_share,
    parts_are_reversed, peers_are_pointers, root_answers_each_rank,
};

/// Returns the names of the structs that are asked for by any of these.
pub fn structs_of(asked_by: &[AskedBy]) -> Vec<String> {
    let asked = structs().filter(|strukt| asked_by.contains(&strukt.asked_by));
    asked.map(|strukt| strukt.name.to_owned()).collect()
}

/// Returns all structs that ncclflow uses.
pub fn structs() -> impl Iterator<Item = &'static StructRef> {
    structs::STRUCTS
        .iter()
        .chain(launches::STRUCTS)
        .chain(nets::STRUCTS)
        .chain(resources::STRUCTS)
        .chain(one_sided::STRUCTS)
}

/// Variables that only `ncclflow dump` reads.
pub fn variables_of_dump() -> Vec<&'static str> {
    [ras::COMMUNICATORS.as_slice(), &ras::PEERS, &nets::SOCKET_DEVICES, &nets::IB_DEVICES].concat()
}

/// Returns all fields that ncclflow uses.
pub fn all() -> impl Iterator<Item = &'static FieldRef> {
    structs().flat_map(|strukt| strukt.fields)
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
    } else if name == sym_dev_args::STRUCT.name {
        &[symk_dev_work_args::STRUCT.name]
    } else if LATER.contains(&name) {
        &[work_elem::STRUCT.name]
    } else {
        &[]
    }
}
