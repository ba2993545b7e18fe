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
    follow::{Follower, Scene},
    pipeline::Pipeline,
    recorder::{Notice, RecordOptions, StopHandle, ms_since},
    report::now_ns,
    setup::Setup,
    takers::{Command, Complaints, News, keep_capture, write_flows},
};
use crate::{
    capture::CaptureWriter,
    layout_cache::LayoutCache,
    loader::Attachment,
    sink::{OutputDir, SessionReport},
    stream::{Account, Drain, Outlet, Queue, Waker, wait_for},
};

/// How often the node is looked through for new processes.
const ROUND: Duration = Duration::from_millis(500);

/// How often `session.json` is brought up to date while processes come and go, at most.
const REPORT: Duration = Duration::from_secs(2);

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
    pub(super) dir: &'a OutputDir,
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
pub(super) fn run(live: Live<'_, '_>, pipeline: Pipeline, capture: Option<CaptureWriter>) -> Result<Taken> {
    let Live { options, stop, setup, mut follower, dir, cache, attachment, report, notice } = live;
    if let Some(follower) = &mut follower {
        follower.round(&mut Scene { attachment, report, notice })?;
    }
    let (drain_stop, bell) = (Waker::new()?, Waker::new()?);
    let (sender, errors) = mpsc::channel();
    let (commands, to_writer) = mpsc::channel();
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
            let writer = named("ncclflow-write").spawn_scoped(scope, {
                let (flows, complaints) = (&flows, &complaints);
                move || write_flows(flows, pipeline, complaints, &to_writer)
            })?;
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
            let told =
                Told { bell: &bell, news: &errors, resumed: &resumed, commands: &commands, flows: &flows };
            watch(Live { options, stop, setup, follower, dir, cache, attachment, report, notice }, &told)
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

/// How the threads are heard, and told.
struct Told<'a> {
    bell: &'a Waker,
    news: &'a mpsc::Receiver<News>,
    /// Records go on after some were dropped.
    resumed: &'a AtomicBool,
    commands: &'a mpsc::Sender<Command>,
    /// To be called when there is a command.
    flows: &'a Queue,
}

impl Told<'_> {
    /// Tells the writer that a process has ended, or is not there any more.
    fn ended(&self, tgid: u32) {
        let at_ns = now_ns(ClockId::Monotonic);
        // Nobody listens any more only when the recording is over.
        let _ = self.commands.send(Command::Ended { tgid, at_ns });
        self.flows.call();
    }
}

/// Waits until the time is up, the targets are gone, or someone says stop.
fn watch(live: Live<'_, '_>, told: &Told<'_>) -> Result<()> {
    if let Some(follower) = live.follower {
        let Live { options, stop, dir, attachment, report, notice, .. } = live;
        return watch_all(options, stop, dir, follower, Scene { attachment, report, notice }, told);
    }
    let Live { options, stop, setup, attachment, report, notice, .. } = live;
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
        tell(told.news, report, notice);
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

/// The same with `--all`: processes come and go, and none of them is the end.
fn watch_all(
    options: &RecordOptions,
    stop: &StopHandle,
    dir: &OutputDir,
    follower: &mut Follower<'_>,
    mut scene: Scene<'_>,
    told: &Told<'_>,
) -> Result<()> {
    let now = Instant::now();
    let deadline = options.duration.map(|duration| now + duration);
    let (mut next_round, mut next_report) = (now + ROUND, now);
    while !stop.is_stopped() {
        let now = Instant::now();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
        if left == Some(Duration::ZERO) {
            break;
        }
        let to_round = next_round.saturating_duration_since(now);
        let mut fds = vec![stop.waker().as_fd(), told.bell.as_fd()];
        fds.extend(follower.exit_fds());
        wait_for(&fds, Some(left.map_or(to_round, |left| left.min(to_round)))).context("waiting")?;
        told.bell.clear();
        if told.resumed.swap(false, Ordering::Acquire) {
            scene.attachment.forget_what_was_sent()?;
        }
        for tgid in follower.let_go(&mut scene) {
            told.ended(tgid);
        }
        for tgid in tell(told.news, scene.report, scene.notice) {
            if !follower.arrived(tgid, &mut scene) {
                told.ended(tgid);
            }
        }
        let now = Instant::now();
        if now >= next_round {
            follower.round(&mut scene)?;
            next_round = Instant::now() + ROUND;
        }
        if now >= next_report && follower.take_changed() {
            next_report = now + REPORT;
            if let Err(error) = scene.report.write(dir) {
                let error = format!("writing `session.json`: {error}");
                (scene.notice)(Notice::WriteFailed(&error));
                scene.report.errors.push(error);
            }
        }
    }
    Ok(())
}

/// Passes on what went wrong; gives back the processes that were news.
fn tell(
    news: &mpsc::Receiver<News>,
    report: &mut SessionReport,
    notice: &mut dyn FnMut(Notice<'_>),
) -> Vec<u32> {
    let mut processes = Vec::new();
    for news in news.try_iter() {
        match news {
            News::Failed(error) => {
                notice(Notice::WriteFailed(&error));
                report.errors.push(error);
            }
            News::Process(tgid) => processes.push(tgid),
        }
    }
    processes
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
