//! `ncclflow top`

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _, Write, stdout},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use ratatui::DefaultTerminal;
use rustix::{thread::CapabilitySet, time::ClockId};

use super::{
    keys::{Input, wait_for_key},
    signals::with_signals,
    terminal,
    top_args::TopArgs,
    top_recording, write_json,
};
use crate::views::top::{Action, Rates, Snapshot, State, Subject, TopReport, draw, print_table, rows};
use flow::session::SessionState;
use inspect::{
    clock::now_ns,
    gpu::{self, GpuSamples},
    host::host_name,
    privileges,
};
use recording::sinks::LiveStatistics;
use trace::record::{LibraryInUse, Notice, RecordOptions, StopHandle, record};

/// Longest time that a signal goes unnoticed.
const PATIENCE: Duration = Duration::from_millis(100);

pub(super) fn run(args: &TopArgs, started: Instant) -> Result<ExitCode> {
    if !args.once && !stdout().is_terminal() {
        bail!("standard output is not a terminal: `--once` prints the table, `--once --json` all numbers");
    }
    if let Some(path) = &args.recording {
        return top_recording::run(args, path);
    }
    let live = LiveStatistics::default();
    let options = args.options(started, live.clone());
    let args = args.clone();
    with_signals(move |stop| watch(&options, &live, stop, &args), ratatui::restore)?;
    Ok(ExitCode::SUCCESS)
}

/// Messages of the session's thread.
enum News {
    /// A process is watched: its number, name, and NCCL's versions.
    Process(u32, String, String),
    Armed,
    Line(String),
    /// All that came is counted; probes are being detached.
    Counted,
}

fn watch(options: &RecordOptions, live: &LiveStatistics, stop: &StopHandle, args: &TopArgs) -> Result<()> {
    let (sender, news) = mpsc::channel();
    thread::scope(|scope| {
        let session = thread::Builder::new().name("ncclflow-session".to_owned());
        let session = session
            .spawn_scoped(scope, move || session_thread(options, stop, &sender))
            .context("starting the session's thread")?;
        privileges::keep_only(CapabilitySet::empty());
        let shown = follow(live, stop, args, &news);
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
        Notice::PassedOver(why) => say(News::Line(format!("not traced: {why}"))),
        Notice::LibraryChanged(what) => say(News::Line(what.to_owned())),
        Notice::Recording { .. } => say(News::Armed),
        Notice::TargetExited { pid } => say(News::Line(format!("process {pid} exited"))),
        Notice::WriteFailed(error) | Notice::Failed(error) => say(News::Line(error.to_owned())),
        Notice::Detaching { .. } if !counted => {
            counted = true;
            say(News::Counted);
        }
        // Notices about files, of which there are none.
        _ => {}
    };
    let report = record(options, stop, &mut notice)?.report;
    if report.state == SessionState::Failed {
        bail!("the session has failed: {}", report.errors.shown().collect::<Vec<_>>().join("; "));
    }
    Ok(())
}

fn versions<'a>(libraries: impl IntoIterator<Item = &'a LibraryInUse>) -> String {
    let versions = libraries.into_iter().filter_map(|library| library.resolved.resolution.nccl_version);
    versions.map(|version| version.to_string()).collect::<Vec<_>>().join(",")
}

/// Waits for the session to begin, and shows it until somebody wants it to end.
fn follow(
    live: &LiveStatistics,
    stop: &StopHandle,
    args: &TopArgs,
    news: &mpsc::Receiver<News>,
) -> Result<()> {
    let host = host_name();
    let subject = Subject { host, level: Some(args.level), processes: BTreeMap::new() };
    let gpus = if args.no_gpus {
        GpuSamples::default()
    } else {
        if let Some(what) = gpu::not_known() {
            tell!("{what}");
        }
        GpuSamples::start().context("starting a thread")?
    };
    let mut session = Session { live, gpus, stop, news, subject, line: None, armed: false, over: false };
    while !session.armed {
        let Ok(news) = news.recv() else { return Ok(()) };
        session.take(news);
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
        return session.once(args);
    }
    let state = State::new(args.view, args.sort, args.rows.clone().unwrap_or_default());
    terminal::flush_told(terminal::AT_END);
    let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore()).context("the terminal")?;
    let shown = session.show(terminal, state, args.interval);
    ratatui::restore();
    shown.context("the terminal")?;
    tell!("detaching; a second Ctrl-C leaves that to the kernel");
    Ok(())
}

/// A session, and what it has told.
struct Session<'a> {
    live: &'a LiveStatistics,
    gpus: GpuSamples,
    stop: &'a StopHandle,
    news: &'a mpsc::Receiver<News>,
    subject: Subject,
    /// The latest line that was not shown yet.
    line: Option<String>,
    armed: bool,
    over: bool,
}

impl Session<'_> {
    fn take(&mut self, news: News) {
        match news {
            News::Process(pid, name, nccl) => drop(self.subject.processes.insert(pid, (name, nccl))),
            News::Armed => self.armed = true,
            News::Line(line) => self.line = Some(line),
            News::Counted => self.over = true,
        }
    }

    fn read(&self) -> Snapshot {
        let gpus = self.gpus.latest();
        Snapshot { at_ns: now_ns(ClockId::Monotonic), statistics: self.live.read(), gpus }
    }

    /// Watches for one interval, or until the processes are gone, and prints.
    fn once(&mut self, args: &TopArgs) -> Result<()> {
        let before = Snapshot { at_ns: now_ns(ClockId::Monotonic), ..Snapshot::default() };
        tell!("watching for {} s", args.interval.as_secs_f64());
        let deadline = Instant::now() + args.interval;
        let (mut earlier, mut ended) = (before.clone(), None);
        while !self.over {
            let left = deadline.saturating_duration_since(Instant::now());
            if left > args.interval / 2 {
                earlier = self.read();
            }
            if ended.is_none() && (left.is_zero() || self.stop.is_stopped()) {
                ended = Some(now_ns(ClockId::Monotonic));
                self.stop.stop();
            }
            let wait = if ended.is_some() { Duration::from_mins(1) } else { left.min(PATIENCE) };
            match self.news.recv_timeout(wait) {
                Ok(news) => self.take(news),
                Err(mpsc::RecvTimeoutError::Timeout) if ended.is_none() => {}
                Err(_) => break,
            }
        }
        let now = self.read();
        let now = Snapshot { at_ns: ended.unwrap_or(now.at_ns), ..now };
        let rates = Rates::with_lag_since(&before, &earlier, &now);
        print_once(args, &self.subject, &now, &rates, &mut terminal::out())
    }

    /// Draws on the terminal and takes keys until the user wants it to end, or it has ended.
    fn show(
        &mut self,
        mut terminal: DefaultTerminal,
        mut state: State,
        interval: Duration,
    ) -> io::Result<()> {
        let mut next = Instant::now();
        while !self.over && !self.stop.is_stopped() {
            loop {
                match self.news.try_recv() {
                    Ok(news) => self.take(news),
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => {
                        self.over = true;
                        break;
                    }
                }
            }
            if let Some(line) = self.line.take() {
                state.message = Some(line);
            }
            if Instant::now() >= next {
                state.take(self.read(), &self.subject);
                next = Instant::now() + interval;
            }
            terminal.draw(|frame| draw(frame, &state, &self.subject))?;
            let wait = next.saturating_duration_since(Instant::now()).min(PATIENCE);
            match wait_for_key(wait)? {
                Input::Key(key) => {
                    state.message = None;
                    if state.key(key, &self.subject) == Action::Quit {
                        break;
                    }
                }
                Input::Nothing => {}
                Input::Gone => break,
            }
        }
        Ok(())
    }
}

/// Prints the output of `--once`.
pub(super) fn print_once(
    args: &TopArgs,
    subject: &Subject,
    now: &Snapshot,
    rates: &Rates,
    out: &mut impl Write,
) -> Result<()> {
    if args.json {
        write_json(&mut *out, &TopReport::new(subject, now, rates))?;
    } else {
        let filter = args.rows.as_deref().unwrap_or_default();
        print_table(&rows(rates, subject, args.view, args.sort, filter), &mut *out)?;
        if rates.lost + rates.undecodable > 0 {
            writeln!(out, "lost: {} records; not understood: {}", rates.lost, rates.undecodable)?;
        }
    }
    out.flush()?;
    Ok(())
}
