//! The bed in a program of another language that calls NCCL itself, such as Python with ctypes. It loads this package
//! as a shared library, calls `ncclflow_bed_prepare` before it has other threads, and then opens the same libnccl.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    sync::OnceLock,
    time::{Duration, Instant},
};

use clap::Parser as _;

use crate::{
    options::Options,
    runtime::{
        device, memory,
        stream::{self, StreamHandle},
    },
    setup::{self, Nccl},
};

static NCCL: OnceLock<Nccl> = OnceLock::new();

/// Opens libnccl with its CUDA runtime replaced. `options` are those of `ncclflow-bed`, a line each. Returns 0, or 1
/// after it has said why not on standard error.
///
/// # Safety
/// `options` must be a C string, and this the only thread of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclflow_bed_prepare(options: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let options = unsafe { CStr::from_ptr(options) }.to_string_lossy().into_owned();
    let prepared = Options::try_parse_from(["ncclflow-bed"].into_iter().chain(options.lines()))
        .map_err(anyhow::Error::from)
        .and_then(|options| setup::prepare(&options));
    match prepared {
        Ok(nccl) => c_int::from(NCCL.set(nccl).is_err()),
        Err(error) => {
            crate::say(&format!("{error:#}"));
            1
        }
    }
}

/// Chooses the emulated GPU of this thread: each rank must have its own.
#[unsafe(no_mangle)]
pub extern "C" fn ncclflow_bed_set_device(device: c_int) {
    device::set_current(device);
}

/// Makes a communicator known whose kernels are to be emulated.
#[unsafe(no_mangle)]
pub extern "C" fn ncclflow_bed_register(comm: *mut c_void) {
    if let Some(nccl) = NCCL.get() {
        nccl.emulator.register(comm.addr());
    }
}

/// Memory of the emulated GPU, for as long as the process lives; null if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn ncclflow_bed_allocate(bytes: usize) -> *mut c_void {
    memory::allocate_device(bytes).unwrap_or(0) as *mut c_void
}

/// Waits until all jobs of a stream are done, as `cudaStreamSynchronize` does: 0, or 1 when `seconds` have passed. Null
/// is the default stream.
#[unsafe(no_mangle)]
pub extern "C" fn ncclflow_bed_wait(stream: StreamHandle, seconds: u32) -> c_int {
    let stream = stream::from_handle(stream);
    let deadline = Instant::now() + Duration::from_secs(seconds.into());
    c_int::from(!stream.wait(stream.mark(), Some(deadline)))
}
