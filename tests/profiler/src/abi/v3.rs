//! Version 3: NCCL 2.26. As v2, without the traffic estimate.

use std::ffi::{c_char, c_int, c_void};

use super::{
    Descriptor, InitV1, Name, ProxyOp, ProxyStep, Table, start, text, v1::StateArgs, v2::P2p, v2::read_p2p,
};
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
    max_channels: u8,
    warps: u8,
    algo: *const c_char,
    pub(super) proto: *const c_char,
}

#[unsafe(export_name = "ncclProfiler_v3")]
pub(crate) static PROFILER: Table<InitV1, Descr, StateArgs> = Table {
    name: Name::new(c"ncclflow truth"),
    init: callbacks::init_v1::<3>,
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
        traffic_bytes: None,
    })
}
