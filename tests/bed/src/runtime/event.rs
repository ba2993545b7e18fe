//! Events: a place in a stream.

use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, Weak};

use super::graph::Graph;
use super::stream::{self, Stream, StreamHandle};
use super::{INVALID_VALUE, NOT_READY, SUCCESS, Status, entry, lock, put};

/// `cudaEvent_t`
pub(crate) type EventHandle = *mut c_void;

#[derive(Default)]
struct Event {
    /// The stream it was recorded in and how far that stream has to get.
    place: Mutex<Option<(Arc<Stream>, u64)>>,
    /// The graph that captured it instead.
    captured: Mutex<Option<Weak<Graph>>>,
}

pub(super) fn functions() -> Vec<(&'static str, usize)> {
    vec![
        entry!("cudaEventCreate", create),
        entry!("cudaEventCreateWithFlags", create_with_flags),
        entry!("cudaEventDestroy", destroy),
        entry!("cudaEventRecord", record),
        entry!("cudaEventRecordWithFlags", record_with_flags),
        entry!("cudaEventQuery", query),
        entry!("cudaEventSynchronize", synchronize),
    ]
}

/// Where the event was last recorded; none when it never was, which counts as done.
pub(super) fn recorded(handle: EventHandle) -> Option<(Arc<Stream>, u64)> {
    if handle.is_null() {
        return None;
    }
    // SAFETY: the handle came from `create_into` and is not destroyed yet.
    let event = unsafe { &*handle.cast_const().cast::<Event>() };
    lock(&event.place).clone()
}

/// The graph that the event was recorded in, while it still captures.
pub(super) fn captured(handle: EventHandle) -> Option<Arc<Graph>> {
    if handle.is_null() {
        return None;
    }
    // SAFETY: the handle came from `create_into` and is not destroyed yet.
    let event = unsafe { &*handle.cast_const().cast::<Event>() };
    lock(&event.captured).as_ref()?.upgrade().filter(|graph| graph.is_capturing())
}

unsafe fn create_into(place: *mut EventHandle) -> Status {
    if place.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and the caller's.
    unsafe { put(place, Box::into_raw(Box::new(Event::default())).cast()) };
    SUCCESS
}

unsafe extern "C" fn create(place: *mut EventHandle) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { create_into(place) }
}

unsafe extern "C" fn create_with_flags(place: *mut EventHandle, _flags: c_uint) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { create_into(place) }
}

unsafe extern "C" fn destroy(handle: EventHandle) -> Status {
    if handle.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the handle came from `create_into`, and the caller must not use it again.
    drop(unsafe { Box::from_raw(handle.cast::<Event>()) });
    SUCCESS
}

unsafe extern "C" fn record(handle: EventHandle, stream: StreamHandle) -> Status {
    if handle.is_null() {
        return INVALID_VALUE;
    }
    let stream = stream::from_handle(stream);
    let mark = stream.mark();
    // SAFETY: the handle came from `create_into` and is not destroyed yet.
    let event = unsafe { &*handle.cast_const().cast::<Event>() };
    let capturing = stream.capturing();
    let is_captured = capturing.is_some();
    *lock(&event.captured) = capturing.as_ref().map(Arc::downgrade);
    if is_captured {
        return SUCCESS;
    }
    *lock(&event.place) = Some((stream, mark));
    SUCCESS
}

unsafe extern "C" fn record_with_flags(handle: EventHandle, stream: StreamHandle, _flags: c_uint) -> Status {
    // SAFETY: the same contract.
    unsafe { record(handle, stream) }
}

extern "C" fn query(handle: EventHandle) -> Status {
    match recorded(handle) {
        Some((stream, mark)) if !stream.reached(mark) => NOT_READY,
        _ => SUCCESS,
    }
}

extern "C" fn synchronize(handle: EventHandle) -> Status {
    if let Some((stream, mark)) = recorded(handle) {
        stream.wait(mark, None);
    }
    SUCCESS
}
