//! Keeps the ranks together: all up, then the first line; the wait for a file; all done; the last line.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;

use crate::environment::exists;
use crate::link::{Command, Event, Report, print_line};
use crate::options::{Mode, Options};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All data were correct.
    Right,
    /// A rank failed.
    Failed,
    /// Some data were incorrect.
    Wrong,
    /// The operations did not end in time.
    TimedOut,
    /// The outcome of a child process; its parent reports the result.
    Told,
}

impl Outcome {
    pub(crate) fn code(self) -> i32 {
        match self {
            Self::Right | Self::Told => 0,
            Self::Failed => 1,
            Self::Wrong => 3,
            Self::TimedOut => 4,
        }
    }

    /// True where ranks may hang, so that the controller must not wait for them.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Failed | Self::TimedOut)
    }
}

/// How long after its own limit a phase may take until ranks count as lost.
const GRACE: Duration = Duration::from_secs(15);

/// Runs the phases. `send` gives a command to a rank.
pub(crate) fn run(
    options: &Options,
    pids: &[u32],
    inbox: &Receiver<Event>,
    send: &mut dyn FnMut(usize, Command),
) -> Result<Outcome> {
    match phases(options, pids, inbox, send) {
        Ok(outcome) => Ok(outcome),
        Err(error) => {
            print_line(&json!({ "ok": false, "error": format!("{error:#}") }).to_string())?;
            crate::say(&format!("{error:#}"));
            Ok(Outcome::Failed)
        }
    }
}

fn phases(
    options: &Options,
    pids: &[u32],
    inbox: &Receiver<Event>,
    send: &mut dyn FnMut(usize, Command),
) -> Result<Outcome> {
    let ranks = options.ranks as usize;
    let (mut version, mut hashes) = (String::new(), Vec::new());
    let deadline = Instant::now() + options.timeout();
    if options.never_connects() {
        let first = json!({ "commHash": "", "library": options.library });
        print_line(&first_line(&first, "", options.ranks, pids))?;
    }
    for _ in 0..ranks {
        match next(inbox, deadline, "the communicators were not up in time")? {
            Event::Ready { rank, nccl, comm_hashes } => {
                version = nccl;
                if rank == 0 {
                    hashes = comm_hashes;
                }
            }
            other => bail!("unexpected while ranks connect: {other:?}"),
        }
    }
    let first = json!({
        "nccl": version,
        "nranks": options.ranks,
        "pids": pids,
        "comms": options.comms,
        "commHash": hashes.first(),
        "commHashes": hashes,
        "library": options.library,
    });
    if options.fork && options.mode == Mode::Threads {
        fork_idle_child(std::process::id())?;
    }
    print_line(&first_line(&first, &version, options.ranks, pids))?;

    wait_for(options.wait_file.as_deref(), options, inbox)?;
    for rank in 0..ranks {
        send(rank, Command::Go);
    }
    let mut reports: Vec<Report> = Vec::new();
    let deadline = Instant::now() + options.timeout() + GRACE;
    for _ in 0..ranks {
        match inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Event::Failed { rank, error }) if options.survive => {
                crate::say(&format!("rank {rank}: {error}; the others go on"));
                reports.push(Report { timed_out: true, ..Report::default() });
            }
            event => match expected(event, "ranks hang in NCCL beyond ncclCommAbort")? {
                Event::Done { report, .. } => reports.push(report),
                other => bail!("unexpected during the operations: {other:?}"),
            },
        }
    }
    let outcome = judge(&reports);
    print_line(&summary(options, outcome, &reports))?;
    if outcome == Outcome::TimedOut {
        crate::say(&format!("the operations did not end in {} s (--timeout)", options.timeout));
        return Ok(outcome);
    }
    wait_for(options.hold_file.as_deref(), options, inbox)?;
    for rank in 0..ranks {
        send(rank, Command::Release);
    }
    let deadline = Instant::now() + options.timeout();
    for _ in 0..ranks {
        match next(inbox, deadline, "the communicators were not destroyed in time")? {
            Event::Gone { .. } => {}
            other => bail!("unexpected during the tear-down: {other:?}"),
        }
    }
    Ok(outcome)
}

/// A child with a copy of all memory and no thread but its own, which sleeps until this process, its parent or one
/// above it, is gone.
pub(crate) fn fork_idle_child(until_gone: u32) -> Result<()> {
    // SAFETY: the child calls nothing but functions that may be called after a fork of a program with
    // threads.
    match unsafe { libc::fork() } {
        -1 => bail!("cannot fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: as above.
            unsafe {
                while libc::kill(until_gone as libc::pid_t, 0) == 0 {
                    libc::usleep(100_000);
                }
                libc::_exit(0)
            }
        }
        _ => Ok(()),
    }
}

/// The object's first three keys in the documented order, then the others.
fn first_line(all: &serde_json::Value, version: &str, ranks: u32, pids: &[u32]) -> String {
    let head = format!("{{\"nccl\":{},\"nranks\":{ranks},\"pids\":{}", json!(version), json!(pids));
    let rest: Vec<String> = all
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| !matches!(key.as_str(), "nccl" | "nranks" | "pids"))
        .map(|(key, value)| format!(",{}:{value}", json!(key)))
        .collect();
    format!("{head}{}}}", rest.concat())
}

fn next(inbox: &Receiver<Event>, deadline: Instant, late: &str) -> Result<Event> {
    expected(inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())), late)
}

fn expected(event: Result<Event, RecvTimeoutError>, late: &str) -> Result<Event> {
    match event {
        Ok(Event::Failed { rank, error }) => bail!("rank {rank}: {error}"),
        Ok(event) => Ok(event),
        Err(RecvTimeoutError::Timeout) => bail!("{late}"),
        Err(RecvTimeoutError::Disconnected) => bail!("all ranks are gone"),
    }
}

fn wait_for(file: Option<&Path>, options: &Options, inbox: &Receiver<Event>) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    let deadline = Instant::now() + options.file_timeout();
    while !exists(file) {
        match inbox.recv_timeout(Duration::from_millis(5)) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Event::Failed { rank, error }) => bail!("rank {rank}: {error}"),
            other => bail!("unexpected while waiting for `{}`: {other:?}", file.display()),
        }
        if Instant::now() > deadline {
            bail!("`{}` did not come in {} s", file.display(), options.file_timeout);
        }
    }
    Ok(())
}

fn judge(reports: &[Report]) -> Outcome {
    if reports.iter().any(|report| report.timed_out) {
        Outcome::TimedOut
    } else if reports.iter().any(|report| !report.wrong.is_empty()) {
        Outcome::Wrong
    } else {
        Outcome::Right
    }
}

fn summary(options: &Options, outcome: Outcome, reports: &[Report]) -> String {
    let ops = reports.iter().map(|report| report.ops).max().unwrap_or(0);
    let seconds = reports.iter().map(|report| report.seconds).fold(0.0, f64::max);
    let wrong: Vec<&String> = reports.iter().flat_map(|report| &report.wrong).collect();
    let mut line = json!({
        "ok": outcome == Outcome::Right,
        "ops": ops,
        "bytes": ops * options.bytes as u64,
        "launches": match options.mode {
            Mode::Processes => reports.iter().map(|report| report.launches).sum::<u64>(),
            Mode::Threads => reports.iter().map(|report| report.launches).max().unwrap_or(0),
        },
        "checked_elements": reports.iter().map(|report| report.checked_elements).sum::<u64>(),
        "seconds": (seconds * 1e3).round() / 1e3,
    });
    if outcome == Outcome::TimedOut {
        line["error"] = json!("timed out");
    } else if !wrong.is_empty() {
        line["error"] = json!("wrong data");
        line["wrong"] = json!(wrong.len());
        line["first_wrong"] = json!(wrong.iter().take(8).collect::<Vec<_>>());
    }
    line.to_string()
}
