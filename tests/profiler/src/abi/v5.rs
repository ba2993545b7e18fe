//! Versions 5 and 6: NCCL 2.28, and 2.29 and later. As v4, and a call names its launch. Version 6 adds
//! copy-engine events, which the activation mask does not ask for. All that is read lies where version 5 has
//! it.

use std::ffi::c_void;

use super::{Call, InitV5, Table, v4, v4::StateArgs};
use crate::callbacks;
use crate::event::Event;

pub(super) type Descr = super::Descr<u64, Coll, P2p>;
pub(super) type Coll = InGroup<v4::Coll>;
pub(super) type P2p = InGroup<v4::P2p>;

#[unsafe(export_name = "ncclProfiler_v5")]
static PROFILER_V5: Table<InitV5, Descr, StateArgs> = Table::new(callbacks::init_v5::<5>);

#[unsafe(export_name = "ncclProfiler_v6")]
static PROFILER_V6: Table<InitV5, Descr, StateArgs> = Table::new(callbacks::init_v5::<6>);

/// The members of v4, which end at a multiple of eight bytes, and `parentGroup`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct InGroup<C: Call> {
    call: C,
    pub(super) parent_group: *mut c_void,
}

impl<C: Call> Call for InGroup<C> {
    unsafe fn read(&self) -> Event {
        // SAFETY: the caller's promise about the strings.
        unsafe { self.call.read() }
    }

    /// The descriptor's parent is the call's API event, which the activation mask does not ask for.
    fn launch(&self) -> Option<*mut c_void> {
        Some(self.parent_group)
    }
}
