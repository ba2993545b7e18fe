//! Version 1: NCCL 2.23. Functions, types, algorithms and protocols are numbers.

use std::ffi::{c_char, c_int, c_void};

use super::{Call, InitV1, StateArguments, Table};
use crate::callbacks;
use crate::event::{self, Event, Transition};

pub(super) type Descr = super::Descr<u8, Coll, P2p>;

#[unsafe(export_name = "ncclProfiler_v1")]
static PROFILER: Table<InitV1, Descr, StateArgs> = Table::new(callbacks::init_v1::<1>);

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
pub(super) union StateArgs {
    proxy_op: ProxyOpArgs,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ProxyOpArgs {
    trans_size: usize,
    steps: c_int,
}

impl Call for Coll {
    unsafe fn read(&self) -> Event {
        Event::Coll(event::Coll {
            comm_hash: Some(self.comm_hash),
            seq_number: self.seq_number,
            send_buff: Some(self.send_buff.addr()),
            func: func_name(self.func),
            count: self.count,
            datatype: datatype_name(self.datatype),
            red_op: Some(self.op),
            root: self.root,
            algo: named(&ALGORITHMS, self.algo),
            proto: named(&PROTOCOLS, self.proto),
            channels: None,
            max_channels: Some(self.max_channels),
            warps: self.warps,
            traffic_bytes: Some(self.traffic_bytes),
        })
    }
}

impl Call for P2p {
    unsafe fn read(&self) -> Event {
        Event::P2p(event::P2p {
            comm_hash: Some(self.comm_hash),
            func: func_name(self.func),
            count: self.count,
            datatype: datatype_name(self.datatype),
            peer: self.peer,
            channels: None,
        })
    }
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

// The numbers of NCCL 2.23, the only version whose native descriptor has numbers here; the names are those
// that later versions pass themselves.
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
