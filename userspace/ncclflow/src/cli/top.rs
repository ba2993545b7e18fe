//! `ncclflow top`: its arguments, and how a session and a recording are shown alike.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write as _, stdin, stdout},
    ops::ControlFlow,
    os::fd::AsRawFd as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ratatui::{
    DefaultTerminal,
    crossterm::{
        event::{self, KeyEvent},
        style::force_color_output,
    },
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use super::{
    exit::Exit,
    quantities::{Pids, seconds},
    shared_args::{DebugArgs, FilterArgs, LIBRARY},
    signals::with_signals,
    terminal, top_recording, top_session,
    whom::MAX_NAMED,
    write_report,
};
use crate::views::top::{
    Rates, Shape, Snapshot, Sort, State, Subject, TopReport, View, draw, print_table, rows,
};
use flow::{session::Level, text::joined};
use trace::record::StopHandle;

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow top                            all of this host; ? shows the keys
  ncclflow top -p 4242,4243               these processes
  ncclflow top -p $(pgrep -d, -f train.py) --level steps
                                          with messages, and who waits
  ncclflow top -p 4242 --once             one second, as a table
  ncclflow top --recording /var/tmp/flows
                                          a recording, also while it is written
  ncclflow top -p 4242 --once --json -i 10 | jq '.ranks[] | [.rank, .lag]'

Nothing is written, and the processes are not stopped. Needs what `record` needs; with --recording, to \
read that.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct TopArgs {
    /// Processes to watch; otherwise all of this host
    #[arg(short, long = "pid", value_name = "PID", num_args = 1..)]
    pub pids: Vec<Pids>,

    /// Every process of this host that uses NCCL, also later ones
    ///
    /// Also those in containers.
    #[arg(long, conflicts_with_all = ["pids", "library"])]
    pub all: bool,

    /// A recording, or one of its windows: no process, probe, root
    #[arg(long, value_name = "DIR")]
    #[arg(conflicts_with_all = ["pids", "all", "level", "duration", "library", "debug_file", "debug_dir"])]
    pub recording: Option<PathBuf>,

    #[command(flatten)]
    pub filter: FilterArgs,

    /// Calls; operations; or operations and messages
    #[arg(long, value_enum, default_value_t = Level::Flow)]
    pub level: Level,

    /// Time between two refreshes; with --once, how long to look
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = seconds)]
    pub interval: Duration,

    /// Time until the end: 30, 5m [default: until q]
    #[arg(short, long, value_name = "TIME", value_parser = seconds, conflicts_with = "once")]
    pub duration: Option<Duration>,

    /// Print one table and end
    #[arg(long)]
    pub once: bool,

    /// With --once: everything, as JSON (docs/OUTPUT.md)
    #[arg(long, requires = "once")]
    pub json: bool,

    /// What a row is at first
    #[arg(hide_short_help = true, long, value_enum, default_value_t = View::Ranks)]
    pub view: View,

    /// What rows are sorted by at first
    #[arg(hide_short_help = true, long, value_enum, default_value_t = Sort::Comm)]
    pub sort: Sort,

    /// Only rows that contain this text
    #[arg(hide_short_help = true, long, value_name = "TEXT")]
    pub rows: Option<String>,

    /// Do not ask the GPUs' driver once a second what they do
    #[arg(long, hide_short_help = true)]
    pub no_gpus: bool,

    /// Path of the NCCL library as the process maps it, if its name does not contain libnccl
    #[arg(help_heading = LIBRARY, hide_long_help = true, long, value_name = "PATH", requires = "pids")]
    pub library: Option<PathBuf>,

    #[command(flatten)]
    pub debug: DebugArgs,
}

impl TopArgs {
    /// Tells whether all processes of this host are watched.
    pub(super) fn is_all(&self) -> bool {
        self.all || (self.pids.is_empty() && self.recording.is_none())
    }

    fn shape(&self, is_grouped: bool) -> Shape {
        let filter = self.rows.clone().unwrap_or_default();
        Shape { view: self.view, sort: self.sort, filter, is_grouped }
    }
}

/// What is said of processes that have ended.
pub(super) const ENDED: &str = "all watched processes have exited";

/// Longest time that a key, a signal or a new block goes unnoticed.
const PATIENCE: Duration = Duration::from_millis(100);

pub(super) fn run(args: &TopArgs, started: Instant) -> Result<Exit> {
    if !args.once && !stdout().is_terminal() {
        bail!("standard output is not a terminal: `--once` prints the table, `--once --json` all numbers");
    }
    let args = args.clone();
    let work = move |stop: &StopHandle| match &args.recording {
        Some(path) => top_recording::watch(&args, path, stop),
        None => top_session::watch(&args, started, stop),
    };
    with_signals(work, ratatui::restore)?;
    Ok(Exit::Done)
}

/// What is watched: a session, or a recording.
pub(super) trait Watched {
    /// Waits so long for news, and takes what has come. `Break`: the view ends.
    fn read_on(&mut self, wait: Duration) -> Result<ControlFlow<()>>;

    /// Tells whether all is known: the next snapshot is the last.
    fn is_over(&self) -> bool;

    /// Returns what is known now.
    fn snapshot(&mut self) -> Snapshot;

    fn subject(&self) -> &Subject;

    /// Returns a line to show in place of the keys.
    fn line(&self) -> Option<String>;

    /// Notes that the user has pressed a key.
    fn key_pressed(&mut self) {}
}

/// Watches for one interval, or until it is over, and returns the reading at half of it: `before`, if it was
/// over.
pub(super) fn follow(
    watched: &mut impl Watched,
    before: &Snapshot,
    interval: Duration,
    stop: &StopHandle,
) -> Result<Snapshot> {
    let (begun, mut earlier) = (Instant::now(), before.clone());
    while !watched.is_over() && !stop.is_stopped() && begun.elapsed() < interval {
        if begun.elapsed() < interval / 2 {
            earlier = watched.snapshot();
        }
        let wait = interval.saturating_sub(begun.elapsed()).min(PATIENCE);
        if watched.read_on(wait)?.is_break() {
            break;
        }
    }
    Ok(earlier)
}

/// Prints the output of `--once`: of the time between the first and the last of three readings. `note`: what
/// is to be said besides.
pub(super) fn print_once(
    args: &TopArgs,
    subject: &Subject,
    [before, earlier, now]: [&Snapshot; 3],
    note: Option<String>,
) -> Result<()> {
    let rates = Rates::of_one_interval(before, earlier, now);
    write_report(args.json, &TopReport::new(subject, now, &rates), |out| {
        let rows = rows(&rates, subject, &args.shape(false));
        if rows.is_empty() {
            writeln!(out, "{}", nothing(args.rows.as_deref(), subject, &rates))?;
        } else {
            print_table(&rows, terminal::width(), out)?;
        }
        if rates.lost + rates.undecodable > 0 {
            writeln!(out, "lost: {} records; undecodable: {}", rates.lost, rates.undecodable)?;
        }
        if let Some(note) = note {
            writeln!(out, "{note}")?;
        }
        Ok(())
    })
}

/// Says why there is no row. `filter`: text that a row must contain.
fn nothing(filter: Option<&str>, subject: &Subject, rates: &Rates) -> String {
    let seconds = rates.interval_s;
    let seen = rates.communicators();
    match filter {
        Some(filter) if !seen.is_empty() => {
            let more = if seen.len() > MAX_NAMED { " …" } else { "" };
            let named = joined(seen.iter().take(MAX_NAMED), ", ");
            let what = if seen.len() == 1 { "communicator" } else { "communicators" };
            format!("no row contains `{filter}`; seen: {what} {named}{more}")
        }
        // Nothing at all was recorded: no record tells how long it is.
        _ if subject.recording.is_some() && seconds == 0.0 => "no NCCL operation was recorded".to_owned(),
        _ if subject.recording.is_some() => format!("no NCCL operation in {seconds:.1} s of the recording"),
        _ if subject.processes.is_empty() => "no process was watched".to_owned(),
        _ => {
            format!("no NCCL operation in {seconds:.1} s: `ncclflow dump` says whether the processes wait")
        }
    }
}

/// Draws on the terminal and takes keys until the user wants it to end, or it has ended. `before`: an earlier
/// reading, from which the first rates count.
pub(super) fn show(
    watched: &mut impl Watched,
    before: Option<Snapshot>,
    args: &TopArgs,
    stop: &StopHandle,
) -> Result<()> {
    let mut state = State::new(args.shape(true));
    // Of a recording the end of what is known comes by blocks, not with the clock.
    state.least_ns = u64::try_from((args.interval / 2).as_nanos()).unwrap_or(u64::MAX);
    state.is_plain = !terminal::has_color();
    force_color_output(!state.is_plain);
    if let Some(before) = before {
        state.take(before, watched.subject());
    }
    terminal::flush_told(terminal::AT_END);
    let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore()).context("the terminal")?;
    let shown = keep_showing(watched, &mut state, terminal, args.interval, stop);
    ratatui::restore();
    shown?;
    if watched.subject().has_ended() {
        // The screen is gone, and what was on it is worth having.
        if !state.rows().is_empty() {
            let mut out = terminal::out();
            print_table(state.rows(), terminal::width(), &mut out)?;
            out.flush()?;
        }
        tell!("{ENDED}");
    }
    Ok(())
}

fn keep_showing(
    watched: &mut impl Watched,
    state: &mut State,
    mut terminal: DefaultTerminal,
    interval: Duration,
    stop: &StopHandle,
) -> Result<()> {
    let mut next = Some(Instant::now());
    while !stop.is_stopped() && watched.read_on(Duration::ZERO)?.is_continue() {
        if watched.is_over() && state.has_rates() {
            // The last table stays: rates of the moments after the end say nothing.
            next = None;
            state.arrange(watched.subject());
        }
        if next.is_some_and(|next| Instant::now() >= next) {
            state.take(watched.snapshot(), watched.subject());
            // What is over is shown as a whole, or until its end.
            next = (!watched.is_over()).then(|| Instant::now() + interval);
        }
        state.message = match watched.line() {
            None if watched.subject().has_ended() => Some(format!("{ENDED}; q quits")),
            line => line,
        };
        terminal.draw(|frame| draw(frame, state, watched.subject())).context("the terminal")?;
        let wait = next.map_or(PATIENCE, |next| next.saturating_duration_since(Instant::now()).min(PATIENCE));
        let ControlFlow::Continue(first) = wait_for_key(wait).context("the terminal")? else { break };
        let mut press = |key| {
            watched.key_pressed();
            state.key(key, watched.subject())
        };
        if press_all(first, || key(Duration::ZERO), &mut press).context("the terminal")?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Presses all keys that there are before anything is drawn: crossterm takes what was typed in one piece, and
/// the terminal has nothing more to tell then.
fn press_all<K>(
    first: Option<K>,
    mut next: impl FnMut() -> io::Result<Option<K>>,
    press: &mut impl FnMut(K) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let mut pressed = first;
    while let Some(key) = pressed {
        if press(key).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        pressed = next()?;
    }
    Ok(ControlFlow::Continue(()))
}

/// A key, or none; `Break`: the connection was closed, and nobody is there any more.
type Input = ControlFlow<(), Option<KeyEvent>>;

/// Waits so long for a key. crossterm reads a terminal that is gone again and again, and never comes back: so
/// the terminal is checked first.
fn wait_for_key(wait: Duration) -> io::Result<Input> {
    let input = stdin();
    // Without a terminal there crossterm takes the controlling one.
    if input.is_terminal() {
        let timeout = Timespec::try_from(wait).ok();
        let mut fds = [PollFd::new(&input, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            // A signal: a window of another size, too.
            Err(Errno::INTR) => {}
            polled => drop(polled?),
        }
        let [found] = &fds;
        if found.revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Ok(gone());
        }
        return key(Duration::ZERO).map(ControlFlow::Continue);
    }
    // A terminal that is gone cannot be opened.
    if rustix::fs::open("/dev/tty", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).is_err() {
        return Ok(gone());
    }
    key(wait).map(ControlFlow::Continue)
}

/// Sends further output nowhere: a message that cannot be written would end the program during its cleanup.
fn gone() -> Input {
    if let Ok(nowhere) = File::options().write(true).open("/dev/null") {
        for output in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
            // SAFETY: both are open descriptors, and nobody owns those of the standard outputs.
            unsafe { libc::dup2(nowhere.as_raw_fd(), output) };
        }
    }
    ControlFlow::Break(())
}

/// Returns the next key, after what is no key.
fn key(mut wait: Duration) -> io::Result<Option<KeyEvent>> {
    while event::poll(wait)? {
        if let Some(key) = event::read()?.as_key_event() {
            return Ok(Some(key));
        }
        wait = Duration::ZERO;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::top::{ShownRecording, WatchedProcess};

    #[test]
    fn all_keys_that_were_typed_are_pressed_before_the_next_drawing() {
        let press = |typed: &str| {
            let (mut keys, mut pressed) = (typed.chars(), String::new());
            let first = keys.next();
            let mut press = |key| {
                pressed.push(key);
                if key == 'q' { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let end = press_all(first, || Ok(keys.next()), &mut press).unwrap();
            (pressed, end.is_break())
        };
        assert_eq!(press(""), (String::new(), false));
        assert_eq!(press("jjjk"), ("jjjk".to_owned(), false));
        assert_eq!(press("jqk"), ("jq".to_owned(), true));
    }

    #[test]
    fn no_row_has_a_reason() {
        let none = Rates { interval_s: 1.0, ..Rates::default() };
        let mut subject = Subject::default();
        assert_eq!(nothing(Some("zzz"), &subject, &none), "no process was watched");
        subject.processes.insert(7, WatchedProcess::new(7, "train", String::new(), None));
        assert!(nothing(None, &subject, &none).starts_with("no NCCL operation in 1.0 s: `ncclflow dump`"));
        subject.recording = Some(ShownRecording::default());
        assert_eq!(nothing(None, &subject, &none), "no NCCL operation in 1.0 s of the recording");
        let moment = Snapshot { at_ns: 7, ..Snapshot::default() };
        let empty = Rates::of_one_interval(&moment, &moment, &moment);
        assert_eq!(nothing(None, &subject, &empty), "no NCCL operation was recorded");
    }
}
