//! `ncclflow top --recording DIR`: the same view of a recording: of all of it when it is over, or of its
//! latest moments while it is written.

use std::{
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use ratatui::DefaultTerminal;
use rustix::time::ClockId;

use super::{
    keys::{Input, wait_for_key},
    progress::BytesLine,
    signals::with_signals,
    terminal,
    top::print_once,
    top_args::TopArgs,
};
use crate::views::top::{Action, Rates, Snapshot, State, Subject, draw};
use analysis::export::Source;
use flow::session::{SessionReport, TargetReport};
use inspect::clock::now_ns;
use recording::{format::Progress, rows::WatchedRecording, sinks::LiveStatistics};
use trace::record::StopHandle;

/// Nanoseconds before its end from which an unfinished recording is read.
const TAIL_NS: u64 = 10_000_000_000;

/// Longest time that a key, a signal or a new block goes unnoticed.
const PATIENCE: Duration = Duration::from_millis(100);

/// Time that a block can take to be written, and some more.
const SILENCE: Duration = Duration::from_secs(5);

pub(super) fn run(args: &TopArgs, path: &Path) -> Result<ExitCode> {
    let (args, path) = (args.clone(), path.to_owned());
    with_signals(move |stop| watch(&args, &path, stop), ratatui::restore)?;
    Ok(ExitCode::SUCCESS)
}

fn watch(args: &TopArgs, path: &Path, stop: &StopHandle) -> Result<()> {
    let source = Source::look(path.to_path_buf())?;
    let (first_ns, last_ns) = source.span_ns.unwrap_or_default();
    let from_ns = if source.is_over { first_ns } else { last_ns.saturating_sub(TAIL_NS).max(first_ns) };
    let live = LiveStatistics::default();
    let recording = WatchedRecording::open(path, from_ns, live.clone())?;
    let subject = subject(source.session());
    let mut view = View { recording, live, subject, at_ns: from_ns, grown: Instant::now() };
    let mut progress = BytesLine::new("");
    while view.read_next()? {
        progress.show(view.recording.position(), source.bytes);
        if stop.is_stopped() {
            progress.clear();
            return Ok(());
        }
    }
    progress.clear();
    let before = Snapshot { at_ns: from_ns, ..Snapshot::default() };
    if args.once {
        return view.once(args, before, stop);
    }
    let mut state = State::new(args.view, args.sort, args.rows.clone().unwrap_or_default());
    state.take(before, &view.subject);
    let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore()).context("the terminal")?;
    let shown = view.show(terminal, state, args.interval, stop);
    ratatui::restore();
    shown
}

/// Takes host, level and processes out of the session's report.
fn subject(session: &SessionReport) -> Subject {
    let version = |index: &usize| Some(session.libraries.get(*index)?.nccl_version?.to_string());
    let process = |target: &TargetReport| {
        let versions: Vec<String> = target.libraries.iter().filter_map(version).collect();
        (target.pid, (target.name.clone(), versions.join(",")))
    };
    Subject {
        host: session.host.clone(),
        level: session.level,
        processes: session.targets.iter().map(process).collect(),
    }
}

struct View {
    recording: WatchedRecording,
    live: LiveStatistics,
    subject: Subject,
    /// End of what is known, by the records' clock.
    at_ns: u64,
    /// Time of the latest new block.
    grown: Instant,
}

impl View {
    /// Reads the next block. `false`: nothing more is there now.
    fn read_next(&mut self) -> Result<bool> {
        let processes = &mut self.subject.processes;
        let progress = self.recording.read_next(&mut |process| {
            processes.entry(process.pid).or_insert_with(|| (process.name.clone(), String::new()));
        })?;
        Ok(progress == Progress::Read)
    }

    /// Reads what is new; in a recording that is over there is nothing.
    fn read_on(&mut self) -> Result<()> {
        while !self.recording.is_over() && self.read_next()? {
            self.grown = Instant::now();
        }
        Ok(())
    }

    /// Returns what is known now: until the latest record, or, where nothing comes, until now.
    fn snapshot(&mut self) -> Snapshot {
        let last_ns = self.recording.last_ns();
        self.at_ns = if last_ns > self.at_ns || self.recording.is_over() {
            last_ns.max(self.at_ns)
        } else {
            now_ns(ClockId::Monotonic).max(self.at_ns)
        };
        Snapshot { at_ns: self.at_ns, statistics: self.live.read(), gpus: Vec::new() }
    }

    /// Prints a table: of the whole recording, or, while it is written, of the next moments.
    fn once(&mut self, args: &TopArgs, mut before: Snapshot, stop: &StopHandle) -> Result<()> {
        let mut earlier = before.clone();
        if !self.recording.is_over() {
            tell!(
                "it is still being written, or was cut off; watching for {} s",
                args.interval.as_secs_f64()
            );
            before = self.snapshot();
            earlier = before.clone();
            let begun = Instant::now();
            while !self.recording.is_over() && !stop.is_stopped() && begun.elapsed() < args.interval {
                std::thread::sleep(PATIENCE.min(args.interval));
                self.read_on()?;
                if begun.elapsed() < args.interval / 2 {
                    earlier = self.snapshot();
                }
            }
        }
        let now = self.snapshot();
        let rates = Rates::with_lag_since(&before, &earlier, &now);
        let mut out = terminal::out();
        print_once(args, &self.subject, &now, &rates, &mut out)?;
        if let Some(note) = self.note().filter(|_| !args.json) {
            writeln!(out, "{note}")?;
        }
        Ok(())
    }

    /// Returns a note on damage or silence.
    fn note(&self) -> Option<String> {
        let damage = self.recording.damage();
        if damage.blocks + damage.bytes > 0 {
            return Some(format!("{} blocks and {} bytes are damaged", damage.blocks, damage.bytes));
        }
        (!self.recording.is_over() && self.grown.elapsed() > SILENCE)
            .then(|| format!("nothing new for {} s", self.grown.elapsed().as_secs()))
    }

    /// Draws on the terminal and takes keys until the user wants it to end.
    fn show(
        &mut self,
        mut terminal: DefaultTerminal,
        mut state: State,
        interval: Duration,
        stop: &StopHandle,
    ) -> Result<()> {
        let mut next = Some(Instant::now());
        while !stop.is_stopped() {
            self.read_on()?;
            if next.is_some_and(|next| Instant::now() >= next) {
                state.take(self.snapshot(), &self.subject);
                state.message = self.note();
                // A finished recording is shown as a whole, or until its end.
                next = (!self.recording.is_over()).then(|| Instant::now() + interval);
            }
            if key_pressed(&mut terminal, &mut state, &self.subject).context("the terminal")? == Action::Quit
            {
                break;
            }
        }
        Ok(())
    }
}

fn key_pressed(terminal: &mut DefaultTerminal, state: &mut State, subject: &Subject) -> io::Result<Action> {
    terminal.draw(|frame| draw(frame, state, subject))?;
    Ok(match wait_for_key(PATIENCE)? {
        Input::Key(key) => state.key(key, subject),
        Input::Nothing => Action::Nothing,
        Input::Gone => Action::Quit,
    })
}
