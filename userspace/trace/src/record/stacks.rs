//! Call stacks of a recording: the processes that have them, and the thread that names them.

use anyhow::{Context as _, Result};
use nccl_library::symbols::DebugFiles;
use ncclflow_common::{TAKES_NATIVE, TAKES_PYTHON};

use super::options::StackChoice;
use crate::{
    call_stacks::{
        Interpreters, StackBook, StackFeed,
        native::{self, NativeFeed, NativeOptions},
        start,
    },
    kernel::loader::Attachment,
};
use inspect::{
    process::Process,
    python::{Interpreter, Runtimes, without_python},
};

/// Parts that record call stacks.
pub(super) struct Stacks {
    pub(super) choice: StackChoice,
    runtimes: Runtimes,
    interpreters: Interpreters,
    pub(super) book: StackBook,
    pub(super) feed: StackFeed,
    /// Feed for pieces of native stacks.
    pub(super) native: Option<NativeFeed>,
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
            let store = attachment.object.return_slots().context("opening the map of return addresses")?;
            let sink = Box::new(store);
            let debug_files = debug_files.clone();
            let options = NativeOptions { with_python: choice.kind.has_python(), debug_files, sink };
            book = StackBook::of_native();
            native = Some(native::start(options, book.clone()).context(context)?);
        }
        let feed = start(interpreters.clone(), book.clone(), native.clone()).context(context)?;
        Ok(Self { choice, runtimes: Runtimes::default(), interpreters, book, feed, native })
    }

    /// Has the stacks of a process walked. Returns its version of Python, if that was looked for, or why its
    /// frames are not known.
    pub(super) fn follow(&mut self, pid: u32, attachment: &mut Attachment) -> Result<Option<String>, String> {
        let StackChoice { kind, depth } = self.choice;
        let process = Process::open(pid).map_err(|error| error.to_string())?;
        let interpreter = if kind.has_python() {
            let found = Interpreter::find(&process, &self.runtimes, depth);
            found.and_then(|found| found.ok_or_else(|| "it runs no Python".to_owned())).map(Some)
        } else {
            Ok(None)
        };
        let version = interpreter.as_ref().map(|found| found.as_ref().map(Interpreter::version));
        let version = version.map_err(Clone::clone);
        let interpreter = interpreter.unwrap_or_default();
        let mut walk = interpreter.as_ref().map_or_else(without_python, |interpreter| interpreter.walk);
        walk.takes = if interpreter.is_some() { TAKES_PYTHON } else { 0 };
        walk.takes |= if kind.has_native() { TAKES_NATIVE } else { 0 };
        if walk.takes != 0 {
            // The naming thread comes first: it must know the process when the first stack comes. In the
            // first PID namespace the number is the kernel's own.
            self.interpreters.insert(pid, process, interpreter.as_ref());
            attachment.object.set_python(pid, &walk).map_err(|error| format!("{error:#}"))?;
        }
        version
    }
}
