//! `ncclflow top` of processes: a session that keeps statistics and writes nothing.

use std::{
    ops::ControlFlow,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::{thread::CapabilitySet, time::ClockId};

use super::{
    quantities::each,
    top::{TopArgs, Watched, follow, print_once, show},
    whom::{may_trace, none_matched, one_is_there},
};
use crate::views::top::{Snapshot, Subject, WatchedProcess};
use flow::{session::SessionState, text::joined};
use inspect::{
    clock::now_ns,
    gpu::{self, GpuSamples},
    host::host_name,
    identity::{WhoOptions, read_process},
    layout_cache::default_folder,
    privileges,
    process::{Process, Users},
};
use recording::sinks::LiveStatistics;
use trace::{
    kernel::loader::{best_buffer, best_links, prepared},
    record::{LibraryInUse, Notice, RecordOptions, StopHandle, Targets, record},
};

/// News of the session's thread: what changes in what is known here.
type News = Box<dyn FnOnce(&mut Session) + Send>;

pub(super) fn watch(args: &TopArgs, started: Instant, stop: &StopHandle) -> Result<()> {
    may_trace()?;
    one_is_there(&each(&args.pids))?;
    let live = LiveStatistics::default();
    let targets = Targets::new(args.is_all(), &each(&args.pids), &args.filter.filter());
    let mut options = RecordOptions {
        statistics: Some(live.clone()),
        duration: args.duration,
        library: args.library.clone(),
        debug_files: args.debug.apply(),
        cache: default_folder(),
        ..RecordOptions::new(started, targets, best_buffer(), prepared(best_links()))
    };
    options.choice.level = args.level;
    let options = &options;
    let (sender, news) = mpsc::channel();
    thread::scope(|scope| {
        let session = thread::Builder::new().name("ncclflow-session".to_owned());
        let session = session
            .spawn_scoped(scope, move || session_thread(options, stop, &sender))
            .context("starting the session's thread")?;
        privileges::keep_only(CapabilitySet::empty());
        let shown = watch_session(live, stop, args, news);
        stop.stop();
        let outcome = session.join().map_err(|_| anyhow::anyhow!("the session's thread failed"))?;
        outcome.and(shown)
    })
}

fn session_thread(options: &RecordOptions, stop: &StopHandle, sender: &mpsc::Sender<News>) -> Result<()> {
    // Whoever does not listen any more has seen enough.
    let say = |news: News| drop(sender.send(news));
    let line = |line: String| say(Box::new(|session| session.line = Some(line)));
    let (mut counted, mut has_any) = (false, false);
    let mut notice = |notice: Notice<'_>| match notice {
        Notice::Found(setup) => {
            setup.passed_over.iter().for_each(|why| line(format!("not traced: {why}")));
            has_any = !setup.targets.is_empty();
            for target in &setup.targets {
                let libraries = target.libraries.iter().filter_map(|&index| setup.libraries.get(index));
                say(watched(&target.process, libraries));
            }
        }
        Notice::Joined { process, library } => {
            has_any = true;
            say(watched(process, [library]));
        }
        Notice::NotSeen(what) => line((*what).to_owned()),
        Notice::PassedOver(why) => line(format!("not traced: {why}")),
        Notice::LibraryChanged(what) => line(what.to_owned()),
        Notice::Recording { .. } => {
            // With `--all` processes join after `Found`.
            if !has_any {
                line(none_matched());
            }
            say(Box::new(|session| session.armed = true));
        }
        Notice::TargetExited { pid } => say(Box::new(move |session| {
            session.line = Some(format!("process {pid} exited"));
            if let Some(process) = session.subject.processes.get_mut(&pid) {
                process.has_exited = true;
            }
        })),
        Notice::WriteFailed(error) | Notice::Failed(error) => line(error.to_owned()),
        // All that came is counted; probes are being detached.
        Notice::Detaching { .. } if !counted => {
            counted = true;
            say(Box::new(|session| session.over = true));
        }
        // Notices about files, of which there are none.
        _ => {}
    };
    let report = record(options, stop, &mut notice)?.report;
    if report.state == SessionState::Failed {
        bail!("the session has failed: {}", joined(report.errors.shown(), "; "));
    }
    Ok(())
}

/// Returns the news that a process is watched, with NCCL's versions.
fn watched<'a>(process: &Process, libraries: impl IntoIterator<Item = &'a LibraryInUse>) -> News {
    let versions = libraries.into_iter().filter_map(|library| library.resolved.resolution.nccl_version);
    let pid = process.pid();
    let facts = read_process(pid, process.started(), &host_name(), &Users::default(), &WhoOptions::default());
    let whose = facts.map(|facts| facts.whose);
    let known = WatchedProcess::new(pid, process.name(), joined(versions, ","), whose.as_ref());
    Box::new(move |session| drop(session.subject.processes.insert(pid, known)))
}

/// Waits for the session to begin, and shows it until somebody wants it to end.
fn watch_session(
    live: LiveStatistics,
    stop: &StopHandle,
    args: &TopArgs,
    news: mpsc::Receiver<News>,
) -> Result<()> {
    let subject = Subject { host: host_name(), level: Some(args.level), ..Subject::default() };
    if let Some(what) = gpu::not_known().filter(|_| !args.no_gpus) {
        tell!("{what}");
    }
    let gpus = (!args.no_gpus).then(GpuSamples::start).transpose().context("starting a thread")?;
    let gpus = gpus.unwrap_or_default();
    let mut session = Session { live, gpus, news, subject, line: None, armed: false, over: false };
    while !session.armed {
        let Ok(news) = session.news.recv() else { return Ok(()) };
        news(&mut session);
        if session.over {
            // The session tells why itself.
            return Ok(());
        }
        if let Some(line) = session.line.take() {
            tell!("ncclflow: {line}");
        }
    }
    session.gpus.begin();
    if args.once {
        return session.once(args, stop);
    }
    show(&mut session, None, args, stop)?;
    if !session.over {
        tell!("detaching; a second Ctrl-C leaves that to the kernel");
    }
    Ok(())
}

/// A session, and what it has told.
struct Session {
    live: LiveStatistics,
    gpus: GpuSamples,
    news: mpsc::Receiver<News>,
    subject: Subject,
    /// The latest line, until the user has seen it.
    line: Option<String>,
    armed: bool,
    over: bool,
}

impl Session {
    /// Watches for one interval, or until the processes are gone, and prints.
    fn once(&mut self, args: &TopArgs, stop: &StopHandle) -> Result<()> {
        let before = Snapshot { at_ns: now_ns(ClockId::Monotonic), ..Snapshot::default() };
        tell!("watching for {} s", args.interval.as_secs_f64());
        let earlier = follow(self, &before, args.interval, stop)?;
        let at_ns = now_ns(ClockId::Monotonic);
        stop.stop();
        // What came until then is still being counted.
        while !self.over
            && let Ok(news) = self.news.recv_timeout(Duration::from_mins(1))
        {
            news(self);
        }
        let now = Snapshot { at_ns, ..self.snapshot() };
        print_once(args, &self.subject, [&before, &earlier, &now], None)
    }
}

impl Watched for Session {
    fn read_on(&mut self, mut wait: Duration) -> Result<ControlFlow<()>> {
        while !self.over {
            match self.news.recv_timeout(wait) {
                Ok(news) => news(self),
                Err(RecvTimeoutError::Timeout) => return Ok(ControlFlow::Continue(())),
                Err(RecvTimeoutError::Disconnected) => self.over = true,
            }
            wait = Duration::ZERO;
        }
        if self.subject.has_ended() {
            // What was there stays on the screen, until somebody has seen it.
            self.line = None;
            return Ok(ControlFlow::Continue(()));
        }
        Ok(ControlFlow::Break(()))
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn snapshot(&mut self) -> Snapshot {
        let gpus = self.gpus.latest();
        Snapshot { at_ns: now_ns(ClockId::Monotonic), statistics: self.live.read(), gpus }
    }

    fn subject(&self) -> &Subject {
        &self.subject
    }

    fn line(&self) -> Option<String> {
        self.line.clone()
    }

    fn key_pressed(&mut self) {
        self.line = None;
    }
}
