//! The time between arming and disarming: a thread that drains, a thread that writes, and this one, which sees to the end.

use std::{
    sync::{Arc, atomic::AtomicBool, mpsc},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use rustix::time::ClockId;

use super::{
    export::export,
    follow::{Follower, Scene},
    hang::HangWatch,
    pipeline::Pipeline,
    recorder::{Notice, RecordOptions, StopHandle, ms_since},
    setup::Setup,
    takers::{Complaints, keep_capture, write_flows},
    told::Told,
    watch::{Subjects, Watch},
    windows::Windows,
};
use crate::{
    capture::CaptureWriter,
    clock::now_ns,
    kernel::{
        loader::Attachment,
        stream::{Drain, Outlet, ProbeCounts, Queue, Waker},
    },
    layout_cache::LayoutCache,
    sinks::{ApiOutputOptions, LostLines, OutputDir, SessionReport},
};

/// How long the end waits for records that a CPU is still putting together.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

/// What a recording has to do with while it goes on.
pub(super) struct Live<'a, 'f> {
    pub(super) options: &'a RecordOptions,
    pub(super) stop: &'a StopHandle,
    pub(super) setup: &'a Setup,
    /// Finds processes while the recording goes on, with `--all`.
    pub(super) follower: Option<&'a mut Follower<'f>>,
    /// Where `session.json` is.
    pub(super) dir: Option<&'a OutputDir>,
    /// Where what was resolved is kept, once the session is open.
    pub(super) cache: Option<&'a LayoutCache>,
    pub(super) attachment: &'a mut Attachment,
    pub(super) report: &'a mut SessionReport,
    pub(super) notice: &'a mut dyn FnMut(Notice<'_>),
}

/// What windows lack, whose files are not the pipeline's any more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WindowsLost {
    pub(super) lines: LostLines,
    /// Aggregates that there was no room for.
    pub(super) aggregates: u64,
    /// Windows that were opened late, as there was no room for them.
    pub(super) late: u64,
}

/// What was taken in.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) pipeline: Pipeline,
    pub(super) capture: Option<CaptureWriter>,
    /// Records that the pipeline did not get, as it had not kept up.
    pub(super) dropped: ProbeCounts,
    pub(super) windows_lost: WindowsLost,
    /// Records that the capture lacks.
    pub(super) not_captured: u64,
    /// Most bytes that waited for the pipeline at a time.
    pub(super) queue_peak: usize,
}

/// Opens the session, takes records until it is to end, closes it, and takes what is left.
pub(super) fn run(
    live: Live<'_, '_>,
    api: ApiOutputOptions,
    pipeline: Pipeline,
    capture: Option<CaptureWriter>,
) -> Result<Taken> {
    let Live { options, stop, setup, mut follower, dir, cache, attachment, report, notice } = live;
    if let Some(follower) = &mut follower {
        follower.round(&mut Scene { attachment, report, notice })?;
    }
    let (drain_stop, nudge, bell) = (Waker::new()?, Waker::new()?, Waker::new()?);
    let (sender, news) = mpsc::channel();
    let (commands, to_writer) = mpsc::channel();
    let (swaps, swaps_to_writer) = mpsc::channel();
    let (jobs, to_exporter) = mpsc::channel();
    let parts = options.windows.as_ref().zip(dir);
    let mut windows = parts.map(|(windows, dir)| Windows::new(windows, dir, api, jobs)).transpose()?;
    let budget = dir.and_then(OutputDir::budget).cloned();
    let complaints = Complaints { sender, bell: bell.clone(), budget };
    let flows = Arc::new(Queue::new(options.queue_bytes));
    let raw = capture.is_some().then(|| Arc::new(Queue::new(options.queue_bytes)));
    let resumed = Arc::new(AtomicBool::new(false));
    let outlet = |queue: &Arc<Queue>| {
        Outlet::new(Arc::clone(queue)).telling_of_resumption(Arc::clone(&resumed), bell.clone())
    };
    let outlets = std::iter::once(&flows).chain(&raw).map(outlet).collect();
    let mut drain = Drain::new(attachment.take_source()?, outlets);
    let dropped = drain.outlets().first().map(Outlet::shared_dropped).unwrap_or_default();
    let taken_total = drain.taken_total();
    thread::scope(|scope| {
        let close_all = || {
            drain_stop.wake();
            flows.close();
            if let Some(raw) = &raw {
                raw.close();
            }
        };
        let started = (|| {
            let writer = named("ncclflow-write").spawn_scoped(scope, {
                let (flows, complaints) = (&flows, &complaints);
                move || write_flows(flows, pipeline, complaints, &to_writer, &swaps_to_writer)
            })?;
            let keeper = match (capture, &raw) {
                (Some(capture), Some(raw)) => Some(
                    named("ncclflow-keep").spawn_scoped(scope, || keep_capture(raw, capture, &complaints))?,
                ),
                _ => None,
            };
            let drain = named("ncclflow-drain").spawn_scoped(scope, || {
                let drained = drain.run(&drain_stop, &nudge);
                bell.wake();
                (drain, drained)
            })?;
            // It ends with the windows, which hold the other end.
            let exporter = named("ncclflow-export").spawn_scoped(scope, {
                let complaints = &complaints;
                move || export(&to_exporter, options.compress, complaints)
            })?;
            Ok::<_, anyhow::Error>((writer, keeper, drain, exporter))
        })();
        // Whatever fails, the threads must end, or the scope waits for them.
        let (writer, keeper, drainer, exporter) =
            started.inspect_err(|_| close_all()).context("starting a thread")?;
        let told = Told {
            bell: &bell,
            complaints: &complaints,
            news: &news,
            resumed: &resumed,
            commands: &commands,
            swaps: &swaps,
            flows: &flows,
            nudge: &nudge,
            taken_total,
            dropped,
        };
        // With windows it is for them to open it.
        let opened = if windows.is_none() { attachment.arm() } else { Ok(()) };
        let watched = opened.and_then(|()| {
            report.attach.armed_ms = ms_since(options.started);
            report.attach.armed_monotonic_ns = Some(now_ns(ClockId::Monotonic));
            let probes = attachment.probes().iter().filter(|probe| probe.part.is_none()).count();
            notice(Notice::Recording { probes });
            keep_layouts(setup, cache, notice);
            let subjects = follower.map_or(Subjects::Named(setup), Subjects::All);
            let hang = options.on_hang.map(|limit| HangWatch::new(limit, options.debug_files.clone()));
            let mut watch = Watch { options, stop, dir, subjects, windows: windows.as_mut(), hang };
            watch.run(&mut Scene { attachment, report, notice }, &told)
        });
        let totals = windows.map(|windows| windows.finish(&mut Scene { attachment, report, notice }, &told));
        let closed = attachment.disarm();
        drain_stop.wake();
        let (mut drain, drained) = join(drainer).inspect_err(|_| close_all())?;
        let settled = settle(attachment, &mut drain);
        drain.close(|tgid| attachment.lost_by_process(tgid).unwrap_or(0));
        let (mut pipeline, keeper) = (join(writer)?, keeper.map(join).transpose()?);
        let exported = join(exporter)?;
        told.hear(report, notice);
        watched.and(closed).and(settled)?;
        let mut windows_lost = WindowsLost::default();
        if let Some((totals, lost)) = totals.transpose()? {
            pipeline = totals.unwrap_or(pipeline);
            windows_lost = WindowsLost { aggregates: exported.aggregates_over_max_size, ..lost };
        }
        drained.context("waiting for records")?;
        let (mut dropped, mut queue_peak, mut not_kept) = (ProbeCounts::default(), 0, 0);
        if let Some((first, rest)) = drain.outlets().split_first() {
            dropped = first.dropped();
            queue_peak = first.peak();
            not_kept = rest.iter().map(|outlet| outlet.dropped().total()).sum();
        }
        let not_captured = not_kept + keeper.as_ref().map_or(0, CaptureWriter::lost);
        Ok(Taken { pipeline, capture: keeper, dropped, windows_lost, not_captured, queue_peak })
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
