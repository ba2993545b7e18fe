//! The segment that blocks are appended to, and those before it.

use std::io::{self, Write as _};

use super::open_block::OpenBlock;
use crate::sinks::OutputFile;

/// A segment to which nothing more is written.
#[derive(Debug)]
pub(super) struct ClosedSegment {
    pub(super) number: u32,
    pub(super) records: u64,
    pub(super) last_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct OpenSegment {
    pub(super) number: u32,
    /// Nothing: it could not be made, or a half block stands at its end.
    pub(super) file: Option<OutputFile>,
    pub(super) len: u64,
    /// Records in it, and the times of the earliest and of the latest.
    pub(super) records: u64,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    /// Bindings that it has.
    pub(super) bindings: usize,
    /// Of what became known of processes and communicators, what it has; and what the segments before it
    /// have.
    pub(super) who: u64,
    pub(super) who_before: u64,
    /// Of the stacks that became known, what it has.
    pub(super) stacks: u64,
}

impl OpenSegment {
    /// Appends these bytes, or nothing.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            return Err(io::Error::other("the recording's segment could not be made"));
        };
        let written = file.write_all(bytes);
        if written.is_ok() {
            self.len += bytes.len() as u64;
        } else if file.cut(self.len).is_err() {
            self.file = None;
        }
        written
    }

    /// Notes that a block of records was written.
    pub(super) fn note(&mut self, block: &OpenBlock) {
        self.first_ns = if self.records == 0 { block.first_ns } else { self.first_ns.min(block.first_ns) };
        self.last_ns = self.last_ns.max(block.last_ns);
        self.records += block.records;
    }
}
