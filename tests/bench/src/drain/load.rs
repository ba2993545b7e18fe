//! The drain alone: the real BPF program sends records through the real buffer, from uprobes on a
//! function of this program.

use std::{
    hint::black_box,
    num::NonZeroU32,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use flow::{
    session::BufferKind,
    wire::{ApiCallSpans, CommunicatorSpans, ProbeKind, Span},
};
use nccl_library::elf::{Budget, FileOffset, Image, SymbolTable};
use ncclflow_common::{FetchPlan, RecordHeader, Step, StepOp};
use trace::kernel::{
    loader::{Attachment, Buffer, best_links},
    probe::Probe,
    stream::{Drain, DrainMessage, Mailbox, Outlet, Popped, Queue},
};

use super::timed;

#[derive(Debug)]
pub(super) struct Drained {
    pub(super) delivered: u64,
    pub(super) lost: u64,
    /// CPU time of the drain's thread.
    pub(super) cpu: Duration,
}

/// Bytes that a record copies of the caller's memory: as many as a record of `ncclProxySaveOp`.
const COPIES: [u16; 2] = [256, 128];
pub(super) const RECORD_BYTES: u16 = HEADER_BYTES + COPIES[0] + COPIES[1];
#[expect(clippy::cast_possible_truncation, reason = "a few bytes")]
const HEADER_BYTES: u16 = RecordHeader::SIZE as u16;

/// Hits that fill the buffer.
const BURST: u64 = 100_000;
/// Threads that hit while the buffer is drained, and how long.
const THREADS: u32 = 2;
const TIME: Duration = Duration::from_secs(3);

/// The function that is probed.
#[allow(unreachable_pub, reason = "exported by its name")]
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ncclflow_bench_hit(bytes: *const u8) {
    black_box(bytes);
}

/// Fills the buffer, then drains it.
pub(super) fn burst(buffer: BufferKind) -> Result<Drained> {
    let mut session = Session::open(buffer, 128 << 20)?;
    session.attachment.arm()?;
    (0..BURST).for_each(|_| hit());
    session.attachment.disarm()?;
    let taker = session.taker();
    let drain = &mut session.drain;
    let cpu = timed(|| while drain.take_all() > 0 {});
    session.close(taker, cpu)
}

/// Drains while the buffer is filled.
pub(super) fn sustained(buffer: BufferKind) -> Result<Drained> {
    let mut session = Session::open(buffer, 16 << 20)?;
    let taker = session.taker();
    let ((to_drain, mailbox), over) = (Mailbox::new()?, AtomicBool::new(false));
    session.attachment.arm()?;
    let drain = &mut session.drain;
    let (cpu, result) = thread::scope(|scope| {
        let drainer = scope.spawn(move || {
            let mut result = Ok(());
            (timed(|| result = drain.run(&mailbox)), result)
        });
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    hit();
                }
            });
        }
        thread::sleep(TIME);
        over.store(true, Ordering::Relaxed);
        to_drain.send(DrainMessage::Stop);
        drainer.join().unwrap_or((Duration::ZERO, Err(std::io::Error::other("the drain failed"))))
    });
    result?;
    session.attachment.disarm()?;
    while session.drain.take_all() > 0 {}
    session.close(taker, cpu)
}

fn hit() {
    static BYTES: [u8; 512] = [7; 512];
    ncclflow_bench_hit(BYTES.as_ptr());
}

struct Session {
    attachment: Attachment,
    drain: Drain,
    queue: Arc<Queue>,
    taken: Arc<AtomicU64>,
}

impl Session {
    fn open(kind: BufferKind, bytes: u32) -> Result<Self> {
        let buffer = Buffer { kind, bytes, rings: 1 };
        let mut attachment = Attachment::new(buffer, best_links(), false, false)?;
        let this = Path::new("/proc/self/exe");
        let probe = Probe {
            function: "ncclflow_bench_hit".to_owned(),
            symbol: "ncclflow_bench_hit".to_owned(),
            file_offset: file_offset(this)?,
            kind: ProbeKind::ApiCall(no_spans()),
            plan: plan(),
            walk: None,
            takes_stack: false,
        };
        let pid = NonZeroU32::new(std::process::id()).context("we are a process")?;
        let cookie = attachment.store(&probe, None, 0, Some(pid))?;
        attachment.attach(&[(&probe, cookie)], this, this, pid)?;
        let queue = Arc::new(Queue::new(32 << 20));
        let drain = Drain::new(attachment.source()?, Outlet::new(Arc::clone(&queue)));
        Ok(Self { attachment, drain, queue, taken: Arc::default() })
    }

    /// Takes batches and does nothing with them.
    fn taker(&self) -> thread::JoinHandle<()> {
        let (queue, taken) = (Arc::clone(&self.queue), Arc::clone(&self.taken));
        thread::spawn(move || {
            loop {
                match queue.pop(None) {
                    Popped::Batch(batch) => taken.fetch_add(batch.len() as u64, Ordering::Relaxed),
                    Popped::Nothing | Popped::Called => 0,
                    Popped::Closed => break,
                };
            }
        })
    }

    fn close(mut self, taker: thread::JoinHandle<()>, cpu: Duration) -> Result<Drained> {
        self.drain.close(|_| 0);
        if taker.join().is_err() {
            anyhow::bail!("the taker failed");
        }
        let (mut hits, mut lost) = (0, 0);
        for probe in self.attachment.probes() {
            for counters in self.attachment.counters(probe)? {
                hits += counters.hits;
                lost += counters.lost_full;
            }
        }
        let delivered = self.taken.load(Ordering::Relaxed);
        if hits != delivered + lost {
            anyhow::bail!("{hits} hits, and {delivered} delivered and {lost} lost");
        }
        self.attachment.detach(|_| {});
        Ok(Drained { delivered, lost, cpu })
    }
}

/// Copies as much as a record of `ncclProxySaveOp` holds.
fn plan() -> FetchPlan {
    let mut plan = FetchPlan { class: 1, record_len: RECORD_BYTES, ..FetchPlan::default() };
    let mut at = HEADER_BYTES;
    for (step, len) in plan.steps.iter_mut().zip(COPIES) {
        *step = Step { op: StepOp::Copy as u8, at, len, ..Step::default() };
        at += len;
        plan.n_steps += 1;
    }
    plan
}

fn file_offset(path: &Path) -> Result<FileOffset> {
    let image = Image::open(path)?;
    let table = SymbolTable::read(&image, &mut Budget::new(1 << 30, 1 << 24))?;
    let table = table.context("this program has no symbols")?;
    let function = table
        .functions()
        .find(|function| function.name == "ncclflow_bench_hit")
        .context("this program lacks its own function")?;
    image.file_offset(function.address).context("its function is not loaded")
}

/// The records are not decoded.
fn no_spans() -> ApiCallSpans {
    let span = Span { at: 0, len: 0, rests_on: 0 };
    ApiCallSpans {
        comm: CommunicatorSpans {
            pointer: span,
            hash: None,
            rank: span,
            n_ranks: span,
            launched_per_function: None,
            posted_collectives: None,
        },
        name: span,
        function: span,
        count: span,
        datatype: span,
        reduction_op: span,
        root: span,
    }
}
