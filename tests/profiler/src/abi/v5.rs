//! Versions 5 and 6: NCCL 2.28, and 2.29 and later. Version 6 adds copy-engine events, which nobody asks for here; all
//! that is read lies where version 5 has it.

use std::ffi::{c_char, c_int, c_void};

use super::{Descriptor, InitV5, Name, ProxyOp, ProxyStep, Table, start, text, v4::StateArgs};
use crate::callbacks;
use crate::event::{self, Event, Start};

#[repr(C)]
pub(crate) struct Descr {
    kind: u64,
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
    proto: *const c_char,
    pub(super) parent_group: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct P2p {
    func: *const c_char,
    buff: *const c_void,
    datatype: *const c_char,
    count: usize,
    peer: c_int,
    channels: u8,
    pub(super) parent_group: *mut c_void,
}

#[unsafe(export_name = "ncclProfiler_v5")]
pub(crate) static PROFILER_V5: Table<InitV5, Descr, StateArgs> = table(callbacks::init_v5::<5>);

#[unsafe(export_name = "ncclProfiler_v6")]
pub(crate) static PROFILER_V6: Table<InitV5, Descr, StateArgs> = table(callbacks::init_v5::<6>);

const fn table(init: InitV5) -> Table<InitV5, Descr, StateArgs> {
    Table {
        name: Name::new(c"ncclflow truth"),
        init,
        start_event: callbacks::start_event,
        stop_event: callbacks::stop_event,
        record_event_state: callbacks::record_event_state,
        finalize: callbacks::finalize,
    }
}

impl Descriptor for Descr {
    unsafe fn read(&self) -> Option<Start> {
        // SAFETY: `kind` names the member that NCCL filled, with strings of its own; that is the caller's promise.
        // The parent of a call is its API event here, which is not asked for; the launch stands beside it.
        let (event, parent) = unsafe {
            match self.kind {
                super::GROUP => (Event::Group, self.parent),
                super::COLL => (read_coll(&self.body.coll), self.body.coll.parent_group),
                super::P2P => (read_p2p(&self.body.p2p), self.body.p2p.parent_group),
                super::PROXY_OP => (self.body.proxy_op.read(), self.parent),
                super::PROXY_STEP => (self.body.proxy_step.read(), self.parent),
                _ => return None,
            }
        };
        Some(start(event, parent, self.rank))
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
