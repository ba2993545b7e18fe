//! Windows: parts of a recording with folders of their own, opened and closed by a flag file, a signal, or
//! the time.
//!
//! Between windows the probes stay attached and the session's word in the map is 0: a hit costs its trap, and
//! nothing else happens. A window begins without memory of the one before: what walks send once for a
//! communicator is sent again. It ends when every hit that was counted while it was open has come to the
//! writer, or is accounted for as lost.

use std::{
    ffi::OsString,
    fs, io, mem,
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    time::ClockId,
};

use super::{
    accounts::Baseline,
    consumers::join,
    limit::keep_room,
    mailbox::{EventSender, SessionEvent},
    options::{Notice, WindowOptions},
    pipeline::Pipeline,
    recorder::Recording,
    report::{complete_report, write_results},
    setup::Bindings,
    threads::{Taken, Threads},
};
use crate::{
    clock::now_ns,
    kernel::stream::ProbeCounts,
    recording::{Event, FirstHit},
    sinks::{OutputDir, SessionFiles, SessionReport, WindowEnd, WindowReport, is_over_max_size},
};
use flow::schema::{CommunicatorReport, LossReport};

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
    /// Records that the recording does not get, counted until then.
    not_kept: u64,
    /// What had the writer's place before.
    resting: Pipeline,
}

#[derive(Debug)]
pub(super) struct Windows<'a> {
    options: &'a WindowOptions,
    flag: Option<FlagFile>,
    dir: OutputDir,
    bindings: Bindings,
    events: EventSender,
    to_exporter: Sender<(Taken, SessionReport)>,
    exporter: JoinHandle<u64>,
    state: State,
    number: u32,
    /// The accounts of all windows. Takes no records.
    totals: Pipeline,
    /// What they lack. Their files are no longer the pipeline's.
    lost: LossReport,
    /// There was no room for the next one.
    is_late: bool,
}

impl<'a> Windows<'a> {
    /// Without an output folder there are no windows.
    pub(super) fn new(
        recording: &Recording<'a>,
        pipeline: &Pipeline,
        bindings: Bindings,
        events: &EventSender,
    ) -> Result<Option<Self>> {
        let (Some(options), Some(dir)) = (&recording.options.windows, &recording.dir) else {
            return Ok(None);
        };
        let flag = options.flag.as_deref().map(FlagFile::watch).transpose()?;
        let [dir, main] = [dir.try_clone(), dir.try_clone()];
        let context = "keeping the output folder open";
        let (dir, main) = (dir.context(context)?, main.context(context)?);
        let (to_exporter, closed) = mpsc::channel();
        let (compress, sender) = (recording.options.compress, events.clone());
        let exporter = thread::Builder::new().name("ncclflow-export".to_owned());
        let exporter = exporter.spawn(move || export(&closed, compress, &sender));
        Ok(Some(Self {
            options,
            flag,
            dir,
            bindings,
            events: events.clone(),
            to_exporter,
            exporter: exporter.context("starting a thread")?,
            state: State::Closed,
            number: 0,
            totals: pipeline.renewed(SessionFiles::new(main, recording.api()), None),
            lost: LossReport::default(),
            is_late: false,
        }))
    }

    /// Readable when a window may have to be opened or closed.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.flag.as_ref().map(|flag| flag.events.as_fd())
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
        recording: &mut Recording<'_>,
        threads: &Threads,
        is_full: bool,
        rotate: bool,
    ) -> Result<()> {
        let has_gone = self.flag.as_ref().is_some_and(FlagFile::has_gone);
        let is_wanted = self.flag.as_ref().is_none_or(FlagFile::is_there);
        if let State::Open(open) = &self.state {
            let is_late = self.options.max_duration.is_some_and(|limit| open.since.elapsed() >= limit);
            let ends = [
                (has_gone || !is_wanted, WindowEnd::Flag),
                (is_full, WindowEnd::MaxOps),
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

    /// The recording ends: closes what is open, and gives the accounts of all windows, and what they lack.
    pub(super) fn finish(
        mut self,
        recording: &mut Recording<'_>,
        threads: &Threads,
    ) -> Result<(Pipeline, LossReport)> {
        let closed = self.close(WindowEnd::Recording, recording, threads);
        // It ends when no more windows come. Whatever fails, it has ended first.
        drop(self.to_exporter);
        let aggregates = join(self.exporter);
        closed?;
        Ok((self.totals, LossReport { aggregates_over_max_size: aggregates?, ..self.lost }))
    }

    fn open(&mut self, recording: &mut Recording<'_>, threads: &Threads) -> Result<()> {
        let opened_ms = now_ns(ClockId::Realtime) / 1_000_000;
        let folder = format!("window_{:04}_{opened_ms}", self.number + 1);
        let room = keep_room(&self.dir, &recording.report, recording.attachment.probes().len(), true);
        let dir = match self.dir.window(&folder, room) {
            // It is opened when a window before it is complete, and can be removed.
            Err(error) if is_over_max_size(&error) => {
                self.lost.windows_late += u64::from(!mem::replace(&mut self.is_late, true));
                self.events.look_at_budget();
                return Ok(());
            }
            opened => opened.with_context(|| format!("making the folder `{folder}`"))?,
        };
        self.is_late = false;
        self.number += 1;
        recording.attachment.forget_what_was_sent()?;
        let baseline = Baseline::of(&recording.attachment)?;
        let mut kept = recording.begin_recording(&dir, &self.bindings)?;
        let hits = baseline.hits().map(|(probe, cpu, hit)| FirstHit { probe, cpu, hit }).collect();
        kept.push_event(&Event::HitsBegin { hits }).context("beginning a window's recording")?;
        let files = SessionFiles::new(dir, recording.api());
        let mut next = self.totals.renewed(files, self.options.max_ops);
        for (probe, cpu, hit) in baseline.hits() {
            next.gaps.begin_at(probe, cpu, hit);
        }
        let resting = threads.swap(next)?;
        threads.swap_recording(Some(kept))?;
        recording.attachment.arm()?;
        let report = WindowReport {
            number: self.number,
            folder,
            opened_unix_ms: opened_ms,
            opened_monotonic_ns: now_ns(ClockId::Monotonic),
            closed_monotonic_ns: None,
            closed_by: None,
            ops_left_out: 0,
        };
        (recording.notice)(Notice::WindowOpened(&report));
        let (since, dropped, not_kept) = (Instant::now(), threads.dropped(), threads.not_kept());
        self.state = State::Open(Box::new(Open { report, since, baseline, dropped, not_kept, resting }));
        Ok(())
    }

    fn close(&mut self, end: WindowEnd, recording: &mut Recording<'_>, threads: &Threads) -> Result<()> {
        let State::Open(open) = mem::replace(&mut self.state, State::Closed) else { return Ok(()) };
        let Open { mut report, since: _, baseline, dropped, not_kept, resting } = *open;
        // Before the word is changed, as `opened_monotonic_ns` is after it: what is hit between them is
        // recorded for certain.
        report.closed_monotonic_ns = Some(now_ns(ClockId::Monotonic));
        recording.attachment.disarm()?;
        report.closed_by = Some(end);
        threads.settle(&recording.attachment)?;
        let pipeline = threads.swap(resting)?;
        report.ops_left_out = pipeline.output.left_out;
        let dropped = threads.dropped().since(&dropped);
        let kept = threads.swap_recording(None)?;
        let not_recorded = threads.not_kept().saturating_sub(not_kept);
        let mut taken = Taken { pipeline, dropped, recording: kept, not_recorded, ..Taken::default() };
        let mut session = recording.report.clone();
        session.windows.clear();
        session.max_size = None;
        session.window = Some(report.clone());
        complete_report(&mut session, &recording.attachment, &mut taken, &baseline)?;
        recording.who.complete(&mut session);
        self.lost.records_not_recorded += session.loss.records_not_recorded;
        self.lost.lines_lost += session.loss.lines_lost;
        self.lost.lines_over_max_size += session.loss.lines_over_max_size;
        self.totals.absorb(&taken.pipeline);
        (recording.notice)(Notice::WindowClosed(&report, &session));
        recording.report.windows.push(report);
        let sent = self.to_exporter.send((taken, session));
        sent.map_err(|_| anyhow!("the thread that completes windows has failed"))
    }
}

/// Completes the folders of windows that are over, beside the recording, until no more come. Gives the number
/// of aggregates that there was no room for.
fn export(windows: &Receiver<(Taken, SessionReport)>, compress: bool, events: &EventSender) -> u64 {
    let mut aggregates_over_max_size = 0;
    for (taken, mut report) in windows {
        let opened_ms = report.window.as_ref().map_or(0, |window| window.opened_unix_ms);
        let fail = |error: String| events.send(SessionEvent::WriteFailed(error));
        let ranks = taken.pipeline.files().ranks();
        let dir = taken.pipeline.files().dir().map(OutputDir::try_clone);
        let written = write_results(taken, &mut report, compress, &mut |notice| {
            if let Notice::WriteFailed(error) = notice {
                fail(error.to_owned());
            }
        });
        if let Err(error) = written {
            fail(format!("writing a window's results: {error:#}"));
        }
        aggregates_over_max_size += report.loss.aggregates_over_max_size;
        let finish = |dir: io::Result<OutputDir>| {
            let dir = dir?;
            let linked = link_by_process(&dir, &ranks, opened_ms);
            // From here on it may be removed, to make room for others.
            dir.complete();
            linked
        };
        match dir.map(finish) {
            Some(Err(error)) if !is_over_max_size(&error) => {
                fail(format!("naming a window's files by their processes: {error}"));
            }
            _ => {}
        }
        events.look_at_budget();
    }
    aggregates_over_max_size
}

/// Gives the one file of each rank a second name, by its process and the window:
/// `flow_rank0_pid77_1755877674248.json`. Under these names the files of many windows and hosts can lie in
/// one folder.
fn link_by_process(dir: &OutputDir, ranks: &[CommunicatorReport], opened_ms: u64) -> io::Result<()> {
    for rank in ranks {
        let folder = dir.open_subfolder(&rank.folder)?;
        let tag = format!("pid{}_{opened_ms}", rank.pid);
        let number = rank.rank;
        for (stem, extension) in [
            ("flow_rank", "json"),
            ("api_rank", "jsonl"),
            ("api_rank", "jsonl.gz"),
            ("megatrace_rank", "log"),
        ] {
            let name = format!("{stem}{number}.{extension}");
            match folder.link(&name, &format!("{stem}{number}_{tag}.{extension}")) {
                // Which of them there is depends on the level; large ones are not aggregated.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                linked => linked?,
            }
        }
    }
    Ok(())
}

/// A file that says, by being there, that a window is to be open. Of a file system that tells us nothing (NFS,
/// where another host makes the file) it is asked from time to time.
#[derive(Debug)]
struct FlagFile {
    path: PathBuf,
    name: OsString,
    /// Readable when something happens in its folder.
    events: OwnedFd,
}

impl FlagFile {
    /// Its folder must exist.
    fn watch(path: &Path) -> Result<Self> {
        let name =
            path.file_name().with_context(|| format!("`{}` names no file", path.display()))?.to_owned();
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let events =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).context("making an inotify")?;
        let wanted = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::MOVED_FROM;
        inotify::add_watch(&events, folder, wanted | WatchFlags::ONLYDIR)
            .with_context(|| format!("cannot watch the folder `{}` of the flag file", folder.display()))?;
        Ok(Self { path: path.to_owned(), name, events })
    }

    /// Whether it is there; a link that leads nowhere is a file that is.
    fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok()
    }

    /// Whether it has gone since the last time, though it may be there again.
    fn has_gone(&self) -> bool {
        let mut buffer = [const { MaybeUninit::uninit() }; 4096];
        let mut reader = inotify::Reader::new(&self.events, &mut buffer);
        let mut gone = false;
        // An error is that there are no more.
        while let Ok(event) = reader.next() {
            let is_it = event.file_name().is_some_and(|name| name.to_bytes() == self.name.as_bytes());
            gone |= is_it && event.events().intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_goes_and_comes_again_unseen() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("flag");
        let flag = FlagFile::watch(&path).unwrap();
        assert!(!flag.is_there() && !flag.has_gone());
        fs::write(&path, [])?;
        assert!(flag.is_there() && !flag.has_gone());
        fs::write(folder.path().join("other"), [])?;
        fs::remove_file(folder.path().join("other"))?;
        assert!(!flag.has_gone(), "another file has");
        fs::remove_file(&path)?;
        fs::write(&path, [])?;
        assert!(flag.is_there() && flag.has_gone() && !flag.has_gone());
        assert!(FlagFile::watch(&folder.path().join("no/such/flag")).is_err());
        Ok(())
    }
}
