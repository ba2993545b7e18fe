//! The functions that NCCL calls, from application threads and from proxy threads.
//!
//! No panic crosses into NCCL. A caught panic is reported as an internal error: at init NCCL then goes on
//! without the profiler, elsewhere it ignores the error.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;

use crate::abi::{self, ACTIVATION_MASK, Descriptor, INTERNAL_ERROR, SUCCESS, StateArguments};
use crate::context::Communicator;
use crate::event::{Event, Start};
use crate::handle::Handle;
use crate::registry;

fn guarded(work: impl FnOnce()) -> c_int {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(()) => SUCCESS,
        Err(_) => INTERNAL_ERROR,
    }
}

/// # Safety
/// `context` and `mask` must be writable.
unsafe fn init(
    context: *mut *mut c_void,
    mask: *mut c_int,
    api: u32,
    communicator: Option<Communicator>,
) -> c_int {
    guarded(|| {
        let opened = registry::open(api, communicator);
        // SAFETY: the caller's promise.
        unsafe {
            *context = raw(opened);
            *mask = if opened.is_some() { ACTIVATION_MASK } else { 0 };
        }
    })
}

fn raw(handle: Option<Handle>) -> *mut c_void {
    handle.map_or(std::ptr::null_mut(), Handle::to_raw)
}

/// # Safety
/// The name must be null or terminated.
unsafe fn communicator(
    comm_hash: u64,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
) -> Communicator {
    // SAFETY: the caller's promise.
    let name = unsafe { abi::text(name) };
    Communicator { comm_hash, rank, ranks: Some(ranks), nodes: Some(nodes), name }
}

/// v1–v3: the communicator is known from its first collective or p2p call.
///
/// # Safety
/// Called by NCCL.
pub(crate) unsafe extern "C" fn init_v1<const API: u32>(
    context: *mut *mut c_void,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: NCCL passes addresses of its own variables.
    unsafe { init(context, mask, API, None) }
}

/// # Safety
/// Called by NCCL.
pub(crate) unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    comm_hash: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    _log: *const c_void,
) -> c_int {
    // SAFETY: the name is null or terminated, the addresses are of NCCL's own variables.
    unsafe { init(context, mask, 4, Some(communicator(comm_hash, name, nodes, ranks, rank))) }
}

/// # Safety
/// Called by NCCL.
pub(crate) unsafe extern "C" fn init_v5<const API: u32>(
    context: *mut *mut c_void,
    comm_hash: u64,
    mask: *mut c_int,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    _log: *const c_void,
) -> c_int {
    // SAFETY: the name is null or terminated, the addresses are of NCCL's own variables.
    unsafe { init(context, mask, API, Some(communicator(comm_hash, name, nodes, ranks, rank))) }
}

/// # Safety
/// Called by NCCL with a filled descriptor.
pub(crate) unsafe extern "C" fn start_event<D: Descriptor>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descriptor: *const D,
) -> c_int {
    guarded(|| {
        // SAFETY: NCCL passes a filled descriptor, or nothing.
        let start = unsafe { descriptor.as_ref().and_then(|descriptor| descriptor.read()) };
        let started = start.and_then(|start| started(Handle::from_raw(context), &start));
        if !handle.is_null() {
            // SAFETY: not null, so an address of NCCL's.
            unsafe { *handle = raw(started) };
        }
    })
}

/// Picks the context that an event belongs to. NCCL's own argument is right for calls. An op that another
/// process asked for comes with *that* process's context, and a step belongs to the context of its op.
fn started(context: Option<Handle>, start: &Start) -> Option<Handle> {
    let context = match &start.event {
        Event::ProxyOp(op) if op.origin_pid.cast_unsigned() != process::id() => registry::foreign()?,
        Event::ProxyStep { .. } => registry::context_of(start.parent?)?,
        Event::Group | Event::Coll(_) | Event::P2p(_) | Event::ProxyOp(_) => registry::context_of(context?)?,
    };
    context.start(start)
}

/// # Safety
/// Called by NCCL.
pub(crate) unsafe extern "C" fn stop_event(handle: *mut c_void) -> c_int {
    guarded(|| {
        if let Some(handle) = Handle::from_raw(handle)
            && let Some(context) = registry::context_of(handle)
        {
            context.stop(handle);
        }
    })
}

/// # Safety
/// Called by NCCL; the arguments fit the state, or are null.
pub(crate) unsafe extern "C" fn record_event_state<A: StateArguments>(
    handle: *mut c_void,
    state: c_int,
    arguments: *const A,
) -> c_int {
    guarded(|| {
        if let Some(handle) = Handle::from_raw(handle)
            && let Some(context) = registry::context_of(handle)
        {
            // SAFETY: NCCL's promise.
            let transition = unsafe { arguments.as_ref().map(|arguments| arguments.read(state)) };
            context.record(handle, state, transition);
        }
    })
}

/// # Safety
/// Called by NCCL.
pub(crate) unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    guarded(|| {
        if let Some(handle) = Handle::from_raw(context)
            && let Some(context) = registry::context_of(handle)
        {
            context.finalize();
        }
    })
}
