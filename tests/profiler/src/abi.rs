//! The plugin interface as NCCL's headers define it, declared here for the parts that are used.
//!
//! A descriptor is `{type, parentObj, rank, union}`; the union starts at byte 24 in every version, whether `type` is a
//! byte (v1–v4) or a 64-bit word (v5, v6). Only the members that the activation mask asks for are declared, so these
//! unions are smaller than NCCL's: they are read through pointers, never copied whole.

pub(crate) mod v1;
pub(crate) mod v2;
pub(crate) mod v3;
pub(crate) mod v4;
pub(crate) mod v5;

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::event;
use crate::handle::Handle;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INTERNAL_ERROR: c_int = 3;

/// Event types, and bits of the activation mask.
pub(crate) const GROUP: u64 = 1;
pub(crate) const COLL: u64 = 1 << 1;
pub(crate) const P2P: u64 = 1 << 2;
pub(crate) const PROXY_OP: u64 = 1 << 3;
pub(crate) const PROXY_STEP: u64 = 1 << 4;

pub(crate) const ACTIVATION_MASK: c_int = 0b1_1111;

/// `proxyOp` of all versions.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProxyOp {
    pid: i32,
    channel_id: u8,
    peer: c_int,
    n_steps: c_int,
    chunk_size: c_int,
    is_send: c_int,
}

impl ProxyOp {
    fn read(self) -> event::Event {
        event::Event::ProxyOp(event::ProxyOp {
            origin_pid: self.pid,
            channel: self.channel_id,
            peer: self.peer,
            steps: self.n_steps,
            chunk_size: self.chunk_size,
            is_send: self.is_send != 0,
        })
    }
}

/// `proxyStep` of all versions.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProxyStep {
    step: c_int,
}

impl ProxyStep {
    fn read(self) -> event::Event {
        event::Event::ProxyStep { step: self.step }
    }
}

/// A descriptor of some version.
pub(crate) trait Descriptor {
    /// `None` for event types that the activation mask did not ask for; NCCL offers some of them all the same.
    ///
    /// # Safety
    /// `self` must be a descriptor filled by NCCL: the union member that the type names is valid, its strings are
    /// null or terminated.
    unsafe fn read(&self) -> Option<event::Start>;
}

/// State arguments of some version: a union of which one member is read.
pub(crate) trait StateArguments {
    /// # Safety
    /// `self` must have been filled by NCCL for `state`.
    unsafe fn read(&self, state: i32) -> event::Transition;
}

/// The function table behind each `ncclProfiler_v*` symbol: only `init` and the descriptor types differ.
#[repr(C)]
pub(crate) struct Table<Init, Descr, Args> {
    pub(crate) name: Name,
    pub(crate) init: Init,
    pub(crate) start_event: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const Descr) -> c_int,
    pub(crate) stop_event: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(crate) record_event_state: unsafe extern "C" fn(*mut c_void, c_int, *const Args) -> c_int,
    pub(crate) finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// A constant C string.
#[repr(transparent)]
pub(crate) struct Name(*const c_char);

// SAFETY: it points to a string constant, which nobody writes.
unsafe impl Sync for Name {}

impl Name {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self(name.as_ptr())
    }
}

pub(crate) type InitV1 = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int;

pub(crate) type InitV4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    *const c_void,
) -> c_int;

pub(crate) type InitV5 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    *const c_void,
) -> c_int;

/// A string of NCCL's; empty for null.
///
/// # Safety
/// `string` must be null or terminated.
pub(crate) unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: not null, and terminated as promised by the caller.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

fn start(event: event::Event, parent: *mut c_void, rank: c_int) -> event::Start {
    event::Start { event, parent: Handle::from_raw(parent), rank }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn every_union_starts_at_byte_24() {
        assert_eq!(offset_of!(v1::Descr, body), 24);
        assert_eq!(offset_of!(v2::Descr, body), 24);
        assert_eq!(offset_of!(v3::Descr, body), 24);
        assert_eq!(offset_of!(v4::Descr, body), 24);
        assert_eq!(offset_of!(v5::Descr, body), 24);
    }

    #[test]
    fn members_lie_where_the_compiler_of_nccl_puts_them() {
        assert_eq!(offset_of!(ProxyOp, peer), 8);
        assert_eq!(offset_of!(ProxyOp, is_send), 20);
        assert_eq!(offset_of!(v1::Coll, count), 48);
        assert_eq!(offset_of!(v1::Coll, traffic_bytes), 72);
        assert_eq!(offset_of!(v1::P2p, count), 40);
        assert_eq!(offset_of!(v2::Coll, proto), 96);
        assert_eq!(offset_of!(v3::Coll, proto), 88);
        assert_eq!(offset_of!(v4::Coll, proto), 72);
        assert_eq!(offset_of!(v4::P2p, channels), 36);
        assert_eq!(offset_of!(v5::Coll, parent_group), 80);
        assert_eq!(offset_of!(v5::P2p, parent_group), 40);
    }
}
