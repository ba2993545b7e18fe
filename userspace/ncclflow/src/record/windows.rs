//! Windows: parts of a recording with folders of their own, opened and closed by a flag file, a signal, or
//! the time.
//!
//! Between windows the probes stay attached and the session's word in the map is 0: a hit costs its trap, and
//! nothing else happens. A window begins without memory of the one before: what walks send once for a
//! communicator is sent again. It ends when every hit that was counted while it was open has come to the
//! recording, or is accounted for as lost. Its files can be made later.

use std::{
    mem,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use rustix::time::ClockId;

use super::{
    accounts::{Accounts, Baseline},
    files::FilesThread,
    keeper::OpenRecording,
    limit::keep_room,
    mailbox::EventSender,
    options::{Notice, StopHandle, WindowOptions},
    recorder::Recording,
    report::complete_accounts,
    threads::{Taken, Threads},
    window_export::{ClosedWindow, Exporter, WindowsExport},
    window_flag::FlagFile,
};
use crate::{
    clock::now_ns,
    kernel::stream::ProbeCounts,
    recording::Event,
    sinks::{FilesWhen, OutputDir, WindowEnd, WindowReport, is_over_max_size, window_name},
};

/// How often the flag file is asked for where its folder tells nothing.
const ASK: Duration = Duration::from_millis(250);

/// How often it is asked whether there is room for a window that cannot be opened without.
const ASK_FOR_ROOM: Duration = Duration::from_millis(100);

/// Windows whose files wait to be completed. While there are more, files of further ones are made when it is
/// their turn.
const MAX_FOLLOWED: usize = 2;

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
    dir: OutputDir,
    since: Instant,
    baseline: Baseline,
    dropped: ProbeCounts,
    files: Option<FilesThread>,
}

#[derive(Debug)]
pub(super) struct Windows<'a> {
    options: &'a WindowOptions,
    flag: Option<FlagFile>,
    dir: OutputDir,
    events: EventSender,
    stop: StopHandle,
    exporter: Exporter,
    state: State,
    number: u32,
    /// Of all windows.
    accounts: Accounts,
    /// Windows that were opened late.
    late: u64,
    /// There was no room for the next one.
    is_late: bool,
}

impl<'a> Windows<'a> {
    /// Without an output folder there are no windows.
    pub(super) fn new(
        recording: &Recording<'a>,
        stop: &StopHandle,
        events: &EventSender,
    ) -> Result<Option<Self>> {
        let (Some(options), Some(dir)) = (&recording.options.windows, &recording.dir) else {
            return Ok(None);
        };
        Ok(Some(Self {
            options,
            flag: options.flag.as_deref().map(FlagFile::watch).transpose()?,
            dir: dir.try_clone().context("keeping the output folder open")?,
            events: events.clone(),
            stop: stop.clone(),
            exporter: Exporter::start(recording.options.compress, events)?,
            state: State::Closed,
            number: 0,
            accounts: Accounts::default(),
            late: 0,
            is_late: false,
        }))
    }

    /// Readable when a window may have to be opened or closed.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.flag.as_ref().map(FlagFile::fd)
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

    /// Opens and closes. `full`: the number of a window that has as many ops as it may have. `rotate`: a new
    /// window is wanted.
    pub(super) fn step(
        &mut self,
        recording: &mut Recording<'_>,
        threads: &Threads,
        full: Option<u32>,
        rotate: bool,
    ) -> Result<()> {
        let has_gone = self.flag.as_ref().is_some_and(FlagFile::has_gone);
        let is_wanted = self.flag.as_ref().is_none_or(FlagFile::is_there);
        if let State::Open(open) = &self.state {
            let is_late = self.options.max_duration.is_some_and(|limit| open.since.elapsed() >= limit);
            let ends = [
                (has_gone || !is_wanted, WindowEnd::Flag),
                (full == Some(open.report.number), WindowEnd::MaxOps),
                (is_late, WindowEnd::MaxSecs),
                (rotate, WindowEnd::Signal),
            ];
            if let Some((_, end)) = ends.into_iter().find(|(is_reached, _)| *is_reached) {
                self.close(end, recording, threads)?;
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
            self.open(recording, threads)?;
        } else {
            self.is_late = false;
        }
        Ok(())
    }

    /// The recording ends: closes what is open, and gives the accounts of all windows. Their folders may
    /// still have to be completed.
    pub(super) fn finish(
        mut self,
        recording: &mut Recording<'_>,
        threads: &Threads,
    ) -> Result<(WindowsExport, Accounts)> {
        let closed = self.close(WindowEnd::Recording, recording, threads);
        recording.report.loss.windows_late = self.late;
        let export = self.exporter.close();
        closed.map(|()| (export, self.accounts))
    }

    fn open(&mut self, recording: &mut Recording<'_>, threads: &Threads) -> Result<()> {
        let opened_ms = now_ns(ClockId::Realtime) / 1_000_000;
        let folder = window_name(self.number + 1, opened_ms, &recording.report.host, None);
        let room = keep_room(&self.dir, &recording.report, recording.attachment.probes().len(), true);
        let dir = match self.dir.window(&folder, room) {
            // It is opened when a window before it is complete, and can be removed.
            Err(error) if is_over_max_size(&error) => {
                self.late += u64::from(!mem::replace(&mut self.is_late, true));
                self.events.look_at_budget();
                return Ok(());
            }
            opened => opened.with_context(|| format!("making the folder `{folder}`"))?,
        };
        self.is_late = false;
        self.number += 1;
        recording.attachment.forget_what_was_sent()?;
        let baseline = Baseline::of(&recording.attachment)?;
        let hits = baseline.next_hits();
        let mut report = WindowReport {
            number: self.number,
            folder,
            opened_unix_ms: opened_ms,
            opened_monotonic_ns: now_ns(ClockId::Monotonic),
            closed_monotonic_ns: None,
            closed_by: None,
            ops_left_out: 0,
        };
        let mut writer = recording.begin_recording(&dir, Some(&report))?;
        let begun = writer.push_event(&Event::HitsBegin { hits: hits.clone() });
        begun.context("beginning a window's recording")?;
        // Few threads make files at a time, however many windows wait.
        let mut options = recording.options.files;
        if options.when == FilesWhen::Live && self.exporter.waiting() > MAX_FOLLOWED {
            options.when = FilesWhen::End;
        }
        let window = (self.number, self.options.max_ops);
        let files = recording.start_files(&dir, options, &self.stop, &self.events, Some(window))?;
        let kept = OpenRecording { writer, reader: files.as_ref().map(FilesThread::feed) };
        threads.swap_recording(Some(kept), hits)?;
        recording.attachment.arm()?;
        report.opened_monotonic_ns = now_ns(ClockId::Monotonic);
        (recording.notice)(Notice::WindowOpened(&report));
        let (since, dropped) = (Instant::now(), threads.dropped());
        self.state = State::Open(Box::new(Open { report, dir, since, baseline, dropped, files }));
        Ok(())
    }

    fn close(&mut self, end: WindowEnd, recording: &mut Recording<'_>, threads: &Threads) -> Result<()> {
        let State::Open(open) = mem::replace(&mut self.state, State::Closed) else { return Ok(()) };
        let Open { mut report, dir, since: _, baseline, dropped, files } = *open;
        // Before the word is changed, as `opened_monotonic_ns` is after it: what is hit between them is
        // recorded for certain.
        report.closed_monotonic_ns = Some(now_ns(ClockId::Monotonic));
        recording.attachment.disarm()?;
        report.closed_by = Some(end);
        threads.settle(&recording.attachment)?;
        let (kept, accounts) = threads.swap_recording(None, Vec::new())?;
        let dropped = threads.dropped().since(&dropped);
        self.accounts.append(&accounts);
        let mut taken = Taken { accounts, kept, dropped, ..Taken::default() };
        let mut session = recording.report.of_window(&report);
        complete_accounts(&mut session, &recording.attachment, &mut taken, &baseline)?;
        recording.report.windows.push(report);
        let who = recording.who.report();
        self.exporter.push(ClosedWindow { dir, taken, report: session, files, who })
    }
}
