//! What the emulated GPUs do, in a file that the NVML double (`tests/nvml-double`, which has the same numbers)
//! answers from: 32 slots of twenty-four 64-bit words. Words 8 to 15 are for tests to write.

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
const WORDS: usize = 24;
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

/// Whether the next words are counted: in jobs whose GPUs compute in each iteration.
const COUNTS: usize = 16;
/// Time in which kernels of the program ran, and NCCL's ([`Busy::word`]).
const BUSY: [usize; 2] = [17, 18];
/// When the kernels of the program that run will have ended. Written before a kernel begins, and read later.
const ENDS: usize = 19;

/// Time in which kernels ran.
#[derive(Debug, Default)]
struct Busy {
    until_now_ns: u64,
    /// When the first of those that run began.
    since_ns: u64,
    /// When the last of those that run will have ended: a GPU goes on while its process does not.
    ends_ns: u64,
    running: u32,
}

impl Busy {
    fn begin(&mut self, at_ns: u64, ends_ns: u64) {
        if self.running == 0 {
            (self.since_ns, self.ends_ns) = (at_ns, 0);
        }
        self.ends_ns = self.ends_ns.max(ends_ns);
        self.running += 1;
    }

    fn end(&mut self, at_ns: u64) {
        let at_ns = at_ns.min(self.ends_ns);
        self.until_now_ns += at_ns.saturating_sub(self.since_ns);
        self.since_ns = self.since_ns.max(at_ns);
        self.running = self.running.saturating_sub(1);
    }

    /// The time in one word, that it is always whole: while kernels run, a reader adds the time that it is.
    fn word(&self) -> u64 {
        match self.running {
            0 => self.until_now_ns << 1,
            _ => self.until_now_ns.wrapping_sub(self.since_ns) << 1 | 1,
        }
    }
}

/// What a GPU has done: kernels of the program's own, and NCCL's.
#[derive(Debug, Default)]
struct Done([Busy; 2]);

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
        Some(GpuState { words, done: Box::leak(Box::default()) })
    }
}

/// One GPU's slot, for the life of the process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GpuState {
    words: &'static [AtomicU64],
    done: &'static Mutex<Done>,
}

/// Whose kernel it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelOf {
    Program,
    Nccl,
}

impl GpuState {
    /// A kernel runs until the guard is dropped. `ends_ns`: when it will have ended, if that is known.
    pub(crate) fn run(self, of: KernelOf, shape: LaunchShape, ends_ns: Option<u64>) -> Running {
        // Programs that only load the bed prepare all devices, and use one.
        self.words[PID].store(u64::from(std::process::id()), Ordering::Relaxed);
        let warps = shape.blocks * shape.threads.div_ceil(32);
        let shape = u64::from(shape.blocks) | u64::from(warps) << 32;
        self.words[SHAPE].fetch_add(shape, Ordering::Relaxed);
        self.words[RUNNING].fetch_add(1, Ordering::Relaxed);
        self.count(of, |busy| busy.begin(call_log::now(), ends_ns.unwrap_or(u64::MAX)));
        Running { gpu: self, of, shape }
    }

    /// What kernels do is counted from now on.
    pub(crate) fn counts(self) {
        self.words[COUNTS].store(1, Ordering::Relaxed);
    }

    fn count(self, of: KernelOf, change: impl FnOnce(&mut Busy)) {
        let mut done = lock(self.done);
        let busy = &mut done.0[of as usize];
        change(busy);
        if of == KernelOf::Program {
            self.words[ENDS].store(busy.ends_ns, Ordering::Release);
        }
        self.words[BUSY[of as usize]].store(busy.word(), Ordering::Release);
    }

    /// A kernel that is not NCCL's runs, or has ended.
    pub(crate) fn computes(self, does: bool) {
        self.words[COMPUTES].store(if does { 40 } else { 0 }, Ordering::Relaxed);
    }

    pub(crate) fn sent(self, bytes: usize) {
        self.words[SENT].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(self, bytes: usize) {
        self.words[RECEIVED].fetch_add(bytes as u64, Ordering::Relaxed);
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
        self.gpu.words[ENDED].store(now, Ordering::Relaxed);
        self.gpu.words[RUNNING].fetch_sub(1, Ordering::Relaxed);
        self.gpu.words[SHAPE].fetch_sub(self.shape, Ordering::Relaxed);
        self.gpu.count(self.of, |busy| busy.end(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader makes of a word.
    fn at(busy: &Busy, now_ns: u64) -> u64 {
        let word = busy.word();
        let running = if word & 1 == 1 { now_ns.min(busy.ends_ns) } else { 0 };
        (word >> 1).wrapping_add(running) & (u64::MAX >> 1)
    }

    #[test]
    fn time_in_which_several_kernels_run_is_counted_once() {
        let mut busy = Busy::default();
        busy.begin(100, u64::MAX);
        busy.begin(110, u64::MAX);
        assert_eq!(at(&busy, 120), 20);
        busy.end(130);
        assert_eq!(at(&busy, 140), 40, "one still runs");
        busy.end(150);
        busy.begin(190, u64::MAX);
        assert_eq!((at(&busy, 190), at(&busy, 200)), (50, 60));
    }

    #[test]
    fn a_kernel_ends_in_time_while_its_process_is_stopped() {
        let mut busy = Busy::default();
        busy.begin(100, 130);
        assert_eq!((at(&busy, 120), at(&busy, 500)), (20, 30));
        busy.end(600);
        assert_eq!(at(&busy, 700), 30);
        busy.begin(700, 750);
        assert_eq!((at(&busy, 710), at(&busy, 800)), (40, 80));
    }
}
