//! Call stacks of a recording: the processes that have them, and who names them.

use anyhow::{Context as _, Result};

use crate::{
    kernel::loader::Attachment,
    python::{Interpreter, Interpreters, Runtimes, StackBook, StackFeed, start},
    target::Process,
};

/// What a recording with call stacks has for them.
#[derive(Debug)]
pub(super) struct Stacks {
    depth: u8,
    runtimes: Runtimes,
    interpreters: Interpreters,
    book: StackBook,
    feed: StackFeed,
}

impl Stacks {
    /// `depth`: frames of a stack at most.
    pub(super) fn start(depth: u8) -> Result<Self> {
        let (interpreters, book) = (Interpreters::default(), StackBook::default());
        let feed = start(interpreters.clone(), book.clone()).context("starting a thread")?;
        Ok(Self { depth, runtimes: Runtimes::default(), interpreters, book, feed })
    }

    pub(super) fn book(&self) -> StackBook {
        self.book.clone()
    }

    pub(super) fn feed(&self) -> StackFeed {
        self.feed.clone()
    }

    /// Has the stacks of a process walked. Gives its version of Python, or why its stacks are not known.
    pub(super) fn follow(&mut self, pid: u32, attachment: &mut Attachment) -> Result<String, String> {
        let process = Process::open(pid).map_err(|error| error.to_string())?;
        let interpreter =
            Interpreter::find(&process, &mut self.runtimes, self.depth)?.ok_or("it runs no Python")?;
        let version = interpreter.version();
        let walk = *interpreter.walk();
        // First the thread that names: it must know the process when the first stack comes. In the first PID namespace
        // the number is the kernel's own.
        self.interpreters.insert(pid, process, interpreter);
        attachment.walk_stacks(pid, &walk).map_err(|error| format!("{error:#}"))?;
        Ok(version)
    }

    /// The process has ended. What it was is known to the thread that names until another has its number.
    pub(super) fn leave(pid: u32, attachment: &mut Attachment) {
        // It is not there where no stacks were walked.
        let _ = attachment.leave_stacks(pid);
    }
}
