//! Call stacks of a recording: the processes that have them, and the thread that names them.

use anyhow::{Context as _, Result};
use nccl_library::symbols::DebugFiles;
use ncclflow_common::{TAKES_NATIVE, TAKES_PYTHON};

use super::options::StackChoice;
use crate::{
    call_stacks::{
        Interpreters, StackBook, StackFeed,
        native::{self, NativeFeed, NativeOptions, SlotSink},
        start,
    },
    kernel::loader::Attachment,
};
use inspect::{
    process::Process,
    python::{Interpreter, Runtimes, without_python},
};

/// Parts that record call stacks.
#[derive(Debug)]
pub(super) struct Stacks {
    choice: StackChoice,
    runtimes: Runtimes,
    interpreters: Interpreters,
    book: StackBook,
    feed: StackFeed,
    native: Option<NativeFeed>,
}

impl Stacks {
    pub(super) fn start(
        choice: StackChoice,
        attachment: &Attachment,
        debug_files: &DebugFiles,
    ) -> Result<Self> {
        let context = "starting a thread";
        let (interpreters, mut book, mut native) = (Interpreters::default(), StackBook::default(), None);
        if choice.kind.has_native() {
            let store = attachment.return_slots().context("opening the map of return addresses")?;
            let sink = SlotSink(Box::new(store));
            let debug_files = debug_files.clone();
            let options = NativeOptions { with_python: choice.kind.has_python(), debug_files, sink };
            book = StackBook::of_native();
            native = Some(native::start(options, book.clone()).context(context)?);
        }
        let feed = start(interpreters.clone(), book.clone(), native.clone()).context(context)?;
        Ok(Self { choice, runtimes: Runtimes::default(), interpreters, book, feed, native })
    }

    /// Returns the feed for pieces of native stacks.
    pub(super) fn native(&self) -> Option<NativeFeed> {
        self.native.clone()
    }

    pub(super) fn book(&self) -> StackBook {
        self.book.clone()
    }

    pub(super) fn feed(&self) -> StackFeed {
        self.feed.clone()
    }

    /// Tells whether native frames are recorded, for every process.
    pub(super) fn has_native(&self) -> bool {
        self.choice.kind.has_native()
    }

    /// Has the stacks of a process walked. Returns its version of Python, if that was looked for, or why its
    /// frames are not known.
    pub(super) fn follow(&mut self, pid: u32, attachment: &mut Attachment) -> Result<Option<String>, String> {
        let StackChoice { kind, depth } = self.choice;
        let process = Process::open(pid).map_err(|error| error.to_string())?;
        let mut interpreter = Ok(None);
        if kind.has_python() {
            let found = Interpreter::find(&process, &self.runtimes, depth);
            interpreter =
                found.and_then(|found| found.ok_or_else(|| "it runs no Python".to_owned())).map(Some);
        }
        let version = match &interpreter {
            Ok(interpreter) => Ok(interpreter.as_ref().map(Interpreter::version)),
            Err(why) => Err(why.clone()),
        };
        let interpreter = interpreter.unwrap_or_default();
        let mut walk = interpreter.as_ref().map_or_else(without_python, |interpreter| *interpreter.walk());
        walk.takes = if interpreter.is_some() { TAKES_PYTHON } else { 0 };
        walk.takes |= if kind.has_native() { TAKES_NATIVE } else { 0 };
        if walk.takes != 0 {
            // The naming thread comes first: it must know the process when the first stack comes. In the
            // first PID namespace the number is the kernel's own.
            self.interpreters.insert(pid, process, interpreter.as_ref());
            attachment.walk_stacks(pid, &walk).map_err(|error| format!("{error:#}"))?;
        }
        version
    }

    /// Stops walking the stacks of a process that has ended. The naming thread knows it until another has its
    /// number.
    pub(super) fn leave(pid: u32, attachment: &mut Attachment) {
        // There is no entry where no stacks were walked.
        let _ = attachment.leave_stacks(pid);
    }
}
