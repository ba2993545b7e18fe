//! Version 2: NCCL 2.24 and 2.25. As v1, with names in place of numbers.

use std::ffi::{c_char, c_int, c_void};

use super::{Call, InitV1, Table, collective::Operation, collective::Tuning, text, v1::StateArgs};
use crate::callbacks;
use crate::event::{self, Event};

pub(super) type Descr = super::Descr<u8, Coll, P2p>;

#[unsafe(export_name = "ncclProfiler_v2")]
static PROFILER: Table<InitV1, Descr, StateArgs> = Table::new(callbacks::init_v1::<2>);

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Coll {
    name: *const c_char,
    comm_hash: u64,
    pub(super) operation: Operation,
    traffic_bytes: usize,
    pub(super) tuning: Tuning,
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
    pub(super) peer: c_int,
}

impl Call for Coll {
    unsafe fn read(&self) -> Event {
        Event::Coll(event::Coll {
            comm_hash: Some(self.comm_hash),
            max_channels: Some(self.tuning.channels),
            traffic_bytes: Some(self.traffic_bytes),
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
            comm_hash: Some(self.comm_hash),
            func,
            count: self.count,
            datatype,
            peer: self.peer,
            channels: None,
        })
    }
}
