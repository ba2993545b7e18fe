//! Version 4: NCCL 2.27. The communicator is named at init, steps carry the size of their message.

use std::ffi::{c_char, c_int, c_void};

use super::{Call, InitV4, StateArguments, Table, collective::Operation, collective::Tuning, text};
use crate::callbacks;
use crate::event::{self, Event, Transition};

pub(super) type Descr = super::Descr<u8, Coll, P2p>;

#[unsafe(export_name = "ncclProfiler_v4")]
static PROFILER: Table<InitV4, Descr, StateArgs> = Table::new(callbacks::init_v4);

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Coll {
    pub(super) operation: Operation,
    pub(super) tuning: Tuning,
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
pub(super) union StateArgs {
    proxy_step: ProxyStepArgs,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ProxyStepArgs {
    trans_size: usize,
}

impl Call for Coll {
    unsafe fn read(&self) -> Event {
        Event::Coll(event::Coll {
            channels: Some(self.tuning.channels),
            // SAFETY: the caller's promise about the strings.
            ..unsafe { self.operation.read(&self.tuning) }
        })
    }
}

impl Call for P2p {
    unsafe fn read(&self) -> Event {
        // SAFETY: the caller's promise about the strings.
        let [func, datatype] = unsafe { [text(self.func), text(self.datatype)] };
        Event::P2p(event::P2p {
            comm_hash: None,
            func,
            count: self.count,
            datatype,
            peer: self.peer,
            channels: Some(self.channels),
        })
    }
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
