//! Version 1: NCCL 2.23. Functions, types, algorithms and protocols are numbers.

use std::ffi::{c_char, c_int, c_void};

use super::{Descriptor, InitV1, Name, ProxyOp, ProxyStep, StateArguments, Table, start};
use crate::callbacks;
use crate::event::{self, Event, Start, Transition};

#[repr(C)]
pub(crate) struct Descr {
    kind: u8,
    parent: *mut c_void,
    rank: c_int,
    pub(super) body: Body,
}

#[repr(C)]
pub(super) union Body {
    coll: Coll,
    p2p: P2p,
    proxy_op: ProxyOp,
    proxy_step: ProxyStep,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Coll {
    name: *const c_char,
    comm_hash: u64,
    seq_number: u64,
    func: u8,
    send_buff: *const c_void,
    recv_buff: *const c_void,
    pub(super) count: usize,
    root: c_int,
    datatype: u8,
    op: u32,
    pub(super) traffic_bytes: usize,
    max_channels: u8,
    warps: u8,
    algo: u8,
    proto: u8,
    is_collnet: c_int,
    is_nvls: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct P2p {
    name: *const c_char,
    comm_hash: u64,
    func: u8,
    buff: *const c_void,
    datatype: u8,
    pub(super) count: usize,
    peer: c_int,
}

/// State arguments of v1 to v3: sizes are running sums of the op.
#[repr(C)]
pub(crate) union StateArgs {
    proxy_op: ProxyOpArgs,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ProxyOpArgs {
    trans_size: usize,
    steps: c_int,
}

#[unsafe(export_name = "ncclProfiler_v1")]
pub(crate) static PROFILER: Table<InitV1, Descr, StateArgs> = Table {
    name: Name::new(c"ncclflow truth"),
    init: callbacks::init_v1::<1>,
    start_event: callbacks::start_event,
    stop_event: callbacks::stop_event,
    record_event_state: callbacks::record_event_state,
    finalize: callbacks::finalize,
};

impl Descriptor for Descr {
    unsafe fn read(&self) -> Option<Start> {
        // SAFETY: `kind` names the member that NCCL filled; that is the caller's promise.
        let event = unsafe {
            match u64::from(self.kind) {
                super::GROUP => Event::Group,
                super::COLL => read_coll(&self.body.coll),
                super::P2P => read_p2p(&self.body.p2p),
                super::PROXY_OP => self.body.proxy_op.read(),
                super::PROXY_STEP => self.body.proxy_step.read(),
                _ => return None,
            }
        };
        Some(start(event, self.parent, self.rank))
    }
}

fn read_coll(coll: &Coll) -> Event {
    Event::Coll(event::Coll {
        comm_hash: Some(coll.comm_hash),
        seq_number: coll.seq_number,
        func: func_name(coll.func),
        count: coll.count,
        datatype: datatype_name(coll.datatype),
        red_op: Some(coll.op),
        root: coll.root,
        algo: named(&ALGORITHMS, coll.algo),
        proto: named(&PROTOCOLS, coll.proto),
        channels: None,
        max_channels: Some(coll.max_channels),
        warps: coll.warps,
        traffic_bytes: Some(coll.traffic_bytes),
    })
}

fn read_p2p(p2p: &P2p) -> Event {
    Event::P2p(event::P2p {
        comm_hash: Some(p2p.comm_hash),
        func: func_name(p2p.func),
        count: p2p.count,
        datatype: datatype_name(p2p.datatype),
        peer: p2p.peer,
        channels: None,
    })
}

/// The op states of v1 to v3 are 0 to 7; steps and control events come without sizes.
const LAST_OP_STATE: i32 = 7;

impl StateArguments for StateArgs {
    unsafe fn read(&self, state: i32) -> Transition {
        if !(0..=LAST_OP_STATE).contains(&state) {
            return Transition { state, trans_size: None, steps: None };
        }
        // SAFETY: for the op states NCCL fills `proxyOp`.
        let args = unsafe { self.proxy_op };
        Transition { state, trans_size: Some(args.trans_size as u64), steps: Some(args.steps) }
    }
}

// The numbers of NCCL 2.23, the only version whose native descriptor has numbers here; the names are those that later
// versions pass themselves.
const FUNCTIONS: [&str; 8] =
    ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"];
const ALGORITHMS: [&str; 7] = ["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"];
const PROTOCOLS: [&str; 3] = ["LL", "LL128", "SIMPLE"];
const DATATYPES: [&str; 10] = [
    "ncclInt8",
    "ncclUint8",
    "ncclInt32",
    "ncclUint32",
    "ncclInt64",
    "ncclUint64",
    "ncclFloat16",
    "ncclFloat32",
    "ncclFloat64",
    "ncclBfloat16",
];

fn func_name(func: u8) -> String {
    named(&FUNCTIONS, func)
}

fn datatype_name(datatype: u8) -> String {
    named(&DATATYPES, datatype)
}

fn named(names: &[&str], number: u8) -> String {
    names.get(usize::from(number)).map_or_else(|| number.to_string(), ToString::to_string)
}
