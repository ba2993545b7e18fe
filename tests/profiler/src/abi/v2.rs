//! Version 2: NCCL 2.24 and 2.25. As v1, with names in place of numbers.

use std::ffi::{c_char, c_int, c_void};

use super::{Descriptor, InitV1, Name, ProxyOp, ProxyStep, Table, start, text, v1::StateArgs};
use crate::callbacks;
use crate::event::{self, Event, Start};

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
    func: *const c_char,
    send_buff: *const c_void,
    recv_buff: *const c_void,
    count: usize,
    root: c_int,
    datatype: *const c_char,
    traffic_bytes: usize,
    max_channels: u8,
    warps: u8,
    algo: *const c_char,
    pub(super) proto: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct P2p {
    name: *const c_char,
    comm_hash: u64,
    func: *const c_char,
    buff: *const c_void,
    datatype: *const c_char,
    count: usize,
    peer: c_int,
}

#[unsafe(export_name = "ncclProfiler_v2")]
pub(crate) static PROFILER: Table<InitV1, Descr, StateArgs> = Table {
    name: Name::new(c"ncclflow truth"),
    init: callbacks::init_v1::<2>,
    start_event: callbacks::start_event,
    stop_event: callbacks::stop_event,
    record_event_state: callbacks::record_event_state,
    finalize: callbacks::finalize,
};

impl Descriptor for Descr {
    unsafe fn read(&self) -> Option<Start> {
        // SAFETY: `kind` names the member that NCCL filled, with strings of its own; that is the caller's promise.
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

/// # Safety
/// The strings must be null or terminated.
unsafe fn read_coll(coll: &Coll) -> Event {
    // SAFETY: the caller's promise about the strings.
    let [func, datatype, algo, proto] =
        unsafe { [text(coll.func), text(coll.datatype), text(coll.algo), text(coll.proto)] };
    Event::Coll(event::Coll {
        comm_hash: Some(coll.comm_hash),
        seq_number: coll.seq_number,
        func,
        count: coll.count,
        datatype,
        red_op: None,
        root: coll.root,
        algo,
        proto,
        channels: None,
        max_channels: Some(coll.max_channels),
        warps: coll.warps,
        traffic_bytes: Some(coll.traffic_bytes),
    })
}

/// # Safety
/// The strings must be null or terminated.
pub(super) unsafe fn read_p2p(p2p: &P2p) -> Event {
    // SAFETY: the caller's promise about the strings.
    let [func, datatype] = unsafe { [text(p2p.func), text(p2p.datatype)] };
    Event::P2p(event::P2p {
        comm_hash: Some(p2p.comm_hash),
        func,
        count: p2p.count,
        datatype,
        peer: p2p.peer,
        channels: None,
    })
}
