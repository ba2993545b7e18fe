//! The CUDA runtime's documented functions, on the host: device memory is host memory, copies are `memmove`,
//! a stream is a queue with a thread, and a kernel launch passes its arguments to the emulator.
//!
//! Only functions that NCCL calls are here. Types are declared from CUDA's documentation; no NVIDIA header is
//! used.

pub(crate) mod device;
mod driver;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod hidden_pages;
pub(crate) mod launch;
pub(crate) mod memory;
pub(crate) mod stream;

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `cudaError_t`
pub(crate) type Status = c_int;
pub(crate) const SUCCESS: Status = 0;
pub(crate) const INVALID_VALUE: Status = 1;
pub(crate) const OUT_OF_MEMORY: Status = 2;
pub(crate) const NOT_FOUND: Status = 500;
pub(crate) const NOT_READY: Status = 600;
pub(crate) const PEER_ALREADY_ENABLED: Status = 704;

/// The replacement of each function that NCCL calls, by the runtime's name for it.
pub(crate) fn replacements() -> HashMap<&'static str, usize> {
    let mut all = HashMap::new();
    all.extend(device::functions());
    all.extend(driver::functions());
    all.extend(memory::functions());
    all.extend(stream::functions());
    all.extend(event::functions());
    all.extend(launch::functions());
    all.extend(graph::functions());
    all
}

/// The address of a function, for a table of replacements.
macro_rules! entry {
    ($name:literal, $function:expr) => {
        ($name, $function as *const () as usize)
    };
}
pub(crate) use entry;

/// Writes through a pointer that NCCL passed, when it is not null.
///
/// # Safety
/// `place` is null or valid for a write of `T`.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: by this function's contract.
        unsafe { place.write(value) };
    }
}

/// A lock that a panic elsewhere does not poison: the state behind it stays consistent between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
