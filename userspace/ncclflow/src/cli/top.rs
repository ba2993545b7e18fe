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
    crossterm::event::{self, KeyEvent},
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
    terminal, top_recording, top_session, write_report,
};
use crate::views::top::{
    Rates, Shape, Snapshot, Sort, State, Subject, TopReport, View, draw, print_table, rows,
};
use flow::session::Level;
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
const ENDED: &str = "all watched processes have exited";

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
        print_table(&rows, terminal::width(), out)?;
        if rows.is_empty() && args.rows.is_none() {
            let seconds = rates.interval_s;
            writeln!(
                out,
                "no NCCL operation in {seconds:.1} s: `ncclflow dump` says whether the processes wait"
            )?;
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

/// Draws on the terminal and takes keys until the user wants it to end, or it has ended. `before`: an earlier
/// reading, from which the first rates count.
pub(super) fn show(
    watched: &mut impl Watched,
    before: Option<Snapshot>,
    args: &TopArgs,
    stop: &StopHandle,
) -> Result<()> {
    let mut state = State::new(args.shape(true));
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
        match wait_for_key(wait).context("the terminal")? {
            ControlFlow::Continue(None) => {}
            ControlFlow::Continue(Some(key)) => {
                watched.key_pressed();
                if state.key(key, watched.subject()).is_break() {
                    break;
                }
            }
            ControlFlow::Break(()) => break,
        }
    }
    Ok(())
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
        return key(Duration::ZERO);
    }
    // A terminal that is gone cannot be opened.
    if rustix::fs::open("/dev/tty", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).is_err() {
        return Ok(gone());
    }
    key(wait)
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

fn key(wait: Duration) -> io::Result<Input> {
    let event = if event::poll(wait)? { Some(event::read()?) } else { None };
    Ok(ControlFlow::Continue(event.and_then(|event| event.as_key_event())))
}
