//! The plugin interface as NCCL's headers define it, declared here for the parts that are used.
//!
//! A descriptor is `{type, parentObj, rank, union}`. The union starts at byte 24 in every version,
//! whether `type` is a byte (v1–v4) or a 64-bit word (v5, v6). Versions differ in the union's members
//! `coll` and `p2p`, in the arguments of states and in the parameters of `init`. Only the members that
//! the activation mask asks for are declared, so these unions are smaller than NCCL's: they are read
//! through pointers, never copied whole.

mod collective;
mod v1;
mod v2;
mod v3;
mod v4;
mod v5;

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::callbacks;
use crate::event::{self, Event, Start};
use crate::handle::Handle;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INTERNAL_ERROR: c_int = 3;

/// Event types, and bits of the activation mask.
const GROUP: u64 = 1;
const COLL: u64 = 1 << 1;
const P2P: u64 = 1 << 2;
const PROXY_OP: u64 = 1 << 3;
const PROXY_STEP: u64 = 1 << 4;

pub(crate) const ACTIVATION_MASK: c_int = 0b1_1111;

/// `proxyOp` of all versions.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProxyOp {
    pid: i32,
    channel_id: u8,
    peer: c_int,
    n_steps: c_int,
    chunk_size: c_int,
    is_send: c_int,
}

impl ProxyOp {
    fn read(self) -> Event {
        Event::ProxyOp(event::ProxyOp {
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
struct ProxyStep {
    step: c_int,
}

impl ProxyStep {
    fn read(self) -> Event {
        Event::ProxyStep { step: self.step }
    }
}

/// A descriptor of some version.
pub(crate) trait Descriptor {
    /// `None` for event types that the activation mask did not ask for; NCCL offers some of them all the
    /// same.
    ///
    /// # Safety
    /// `self` must be a descriptor filled by NCCL: the union member that the type names is valid, its
    /// strings are null or terminated.
    unsafe fn read(&self) -> Option<Start>;
}

/// `ncclProfilerEventDescr` with the `type`, `coll` and `p2p` of some version.
#[repr(C)]
struct Descr<Type, Coll: Call, P2p: Call> {
    event_type: Type,
    parent: *mut c_void,
    rank: c_int,
    body: Body<Coll, P2p>,
}

#[repr(C)]
union Body<Coll: Call, P2p: Call> {
    coll: Coll,
    p2p: P2p,
    proxy_op: ProxyOp,
    proxy_step: ProxyStep,
}

/// `coll` or `p2p` of some version.
trait Call: Copy {
    /// # Safety
    /// The strings must be null or terminated.
    unsafe fn read(&self) -> Event;

    /// The event of the launch that the call belongs to, where it is not the descriptor's parent.
    fn launch(&self) -> Option<*mut c_void> {
        None
    }
}

impl<Type: Copy + Into<u64>, Coll: Call, P2p: Call> Descriptor for Descr<Type, Coll, P2p> {
    unsafe fn read(&self) -> Option<Start> {
        // SAFETY: the type names the member that NCCL filled, with strings of its own; that is the caller's
        // promise.
        let (event, launch) = unsafe {
            match self.event_type.into() {
                GROUP => (Event::Group, None),
                COLL => (self.body.coll.read(), self.body.coll.launch()),
                P2P => (self.body.p2p.read(), self.body.p2p.launch()),
                PROXY_OP => (self.body.proxy_op.read(), None),
                PROXY_STEP => (self.body.proxy_step.read(), None),
                _ => return None,
            }
        };
        Some(Start { event, parent: Handle::from_raw(launch.unwrap_or(self.parent)), rank: self.rank })
    }
}

/// Arguments of a state in some version: a union of which one member is read.
pub(crate) trait StateArguments {
    /// # Safety
    /// `self` must have been filled by NCCL for `state`.
    unsafe fn read(&self, state: i32) -> event::Transition;
}

/// The function table behind each `ncclProfiler_v*` symbol. Only `init` and the types of arguments differ.
#[repr(C)]
struct Table<Init, Descr, Args> {
    name: Name,
    init: Init,
    start_event: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const Descr) -> c_int,
    stop_event: unsafe extern "C" fn(*mut c_void) -> c_int,
    record_event_state: unsafe extern "C" fn(*mut c_void, c_int, *const Args) -> c_int,
    finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

impl<Init: Copy, Descr: Descriptor, Args: StateArguments> Table<Init, Descr, Args> {
    const fn new(init: Init) -> Self {
        Self {
            name: Name(c"ncclflow truth".as_ptr()),
            init,
            start_event: callbacks::start_event,
            stop_event: callbacks::stop_event,
            record_event_state: callbacks::record_event_state,
            finalize: callbacks::finalize,
        }
    }
}

/// A constant C string.
#[repr(transparent)]
struct Name(*const c_char);

// SAFETY: it points to a string constant, which nobody writes.
unsafe impl Sync for Name {}

type InitV1 = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int;

type InitV4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    *const c_void,
) -> c_int;

type InitV5 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    *const c_void,
) -> c_int;

/// Copies one of NCCL's strings; empty for null.
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
        assert_eq!(offset_of!(v2::Coll, operation.datatype), 64);
        assert_eq!(offset_of!(v2::Coll, tuning.proto), 96);
        assert_eq!(offset_of!(v2::P2p, peer), 48);
        assert_eq!(offset_of!(v3::Coll, tuning.proto), 88);
        assert_eq!(offset_of!(v4::Coll, operation.root), 40);
        assert_eq!(offset_of!(v4::Coll, tuning.channels), 56);
        assert_eq!(offset_of!(v4::Coll, tuning.proto), 72);
        assert_eq!(offset_of!(v4::P2p, channels), 36);
        assert_eq!(offset_of!(v5::Coll, parent_group), 80);
        assert_eq!(offset_of!(v5::P2p, parent_group), 40);
    }
}
