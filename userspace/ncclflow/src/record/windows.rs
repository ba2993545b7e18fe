//! Windows: parts of a recording with folders of their own, opened and closed by a flag file, a signal, or
//! the time.
//!
//! Between windows the probes stay attached and the session's word in the map is 0: a hit costs its trap, and
//! nothing else happens. A window begins without memory of the one before: what walks send once for a
//! communicator is sent again. It ends when every hit that was counted while it was open has come to the
//! writer, or is accounted for as lost.

use std::{
    os::fd::{AsFd as _, BorrowedFd},
    sync::mpsc::Sender,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, anyhow};
use ncclflow_common::ProbeCounters;
use rustix::time::ClockId;

use super::{
    flag_file::FlagFile,
    follow::Scene,
    limit::keep_room,
    mailbox::NextPipeline,
    options::{Notice, WindowOptions},
    pipeline::Pipeline,
    report::{Baseline, complete_report},
    results::ClosedWindow,
    session::{Taken, WindowsLost},
    threads::ThreadChannels,
};
use crate::{
    clock::now_ns,
    kernel::stream::ProbeCounts,
    sinks::{
        ApiOutputOptions, LostLines, OutputDir, SessionFiles, WindowEnd, WindowReport, is_over_max_size,
    },
};
use flow::schema::LossReport;

/// How often the flag file is asked for where its folder tells nothing.
const ASK: Duration = Duration::from_millis(250);

/// How often it is asked whether there is room for a window that cannot be opened without.
const ASK_FOR_ROOM: Duration = Duration::from_millis(100);

#[derive(Debug)]
enum State {
    Closed,
    Open(Box<Open>),
    /// It was closed by a limit, and does not open again before the flag has gone.
    Spent,
}

#[derive(Debug)]
struct Open {
    report: WindowReport,
    since: Instant,
    baseline: Baseline,
    dropped: ProbeCounts,
    /// What had the writer's place before.
    resting: Pipeline,
}

/// The windows of a recording.
#[derive(Debug)]
pub(super) struct Windows<'a> {
    options: &'a WindowOptions,
    flag: Option<FlagFile>,
    dir: OutputDir,
    api: ApiOutputOptions,
    exporter: Sender<ClosedWindow>,
    state: State,
    number: u32,
    /// The accounts of all windows.
    totals: Option<Pipeline>,
    lost: WindowsLost,
    /// There was no room for the next one.
    is_late: bool,
}

impl<'a> Windows<'a> {
    pub(super) fn new(
        options: &'a WindowOptions,
        dir: &OutputDir,
        api: ApiOutputOptions,
        exporter: Sender<ClosedWindow>,
    ) -> Result<Self> {
        Ok(Self {
            options,
            flag: options.flag.as_deref().map(FlagFile::watch).transpose()?,
            dir: dir.try_clone().context("keeping the output folder open")?,
            api,
            exporter,
            state: State::Closed,
            number: 0,
            totals: None,
            lost: WindowsLost::default(),
            is_late: false,
        })
    }

    /// Readable when a window may have to be opened or closed.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.flag.as_ref().map(|flag| flag.as_fd())
    }

    /// When to look again, at the latest.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let ask = self.flag.as_ref().map(|_| ASK);
        let ask_for_room = self.is_late.then_some(ASK_FOR_ROOM);
        let limit = match (&self.state, self.options.max_duration) {
            (State::Open(open), Some(limit)) => Some(limit.saturating_sub(open.since.elapsed())),
            _ => None,
        };
        ask.into_iter().chain(ask_for_room).chain(limit).min()
    }

    /// Opens and closes. `is_full`: the writer says that the window has as many ops as it may have. `rotate`:
    /// a new window is wanted.
    pub(super) fn step(
        &mut self,
        scene: &mut Scene<'_>,
        channels: &ThreadChannels,
        is_full: bool,
        rotate: bool,
    ) -> Result<()> {
        let has_gone = self.flag.as_ref().is_some_and(FlagFile::has_gone);
        let is_wanted = self.flag.as_ref().is_none_or(FlagFile::is_there);
        if let State::Open(open) = &self.state {
            let is_late = self.options.max_duration.is_some_and(|limit| open.since.elapsed() >= limit);
            let end = match () {
                () if has_gone || !is_wanted => Some(WindowEnd::Flag),
                () if is_full => Some(WindowEnd::MaxOps),
                () if is_late => Some(WindowEnd::MaxSecs),
                () if rotate => Some(WindowEnd::Signal),
                () => None,
            };
            if let Some(end) = end {
                self.close(end, scene, channels)?;
                let is_limit = matches!(end, WindowEnd::MaxOps | WindowEnd::MaxSecs);
                if is_limit && self.flag.is_some() {
                    self.state = State::Spent;
                }
            }
        }
        if matches!(self.state, State::Spent) && (has_gone || !is_wanted) {
            self.state = State::Closed;
        }
        if matches!(self.state, State::Closed) && is_wanted {
            self.open(scene, channels)?;
        } else {
            self.is_late = false;
        }
        Ok(())
    }

    /// The recording ends: closes what is open, and gives the accounts of all windows, and what they lack.
    pub(super) fn finish(
        mut self,
        scene: &mut Scene<'_>,
        channels: &ThreadChannels,
    ) -> Result<(Option<Pipeline>, WindowsLost)> {
        self.close(WindowEnd::Recording, scene, channels)?;
        Ok((self.totals, self.lost))
    }

    fn open(&mut self, scene: &mut Scene<'_>, channels: &ThreadChannels) -> Result<()> {
        let opened_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let opened_ms = u64::try_from(opened_ms).unwrap_or(u64::MAX);
        let folder = format!("window_{:04}_{opened_ms}", self.number + 1);
        let room = keep_room(&self.dir, scene.report, scene.attachment.probes().len(), true);
        let dir = match self.dir.window(&folder, room) {
            // It is opened when a window before it is complete, and can be removed.
            Err(error) if is_over_max_size(&error) => {
                self.lost.late += u64::from(!std::mem::replace(&mut self.is_late, true));
                channels.event_sender().look_at_budget();
                return Ok(());
            }
            opened => opened.with_context(|| format!("making the folder `{folder}`"))?,
        };
        self.is_late = false;
        self.number += 1;
        scene.attachment.forget_what_was_sent()?;
        let baseline = Baseline::of(scene.attachment)?;
        let next = NextPipeline::New {
            files: Box::new(SessionFiles::new(dir, self.api)),
            limit: self.options.max_ops,
            begin: baseline.hits().collect(),
        };
        let resting = channels.swap(next)?;
        if self.totals.is_none() {
            let main = self.dir.try_clone().context("keeping the output folder open")?;
            self.totals = Some(resting.renewed(SessionFiles::new(main, self.api), None));
        }
        scene.attachment.arm()?;
        let report = WindowReport {
            number: self.number,
            folder,
            opened_unix_ms: opened_ms,
            opened_monotonic_ns: now_ns(ClockId::Monotonic),
            closed_monotonic_ns: None,
            closed_by: None,
            ops_left_out: 0,
        };
        (scene.notice)(Notice::WindowOpened(&report));
        let (since, dropped) = (Instant::now(), channels.dropped());
        self.state = State::Open(Box::new(Open { report, since, baseline, dropped, resting }));
        Ok(())
    }

    fn close(&mut self, end: WindowEnd, scene: &mut Scene<'_>, channels: &ThreadChannels) -> Result<()> {
        let State::Open(open) = std::mem::replace(&mut self.state, State::Closed) else { return Ok(()) };
        let Open { mut report, since: _, baseline, dropped, resting } = *open;
        // Before the word is changed, as `opened_monotonic_ns` is after it: what is hit between them is
        // recorded for certain.
        report.closed_monotonic_ns = Some(now_ns(ClockId::Monotonic));
        scene.attachment.disarm()?;
        report.closed_by = Some(end);
        channels.settle(scene.attachment)?;
        let pipeline = channels.swap(NextPipeline::This(Box::new(resting)))?;
        report.ops_left_out = pipeline.left_out();
        let mut taken = Taken {
            pipeline,
            capture: None,
            dropped: channels.dropped().since(&dropped),
            windows_lost: WindowsLost::default(),
            not_captured: 0,
            queue_peak: 0,
        };
        let mut session = scene.report.clone();
        session.windows.clear();
        session.max_size = None;
        session.window = Some(report.clone());
        complete_report(&mut session, scene.attachment, &mut taken, &baseline)?;
        let LossReport { lines_lost: lines, lines_over_max_size: over_max_size, .. } = session.loss;
        self.lost.lines += LostLines { lines, over_max_size };
        if let Some(totals) = &mut self.totals {
            totals.absorb(&taken.pipeline);
        }
        (scene.notice)(Notice::WindowClosed(&report, &session));
        scene.report.windows.push(report);
        let window = ClosedWindow {
            taken,
            report: session,
            opened_ms: scene.report.windows.last().map_or(0, |w| w.opened_unix_ms),
        };
        self.exporter.send(window).map_err(|_| anyhow!("the thread that completes windows has failed"))
    }
}

impl Baseline {
    /// Probe, CPU and hits until now, of those that were hit.
    fn hits(&self) -> impl Iterator<Item = (u16, u32, u64)> {
        self.counters().iter().enumerate().flat_map(|(cookie, cpus)| {
            let cookie = u16::try_from(cookie).unwrap_or(u16::MAX);
            cpus.iter().enumerate().filter(|(_, counters)| counters.hits > 0).map(
                move |(cpu, ProbeCounters { hits, .. })| {
                    (cookie, u32::try_from(cpu).unwrap_or(u32::MAX), *hits)
                },
            )
        })
    }
}
