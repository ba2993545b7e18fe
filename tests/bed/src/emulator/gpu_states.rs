//! What the emulated GPUs do, in a file that the NVML double (`tests/nvml-double`, which has the same numbers)
//! answers from: 32 slots of eight 64-bit words. Behind them are 32 slots more, with what each GPU has done
//! until now ([`COMPUTED`] and the words behind it): the difference between two readings, over the time between
//! them, is what GPM's metrics say of it.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};

use crate::call_log;
use crate::runtime::launch::LaunchShape;
use crate::runtime::lock;

const SLOTS: usize = 32;
const WORDS: usize = 8;
const BYTES: usize = 2 * SLOTS * WORDS * 8;

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

/// Nanoseconds in which a kernel of the program's own ran: on a real GPU, those in which its multiprocessors and
/// tensor cores are busy.
const COMPUTED: usize = 0;
/// When such a kernel began that runs now (CLOCK_MONOTONIC); 0: none. This time is not in [`COMPUTED`] yet.
const COMPUTES_SINCE: usize = 1;
/// The same two words for kernels of NCCL, which hold a multiprocessor for each channel, and no tensor core.
const COMMUNICATED: usize = 2;
const COMMUNICATES_SINCE: usize = 3;
/// Kernels of each kind that run now.
const COMPUTING: usize = 4;
const COMMUNICATING: usize = 5;

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
        Ok(Self(unsafe { std::slice::from_raw_parts(map.cast_const().cast(), 2 * SLOTS * WORDS) }))
    }

    /// The slot of a device; `None` if it is none of those that there are.
    pub(crate) fn of(self, device: u32) -> Option<GpuState> {
        let first = usize::try_from(device).ok()?.checked_mul(WORDS)?;
        let (now, until_now) = self.0.split_at_checked(SLOTS * WORDS)?;
        let now = now.get(first..first + WORDS)?;
        now[PID].store(u64::from(std::process::id()), Ordering::Relaxed);
        Some(GpuState { now, until_now: until_now.get(first..first + WORDS)? })
    }
}

/// One GPU's slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GpuState {
    now: &'static [AtomicU64],
    until_now: &'static [AtomicU64],
}

/// Whose kernel it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelOf {
    Program,
    Nccl,
}

impl KernelOf {
    /// Words of what such kernels have done: their time, since when, how many.
    fn words(self) -> [usize; 3] {
        match self {
            Self::Program => [COMPUTED, COMPUTES_SINCE, COMPUTING],
            Self::Nccl => [COMMUNICATED, COMMUNICATES_SINCE, COMMUNICATING],
        }
    }
}

/// Streams of a process begin and end kernels at any time. A slot is written by one process.
static ORDER: Mutex<()> = Mutex::new(());

impl GpuState {
    /// A kernel runs until the guard is dropped.
    pub(crate) fn run(self, of: KernelOf, shape: LaunchShape) -> Running {
        let warps = shape.blocks * shape.threads.div_ceil(32);
        let shape = u64::from(shape.blocks) | u64::from(warps) << 32;
        self.now[SHAPE].fetch_add(shape, Ordering::Relaxed);
        self.now[RUNNING].fetch_add(1, Ordering::Relaxed);
        let [_, since, running] = of.words();
        let _order = lock(&ORDER);
        if self.until_now[running].fetch_add(1, Ordering::Relaxed) == 0 {
            self.until_now[since].store(call_log::now(), Ordering::Relaxed);
        }
        Running { gpu: self, of, shape }
    }

    fn end(self, of: KernelOf, at: u64) {
        let [time, since, running] = of.words();
        let _order = lock(&ORDER);
        if self.until_now[running].fetch_sub(1, Ordering::Relaxed) == 1 {
            let begun = self.until_now[since].swap(0, Ordering::Relaxed);
            self.until_now[time].fetch_add(at.saturating_sub(begun), Ordering::Relaxed);
        }
    }

    /// A kernel that is not NCCL's runs, or has ended.
    pub(crate) fn computes(self, does: bool) {
        self.now[COMPUTES].store(if does { 40 } else { 0 }, Ordering::Relaxed);
    }

    pub(crate) fn sent(self, bytes: usize) {
        self.now[SENT].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(self, bytes: usize) {
        self.now[RECEIVED].fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Running {
    gpu: GpuState,
    of: KernelOf,
    shape: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        let now = call_log::now();
        self.gpu.now[ENDED].store(now, Ordering::Relaxed);
        self.gpu.now[RUNNING].fetch_sub(1, Ordering::Relaxed);
        self.gpu.now[SHAPE].fetch_sub(self.shape, Ordering::Relaxed);
        self.gpu.end(self.of, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_once_and_by_kind() {
        let path = std::env::temp_dir().join(format!("ncclflow-bed.{}.states", std::process::id()));
        let states = GpuStates::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let gpu = states.of(31).unwrap();
        assert!(states.of(32).is_none());
        let word = |at: usize| gpu.until_now[at].load(Ordering::Relaxed);
        let shape = LaunchShape { blocks: 1, threads: 32 };
        let begun = call_log::now();
        let one = gpu.run(KernelOf::Program, shape);
        let nccl = gpu.run(KernelOf::Nccl, shape);
        let other = gpu.run(KernelOf::Program, shape);
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(one);
        assert_eq!((word(COMPUTED), word(COMMUNICATED)), (0, 0), "one of each kind still runs");
        assert!(word(COMPUTES_SINCE) >= begun);
        drop((other, nccl));
        let most = call_log::now() - begun;
        for time in [word(COMPUTED), word(COMMUNICATED)] {
            assert!((20_000_000..=most).contains(&time), "{time} of {most}");
        }
        assert_eq!((word(COMPUTES_SINCE), word(COMMUNICATES_SINCE)), (0, 0));
    }
}
