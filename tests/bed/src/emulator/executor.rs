//! Runs the blocks of a kernel side by side on one thread: each is a future that waits for a counter or a
//! flag in memory. After a round in which nothing moved, the thread yields, because proxy threads spin.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use super::gpu_states::GpuState;
use super::memory;
use crate::environment::exists;

pub(crate) type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// What the blocks of one kernel share with the thread that runs them.
#[derive(Debug)]
pub(crate) struct Control {
    /// The host sets it to end kernels.
    abort_flag: usize,
    /// While one of these exists nothing moves.
    stalls: Vec<PathBuf>,
    moved: Cell<u64>,
    gpu: Option<GpuState>,
}

impl Control {
    pub(crate) fn new(abort_flag: usize, stalls: Vec<PathBuf>, gpu: Option<GpuState>) -> Self {
        Self { abort_flag, stalls, moved: Cell::new(0), gpu }
    }

    /// Counts what the GPU sends to others.
    pub(crate) fn sent(&self, bytes: usize) {
        if let Some(gpu) = self.gpu {
            gpu.sent(bytes);
        }
    }

    /// Counts what the GPU gets from others.
    pub(crate) fn received(&self, bytes: usize) {
        if let Some(gpu) = self.gpu {
            gpu.received(bytes);
        }
    }

    /// Waits while one of these files exists; false when the kernel was aborted first.
    pub(crate) fn wait_while(&self, files: &[PathBuf]) -> bool {
        while files.iter().any(|file| exists(file)) {
            if self.aborted() {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Waits until `ready` returns true.
    pub(crate) async fn until(&self, mut ready: impl FnMut() -> bool) {
        poll_fn(|_| if ready() { Poll::Ready(()) } else { Poll::Pending }).await;
        self.moved.set(self.moved.get() + 1);
    }

    fn aborted(&self) -> bool {
        self.abort_flag != 0 && memory::load_u32(self.abort_flag) != 0
    }

    fn stalled(&self) -> bool {
        self.stalls.iter().any(|file| exists(file))
    }

    /// Runs all tasks to their end; false when the kernel was aborted first.
    pub(crate) fn run(&self, mut tasks: Vec<Task<'_>>) -> bool {
        const STALL_CHECK: Duration = Duration::from_millis(1);
        const YIELDS: u32 = 20;
        const LONGEST_SLEEP: Duration = Duration::from_micros(200);
        let mut idle_rounds = 0_u32;
        let mut next_check = Instant::now();
        while !tasks.is_empty() {
            if self.aborted() {
                return false;
            }
            if !self.stalls.is_empty() && Instant::now() >= next_check {
                if self.stalled() {
                    thread::sleep(2 * STALL_CHECK);
                    continue;
                }
                next_check = Instant::now() + STALL_CHECK;
            }
            let before = (self.moved.get(), tasks.len());
            poll_all(&mut tasks);
            if before != (self.moved.get(), tasks.len()) {
                idle_rounds = 0;
            } else if idle_rounds < YIELDS {
                idle_rounds += 1;
                thread::yield_now();
            } else {
                idle_rounds += 1;
                thread::sleep(LONGEST_SLEEP.min(Duration::from_micros(u64::from(idle_rounds))));
            }
        }
        true
    }
}

/// Polls each task once and drops those that ended.
fn poll_all(tasks: &mut Vec<Task<'_>>) {
    let mut context = Context::from_waker(Waker::noop());
    tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
}

/// Waits for several tasks that run side by side.
pub(crate) async fn all(mut tasks: Vec<Task<'_>>) {
    poll_fn(|_| {
        poll_all(&mut tasks);
        if tasks.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
