//! The time between arming and disarming: a thread that drains, a thread that writes, and this one, which sees to the end.

use std::{
    os::fd::{AsFd as _, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use rustix::time::ClockId;

use super::{
    pipeline::Pipeline,
    recorder::{Notice, RecordOptions, StopHandle, ms_since},
    setup::Setup,
    takers::{Complaints, keep_capture, write_flows},
};
use crate::{
    capture::CaptureWriter,
    clock::now_ns,
    layout_cache::LayoutCache,
    loader::Attachment,
    sink::SessionReport,
    stream::{Account, Drain, Outlet, Queue, Waker, wait_for},
};

/// How long the end waits for records that a CPU is still putting together.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

/// What a recording has to do with while it goes on.
pub(super) struct Live<'a> {
    pub(super) options: &'a RecordOptions,
    pub(super) stop: &'a StopHandle,
    pub(super) setup: &'a Setup,
    /// Where what was resolved is kept, once the session is open.
    pub(super) cache: Option<&'a LayoutCache>,
    pub(super) attachment: &'a mut Attachment,
    pub(super) report: &'a mut SessionReport,
    pub(super) notice: &'a mut dyn FnMut(Notice<'_>),
}

/// What was taken in.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) pipeline: Pipeline,
    pub(super) capture: Option<CaptureWriter>,
    /// Records that the pipeline did not get, as it had not kept up.
    pub(super) dropped: Account,
    /// Records that the capture lacks.
    pub(super) not_captured: u64,
    /// Most bytes that waited for the pipeline at a time.
    pub(super) queue_peak: usize,
}

/// Opens the session, takes records until it is to end, closes it, and takes what is left.
pub(super) fn run(live: Live<'_>, pipeline: Pipeline, capture: Option<CaptureWriter>) -> Result<Taken> {
    let Live { options, stop, setup, cache, attachment, report, notice } = live;
    let (drain_stop, bell) = (Waker::new()?, Waker::new()?);
    let (sender, errors) = mpsc::channel();
    let complaints = Complaints { sender, bell: bell.clone() };
    let flows = Arc::new(Queue::new(options.queue_bytes));
    let raw = capture.is_some().then(|| Arc::new(Queue::new(options.queue_bytes)));
    let resumed = Arc::new(AtomicBool::new(false));
    let outlet = |queue: &Arc<Queue>| {
        Outlet::new(Arc::clone(queue)).telling_of_resumption(Arc::clone(&resumed), bell.clone())
    };
    let outlets = std::iter::once(&flows).chain(&raw).map(outlet).collect();
    let mut drain = Drain::new(attachment.take_source()?, outlets);
    thread::scope(|scope| {
        let close_all = || {
            drain_stop.wake();
            flows.close();
            if let Some(raw) = &raw {
                raw.close();
            }
        };
        let started = (|| {
            let writer =
                named("ncclflow-write").spawn_scoped(scope, || write_flows(&flows, pipeline, &complaints))?;
            let keeper = match (capture, &raw) {
                (Some(capture), Some(raw)) => Some(
                    named("ncclflow-keep").spawn_scoped(scope, || keep_capture(raw, capture, &complaints))?,
                ),
                _ => None,
            };
            let drain = named("ncclflow-drain").spawn_scoped(scope, || {
                let drained = drain.run(&drain_stop);
                bell.wake();
                (drain, drained)
            })?;
            Ok::<_, anyhow::Error>((writer, keeper, drain))
        })();
        // Whatever fails, the threads must end, or the scope waits for them.
        let (writer, keeper, drainer) = started.inspect_err(|_| close_all()).context("starting a thread")?;
        let opened = attachment.arm();
        let watched = opened.and_then(|()| {
            report.attach.armed_ms = ms_since(options.started);
            report.attach.armed_monotonic_ns = Some(now_ns(ClockId::Monotonic));
            notice(Notice::Recording { probes: attachment.probes().len() });
            keep_layouts(setup, cache, notice);
            let told = Told { bell: &bell, errors: &errors, resumed: &resumed };
            watch(Live { options, stop, setup, cache, attachment, report, notice }, &told)
        });
        let closed = attachment.disarm();
        drain_stop.wake();
        let (mut drain, drained) = join(drainer).inspect_err(|_| close_all())?;
        let settled = settle(attachment, &mut drain);
        drain.close(|tgid| attachment.lost_by_process(tgid).unwrap_or(0));
        let (pipeline, keeper) = (join(writer)?, keeper.map(join).transpose()?);
        tell(&errors, report, notice);
        watched.and(closed).and(settled)?;
        drained.context("waiting for records")?;
        let (mut dropped, mut queue_peak, mut not_kept) = (Account::default(), 0, 0);
        if let Some((first, rest)) = drain.outlets().split_first() {
            dropped = first.dropped().clone();
            queue_peak = first.peak();
            not_kept = rest.iter().map(|outlet| outlet.dropped().total()).sum();
        }
        let not_captured = not_kept + keeper.as_ref().map_or(0, CaptureWriter::lost);
        Ok(Taken { pipeline, capture: keeper, dropped, not_captured, queue_peak })
    })
}

/// Keeps what was resolved for the next time. That it cannot be is no failure.
fn keep_layouts(setup: &Setup, cache: Option<&LayoutCache>, notice: &mut dyn FnMut(Notice<'_>)) {
    let Some(cache) = cache else { return };
    for error in setup.libraries.iter().filter_map(|library| library.keep(cache).err()) {
        notice(Notice::NotCached(&format!("{error:#}")));
    }
}

fn named(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.to_owned())
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread of the recording failed"))
}

/// How the threads are heard.
struct Told<'a> {
    bell: &'a Waker,
    errors: &'a mpsc::Receiver<String>,
    /// Records go on after some were dropped.
    resumed: &'a AtomicBool,
}

/// Waits until the time is up, the targets are gone, or someone says stop.
fn watch(live: Live<'_>, told: &Told<'_>) -> Result<()> {
    let Live { options, stop, setup, cache: _, attachment, report, notice } = live;
    let deadline = options.duration.map(|duration| Instant::now() + duration);
    let mut running: Vec<usize> = (0..setup.targets.len()).collect();
    while !stop.is_stopped() && !running.is_empty() {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            break;
        }
        let mut fds = vec![stop.waker().as_fd(), told.bell.as_fd()];
        let targets = running.iter().filter_map(|&at| setup.targets.get(at));
        fds.extend(targets.map(|target| -> BorrowedFd<'_> { target.process.exit_fd() }));
        wait_for(&fds, left).context("waiting for the end")?;
        told.bell.clear();
        if told.resumed.swap(false, Ordering::Acquire) {
            attachment.forget_what_was_sent()?;
        }
        tell(told.errors, report, notice);
        running.retain(|&at| {
            let Some(target) = setup.targets.get(at) else { return false };
            let exited = target.process.has_exited();
            if exited {
                let pid = target.process.pid();
                notice(Notice::TargetExited { pid });
                report
                    .targets
                    .iter_mut()
                    .filter(|target| target.pid == pid)
                    .for_each(|target| target.exited = true);
            }
            !exited
        });
    }
    Ok(())
}

fn tell(errors: &mpsc::Receiver<String>, report: &mut SessionReport, notice: &mut dyn FnMut(Notice<'_>)) {
    for error in errors.try_iter() {
        notice(Notice::WriteFailed(&error));
        report.errors.push(error);
    }
}

/// Takes what is left: until every hit is accounted for, or it is clear that this will not come true.
fn settle(attachment: &Attachment, drain: &mut Drain) -> Result<()> {
    let deadline = Instant::now() + SETTLE_LIMIT;
    loop {
        while drain.take_all() > 0 {}
        let mut open = false;
        for probe in attachment.probes() {
            let counters = attachment.counters(probe)?;
            let known: u64 = counters.iter().map(|cpu| cpu.lost_full).sum();
            let hits: u64 = counters.iter().map(|cpu| cpu.hits).sum();
            open |= hits > drain.taken().of_probe(probe.cookie).saturating_add(known);
        }
        if !open || Instant::now() >= deadline {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
}
