//! Pages of a process that hold data. The kernel says which (`resolver::page_map`).

use std::{fs::File, io};

use crate::{process::Process, resolver};

/// The page map of a process. Where it cannot be opened or read, every page counts as filled.
#[derive(Debug)]
pub(super) struct Pages {
    pid: u32,
    pagemap: Option<File>,
}

impl Pages {
    pub(super) fn open(process: &Process) -> Self {
        Self { pid: process.pid(), pagemap: File::open(process.proc_path().join("pagemap")).ok() }
    }

    /// Returns the runs of filled pages between `start` and `end`, as (start, end), in order.
    ///
    /// Asking takes a lock of the process, which a process can have held for as long as it wants: a child
    /// asks.
    ///
    /// # Errors
    /// `TimedOut` where the process does not answer.
    pub(super) fn filled(&self, start: u64, end: u64) -> io::Result<Vec<(u64, u64)>> {
        let Some(pagemap) = &self.pagemap else { return Ok(vec![(start, end)]) };
        match resolver::filled(self.pid, pagemap, start, end) {
            Err(error) if error.kind() != io::ErrorKind::TimedOut => Ok(vec![(start, end)]),
            answer => answer,
        }
    }
}
