//! Version 3: NCCL 2.26. As v2, without the traffic estimate.

use std::ffi::c_char;

use super::{Call, InitV1, Table, collective::Operation, collective::Tuning, v1::StateArgs, v2::P2p};
use crate::callbacks;
use crate::event::{self, Event};

pub(super) type Descr = super::Descr<u8, Coll, P2p>;

#[unsafe(export_name = "ncclProfiler_v3")]
static PROFILER: Table<InitV1, Descr, StateArgs> = Table::new(callbacks::init_v1::<3>);

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Coll {
    name: *const c_char,
    comm_hash: u64,
    operation: Operation,
    pub(super) tuning: Tuning,
}

impl Call for Coll {
    unsafe fn read(&self) -> Event {
        Event::Coll(event::Coll {
            comm_hash: Some(self.comm_hash),
            max_channels: Some(self.tuning.channels),
            // SAFETY: the caller's promise about the strings.
            ..unsafe { self.operation.read(&self.tuning) }
        })
    }
}
