//! What the emulated GPUs do, in a file that the NVML double (`tests/nvml-double`, which has the same numbers)
//! answers from: 32 slots of sixteen 64-bit words. The last eight are for tests to write, but in jobs whose
//! GPUs compute in each iteration: there they have what GPM says of that ([`GpuState::tell`]).

use std::fs::OpenOptions;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::call_log;
use crate::runtime::launch::LaunchShape;
use crate::runtime::lock;

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

/// First of the words that say what GPM's metrics are: graphics, SM, occupancy, tensor and DRAM activity, in
/// hundredths of a percent, plus one; 0: what the kernels that run make of them.
const TOLD: usize = 8;
/// How often they are told anew: each time of what was done since the time before.
const TOLD_EVERY: Duration = Duration::from_millis(200);
/// What a matrix product takes of a Hopper, in percent, in that order.
const COMPUTING: [f64; 5] = [100.0, 86.0, 14.0, 78.0, 16.0];
/// What a kernel of NCCL with one channel takes: one of 132 multiprocessors.
const COMMUNICATING: [f64; 5] = [100.0, 0.76, 0.2, 0.0, 1.0];

/// Time in which kernels ran.
#[derive(Debug, Default)]
struct Busy {
    until_now_ns: u64,
    /// When the first of those that run began.
    since_ns: u64,
    running: u32,
}

impl Busy {
    fn begin(&mut self, at_ns: u64) {
        if self.running == 0 {
            self.since_ns = at_ns;
        }
        self.running += 1;
    }

    fn end(&mut self, at_ns: u64) {
        self.until_now_ns = self.at(at_ns);
        self.since_ns = at_ns;
        self.running = self.running.saturating_sub(1);
    }

    /// The time until this moment.
    fn at(&self, at_ns: u64) -> u64 {
        let running = if self.running > 0 { at_ns.saturating_sub(self.since_ns) } else { 0 };
        self.until_now_ns + running
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
    /// A kernel runs until the guard is dropped.
    pub(crate) fn run(self, of: KernelOf, shape: LaunchShape) -> Running {
        let warps = shape.blocks * shape.threads.div_ceil(32);
        let shape = u64::from(shape.blocks) | u64::from(warps) << 32;
        self.words[SHAPE].fetch_add(shape, Ordering::Relaxed);
        self.words[RUNNING].fetch_add(1, Ordering::Relaxed);
        lock(self.done).0[of as usize].begin(call_log::now());
        Running { gpu: self, of, shape }
    }

    /// Tells GPM's metrics from now on, for the life of the process.
    pub(crate) fn tell(self) {
        let mut before = (call_log::now(), [0; 2]);
        let mut tell = move || {
            let now = call_log::now();
            let done = lock(self.done).0.each_ref().map(|busy| busy.at(now));
            for (place, value) in self.words[TOLD..].iter().zip(metrics((now, done), before)) {
                place.store(value + 1, Ordering::Relaxed);
            }
            before = (now, done);
        };
        let told = thread::Builder::new().name("bed gpu".to_owned()).spawn(move || {
            loop {
                thread::sleep(TOLD_EVERY);
                tell();
            }
        });
        if let Err(error) = told {
            crate::say(&format!("cannot start a GPU's thread: {error}"));
        }
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
        lock(self.gpu.done).0[self.of as usize].end(now);
    }
}

/// GPM's metrics of the time between two moments, by what was done until each, in hundredths of a percent.
fn metrics((now, done): (u64, [u64; 2]), (then, before): (u64, [u64; 2])) -> [u64; 5] {
    let time = now.saturating_sub(then).max(1) as f64;
    let [computed, communicated] = [0, 1].map(|of| done[of].saturating_sub(before[of]) as f64 / time);
    std::array::from_fn(|metric| {
        let percent = computed * COMPUTING[metric] + communicated * COMMUNICATING[metric];
        (100.0 * percent.min(100.0)).round() as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_several_kernels_run_is_counted_once() {
        let mut busy = Busy::default();
        busy.begin(100);
        busy.begin(110);
        assert_eq!(busy.at(120), 20);
        busy.end(130);
        assert_eq!(busy.at(140), 40, "one still runs");
        busy.end(150);
        busy.begin(190);
        assert_eq!((busy.at(190), busy.at(200)), (50, 60));
    }

    #[test]
    fn a_gpu_that_waits_in_nccl_is_busy_without_its_tensor_cores() {
        let begun = (1_000, [500, 500]);
        assert_eq!(metrics((2_000, [1_500, 500]), begun), COMPUTING.map(|percent| 100 * percent as u64));
        assert_eq!(metrics((2_000, [500, 1_500]), begun), [10_000, 76, 20, 0, 100]);
        assert_eq!(metrics((2_000, [1_000, 1_000]), begun), [10_000, 4_338, 710, 3_900, 850]);
        assert_eq!(metrics((2_000, [1_000, 500]), begun)[0], 5_000, "idle half of the time");
        assert_eq!(metrics(begun, begun), [0; 5]);
    }
}
