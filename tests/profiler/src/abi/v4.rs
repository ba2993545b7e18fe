//! Version 4: NCCL 2.27. The communicator is named at init, steps carry the size of their message.

use std::ffi::{c_char, c_int, c_void};

use super::{Descriptor, InitV4, Name, ProxyOp, ProxyStep, StateArguments, Table, start, text};
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
    seq_number: u64,
    func: *const c_char,
    send_buff: *const c_void,
    recv_buff: *const c_void,
    count: usize,
    root: c_int,
    datatype: *const c_char,
    channels: u8,
    warps: u8,
    algo: *const c_char,
    pub(super) proto: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct P2p {
    func: *const c_char,
    buff: *const c_void,
    datatype: *const c_char,
    count: usize,
    peer: c_int,
    pub(super) channels: u8,
}

/// State arguments from v4 on: the size belongs to the step's message.
#[repr(C)]
pub(crate) union StateArgs {
    proxy_step: ProxyStepArgs,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ProxyStepArgs {
    trans_size: usize,
}

#[unsafe(export_name = "ncclProfiler_v4")]
pub(crate) static PROFILER: Table<InitV4, Descr, StateArgs> = Table {
    name: Name::new(c"ncclflow truth"),
    init: callbacks::init_v4,
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
        seq_number: coll.seq_number,
        func,
        count: coll.count,
        datatype,
        root: coll.root,
        algo,
        proto,
        channels: Some(coll.channels),
        warps: coll.warps,
        ..event::Coll::default()
    })
}

/// # Safety
/// The strings must be null or terminated.
unsafe fn read_p2p(p2p: &P2p) -> Event {
    // SAFETY: the caller's promise about the strings.
    let [func, datatype] = unsafe { [text(p2p.func), text(p2p.datatype)] };
    Event::P2p(event::P2p {
        comm_hash: None,
        func,
        count: p2p.count,
        datatype,
        peer: p2p.peer,
        channels: Some(p2p.channels),
    })
}

/// SendGPUWait, SendWait, RecvWait, RecvFlushWait, RecvGPUWait, and SendPeerWait.
const STEP_STATES: [i32; 6] = [8, 9, 10, 11, 12, 20];

impl StateArguments for StateArgs {
    unsafe fn read(&self, state: i32) -> Transition {
        if !STEP_STATES.contains(&state) {
            return Transition { state, trans_size: None, steps: None };
        }
        // SAFETY: for the step states NCCL fills `proxyStep`.
        let args = unsafe { self.proxy_step };
        Transition { state, trans_size: Some(args.trans_size as u64), steps: None }
    }
}
