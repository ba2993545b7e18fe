//! `ncclflow top`

use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Write as _, stdout},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::time::ClockId;

use super::{signals::with_signals, top_args::TopArgs};
use crate::sinks::LiveStatistics;
use crate::{
    clock::now_ns,
    kernel::probe::Level,
    record::{LibraryInUse, Notice, Outcome, RecordOptions, StopHandle, record},
    views::top::{Feed, Rates, Snapshot, State, Subject, TopReport, print_table, rows, show},
};

pub(super) fn run(args: &TopArgs, started: Instant) -> Result<ExitCode> {
    if !args.once && !stdout().is_terminal() {
        bail!("standard output is no terminal: `--once` prints the table, `--once --json` all numbers");
    }
    let live = LiveStatistics::default();
    let options = args.options(started, live.clone());
    let asked = Asked {
        once: args.once,
        json: args.json,
        level: args.level,
        interval: args.interval,
        state: State::new(args.view, args.sort, args.rows.clone().unwrap_or_default()),
    };
    with_signals(move |stop| watch(&options, &live, stop, asked), ratatui::restore)?;
    Ok(ExitCode::SUCCESS)
}

/// What to do with what is seen.
struct Asked {
    once: bool,
    json: bool,
    level: Level,
    interval: Duration,
    state: State,
}

/// What the session's thread says.
enum News {
    /// A process is watched: its number, name, and NCCL's versions.
    Process(u32, String, String),
    Armed,
    Line(String),
    /// All that came is counted; probes are being detached.
    Counted,
}

fn watch(options: &RecordOptions, live: &LiveStatistics, stop: &StopHandle, asked: Asked) -> Result<()> {
    let (sender, news) = mpsc::channel();
    thread::scope(|scope| {
        let session = thread::Builder::new().name("ncclflow-session".to_owned());
        let session = session
            .spawn_scoped(scope, move || session_thread(options, stop, &sender))
            .context("starting the session's thread")?;
        let shown = follow(live, stop, asked, &news);
        stop.stop();
        let outcome = session.join().map_err(|_| anyhow::anyhow!("the session's thread failed"))?;
        outcome.and(shown)
    })
}

fn session_thread(options: &RecordOptions, stop: &StopHandle, sender: &mpsc::Sender<News>) -> Result<()> {
    // Whoever does not listen any more has seen enough.
    let say = |news: News| drop(sender.send(news));
    let mut counted = false;
    let mut notice = |notice: Notice<'_>| match notice {
        Notice::Found(setup) => {
            for target in &setup.targets {
                let libraries = target.libraries.iter().filter_map(|&index| setup.libraries.get(index));
                let (pid, name) = (target.process.pid(), target.process.name().to_owned());
                say(News::Process(pid, name, versions(libraries)));
            }
        }
        Notice::Joined { process, library } => {
            say(News::Process(process.pid(), process.name().to_owned(), versions([library])));
        }
        Notice::PassedOver(why) => say(News::Line(format!("passed over: {why}"))),
        Notice::Recording { .. } => say(News::Armed),
        Notice::TargetExited { pid } => say(News::Line(format!("process {pid} exited"))),
        Notice::NotCached(_)
        | Notice::WindowRemoved(_)
        | Notice::OverMaxSize(_)
        | Notice::WindowOpened(_)
        | Notice::WindowClosed(..)
        | Notice::Hang(_)
        | Notice::NothingToRotate => {}
        Notice::WriteFailed(error) => say(News::Line(error.to_owned())),
        Notice::Detaching { .. } if counted => {}
        Notice::Detaching { .. } => {
            counted = true;
            say(News::Counted);
        }
    };
    let outcome: Result<Outcome> = record(options, stop, &mut notice);
    outcome.map(drop)
}

fn versions<'a>(libraries: impl IntoIterator<Item = &'a LibraryInUse>) -> String {
    let versions = libraries.into_iter().filter_map(|library| library.resolution.nccl_version);
    versions.map(|version| version.to_string()).collect::<Vec<_>>().join(",")
}

/// Waits for the session to begin, and shows it until somebody wants it to end.
fn follow(live: &LiveStatistics, stop: &StopHandle, asked: Asked, news: &mpsc::Receiver<News>) -> Result<()> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut subject = Subject { host, level: Some(asked.level), processes: BTreeMap::new() };
    loop {
        match news.recv() {
            Ok(News::Process(pid, name, nccl)) => drop(subject.processes.insert(pid, (name, nccl))),
            Ok(News::Armed) => break,
            Ok(News::Line(line)) => tell!("ncclflow: {line}"),
            // The session says why itself.
            Ok(News::Counted) | Err(_) => return Ok(()),
        }
    }
    if asked.once {
        return once(live, stop, &asked, subject, news);
    }
    let mut feed = SessionFeed { live, stop, subject, news, line: None, over: false };
    show(&mut feed, asked.state, asked.interval).context("the terminal")?;
    tell!("detaching; a second Ctrl-C leaves that to the kernel");
    Ok(())
}

/// Looks for one interval, or until the processes are gone, and prints.
fn once(
    live: &LiveStatistics,
    stop: &StopHandle,
    asked: &Asked,
    mut subject: Subject,
    news: &mpsc::Receiver<News>,
) -> Result<()> {
    let before = Snapshot { at_ns: now_ns(ClockId::Monotonic), ..Snapshot::default() };
    tell!("watching for {} s", asked.interval.as_secs_f64());
    let deadline = Instant::now() + asked.interval;
    let (mut earlier, mut ended) = (before.clone(), None);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left > asked.interval / 2 {
            earlier = Snapshot { at_ns: now_ns(ClockId::Monotonic), statistics: live.read() };
        }
        if ended.is_none() && (left.is_zero() || stop.is_stopped()) {
            ended = Some(now_ns(ClockId::Monotonic));
            stop.stop();
        }
        let wait =
            if ended.is_some() { Duration::from_mins(1) } else { left.min(Duration::from_millis(100)) };
        match news.recv_timeout(wait) {
            Ok(News::Counted) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) if ended.is_some() => break,
            Ok(News::Process(pid, name, nccl)) => drop(subject.processes.insert(pid, (name, nccl))),
            Ok(News::Armed | News::Line(_)) | Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
    let now =
        Snapshot { at_ns: ended.unwrap_or_else(|| now_ns(ClockId::Monotonic)), statistics: live.read() };
    let rates = Rates::with_lag_since(&before, &earlier, &now);
    let mut out = stdout().lock();
    if asked.json {
        serde_json::to_writer_pretty(&mut out, &TopReport::new(&subject, &now, &rates))?;
        writeln!(out)?;
    } else {
        let State { view, sort, filter, .. } = &asked.state;
        print_table(&rows(&rates, &subject, *view, *sort, filter), &mut out)?;
        if rates.lost + rates.undecodable > 0 {
            writeln!(out, "lost: {} records; not understood: {}", rates.lost, rates.undecodable)?;
        }
    }
    out.flush()?;
    Ok(())
}

/// A session as the screen wants it.
struct SessionFeed<'a> {
    live: &'a LiveStatistics,
    stop: &'a StopHandle,
    subject: Subject,
    news: &'a mpsc::Receiver<News>,
    line: Option<String>,
    over: bool,
}

impl Feed for SessionFeed<'_> {
    fn read(&mut self) -> Snapshot {
        Snapshot { at_ns: now_ns(ClockId::Monotonic), statistics: self.live.read() }
    }

    fn subject(&mut self) -> Subject {
        self.subject.clone()
    }

    fn news(&mut self) -> Option<String> {
        loop {
            match self.news.try_recv() {
                Ok(News::Process(pid, name, nccl)) => {
                    self.subject.processes.insert(pid, (name, nccl));
                }
                Ok(News::Line(line)) => self.line = Some(line),
                Ok(News::Armed) => {}
                Ok(News::Counted) | Err(mpsc::TryRecvError::Disconnected) => {
                    self.over = true;
                    break;
                }
                Err(mpsc::TryRecvError::Empty) => break,
            }
        }
        self.line.take()
    }

    fn is_over(&self) -> bool {
        self.over || self.stop.is_stopped()
    }
}
