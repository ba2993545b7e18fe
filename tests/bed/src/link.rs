//! The messages between ranks and the controller, over channels between threads or over the pipes of a child.

use std::io::{BufRead, BufReader, Stdin, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, OnceLock};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::runtime::lock;

/// A message from a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Event {
    /// Rank 0's process made these, one for each communicator, in hexadecimal.
    Ids(Vec<String>),
    /// The communicators are up.
    Ready { rank: u32, nccl: String, comm_hashes: Vec<String> },
    /// The operations are over.
    Done { rank: u32, report: Report },
    /// The communicators are gone.
    Gone { rank: u32 },
    /// The rank cannot go on.
    Failed { rank: u32, error: String },
}

/// The result of one rank.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) ops: u64,
    pub(crate) checked_elements: u64,
    /// Kernels that the rank's process launched so far.
    pub(crate) launches: u64,
    pub(crate) seconds: f64,
    /// The first incorrect data.
    pub(crate) wrong: Vec<String>,
    /// The time was up.
    pub(crate) timed_out: bool,
}

/// A message to a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Unique ids, one for each communicator.
    Connect(Vec<String>),
    /// Start with the operations.
    Go,
    /// Destroy the communicators.
    Release,
}

/// A rank's end of the link.
pub(crate) trait Link {
    fn tell(&mut self, event: Event) -> Result<()>;
    fn hear(&mut self) -> Result<Command>;
}

#[derive(Debug)]
pub(crate) struct ThreadLink {
    pub(crate) events: Sender<Event>,
    pub(crate) commands: Receiver<Command>,
}

impl Link for ThreadLink {
    fn tell(&mut self, event: Event) -> Result<()> {
        self.events.send(event).context("the controller is gone")
    }

    fn hear(&mut self) -> Result<Command> {
        self.commands.recv().context("the controller is gone")
    }
}

/// A JSON value per line: events on the real standard output, commands on standard input.
#[derive(Debug)]
pub(crate) struct PipeLink {
    commands: BufReader<Stdin>,
}

impl PipeLink {
    pub(crate) fn new() -> Self {
        Self { commands: BufReader::new(std::io::stdin()) }
    }
}

impl Link for PipeLink {
    fn tell(&mut self, event: Event) -> Result<()> {
        print_line(&serde_json::to_string(&event)?)
    }

    fn hear(&mut self) -> Result<Command> {
        let mut line = String::new();
        if self.commands.read_line(&mut line)? == 0 {
            bail!("the controller is gone");
        }
        Ok(serde_json::from_str(&line)?)
    }
}

/// The real standard output. NCCL writes its messages to standard output too, so [`keep_stdout`] gives it
/// standard error for that and keeps this one for lines that programs read.
static STDOUT: Mutex<Option<std::fs::File>> = Mutex::new(None);

pub(crate) fn keep_stdout() -> Result<()> {
    // SAFETY: plain descriptor calls on descriptors that this program owns.
    let real = unsafe { libc::fcntl(1, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: as above.
    if real < 0 || unsafe { libc::dup2(2, 1) } < 0 {
        bail!("cannot move standard output: {}", std::io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor of our own.
    let real = unsafe { OwnedFd::from_raw_fd(real) };
    *lock(&STDOUT) = Some(real.into());
    Ok(())
}

/// The rank that this process is, where it is a child.
static CHILD: OnceLock<u32> = OnceLock::new();

pub(crate) fn set_child(rank: u32) {
    // A second call would set the same rank.
    let _same = CHILD.set(rank);
}

/// Ends the process for a reason that it cannot return to a caller, with a line in the format
/// that its reader expects.
pub(crate) fn give_up(error: &str) -> ! {
    crate::say(error);
    let line = match CHILD.get() {
        Some(rank) => serde_json::to_string(&Event::Failed { rank: *rank, error: error.to_owned() }),
        None => serde_json::to_string(&json!({ "ok": false, "error": error })),
    };
    if let Ok(line) = line {
        // Fails if the reader is gone.
        let _unread = print_line(&line);
    }
    // SAFETY: ends the process at once; other threads hang in kernels that will never end.
    unsafe { libc::_exit(1) }
}

pub(crate) fn print_line(line: &str) -> Result<()> {
    let mut stdout = lock(&STDOUT);
    let stdout = stdout.as_mut().context("standard output is not set up")?;
    writeln!(stdout, "{line}")?;
    stdout.flush()?;
    Ok(())
}
