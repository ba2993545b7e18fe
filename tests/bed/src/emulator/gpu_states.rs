//! What the emulated GPUs do, in a file that the NVML double (`tests/nvml-double`, which has the same numbers)
//! answers from: 32 slots of sixteen 64-bit words, of which the last eight are for tests to write.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};

use crate::runtime::launch::LaunchShape;

const SLOTS: usize = 32;
const WORDS: usize = 16;
const BYTES: usize = SLOTS * WORDS * 8;

/// Words of a slot.
const PID: usize = 0;
/// Kernels that run now.
const RUNNING: usize = 1;
/// When the last one ended, by CLOCK_MONOTONIC in nanoseconds.
const ENDED: usize = 2;
const SENT: usize = 3;
const RECEIVED: usize = 4;
/// Percent of the time in which a kernel that is not NCCL's uses memory; 0 while none runs.
const COMPUTES: usize = 5;
/// Blocks of the kernels that run now, and their warps in the upper half. Word 6 is the last error (Xid).
const SHAPE: usize = 7;

/// The mapped file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GpuStates(&'static [AtomicU64]);

impl GpuStates {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("opening `{}`", path.display()))?;
        file.set_len(BYTES as u64)?;
        // SAFETY: a new shared mapping of a file that is as long as it.
        let map = unsafe {
            libc::mmap(
                ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            bail!("mapping `{}`: {}", path.display(), std::io::Error::last_os_error());
        }
        // SAFETY: it is as long, aligned to a page, never unmapped, and only used as atomic words.
        Ok(Self(unsafe { std::slice::from_raw_parts(map.cast_const().cast(), SLOTS * WORDS) }))
    }

    /// The slot of a device; `None` if it is none of those that there are.
    pub(crate) fn of(self, device: u32) -> Option<GpuState> {
        let first = usize::try_from(device).ok()?.checked_mul(WORDS)?;
        let words = self.0.get(first..first + WORDS)?;
        words[PID].store(u64::from(std::process::id()), Ordering::Relaxed);
        Some(GpuState(words))
    }
}

/// One GPU's slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GpuState(&'static [AtomicU64]);

impl GpuState {
    /// A kernel runs until the guard is dropped.
    pub(crate) fn run(self, shape: LaunchShape) -> Running {
        let warps = shape.blocks * shape.threads.div_ceil(32);
        let shape = u64::from(shape.blocks) | u64::from(warps) << 32;
        self.0[SHAPE].fetch_add(shape, Ordering::Relaxed);
        self.0[RUNNING].fetch_add(1, Ordering::Relaxed);
        Running { gpu: self, shape }
    }

    /// A kernel that is not NCCL's runs, or has ended.
    pub(crate) fn computes(self, does: bool) {
        self.0[COMPUTES].store(if does { 40 } else { 0 }, Ordering::Relaxed);
    }

    pub(crate) fn sent(self, bytes: usize) {
        self.0[SENT].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(self, bytes: usize) {
        self.0[RECEIVED].fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Running {
    gpu: GpuState,
    shape: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes one timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        self.gpu.0[ENDED].store(now, Ordering::Relaxed);
        self.gpu.0[RUNNING].fetch_sub(1, Ordering::Relaxed);
        self.gpu.0[SHAPE].fetch_sub(self.shape, Ordering::Relaxed);
    }
}
