//! The segment that blocks are appended to, and those before it.

use std::io::{self, Write as _};

use super::open_block::OpenBlock;
use crate::sinks::OutputFile;

/// A segment to which no more is written.
#[derive(Debug)]
pub(super) struct ClosedSegment {
    pub(super) number: u32,
    pub(super) records: u64,
    pub(super) last_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct OpenSegment {
    pub(super) number: u32,
    /// The file; `None` if it could not be made, or half a block stands at its end.
    pub(super) file: Option<OutputFile>,
    pub(super) len: u64,
    /// Number of its records, and the times of the earliest and of the latest.
    pub(super) records: u64,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    /// Number of bindings that it has.
    pub(super) bindings: usize,
    /// Number of the first fact about processes and communicators that the segment does not have, and of the
    /// first that the segments before it do not have.
    pub(super) who: u64,
    pub(super) who_before: u64,
    /// Number of the first stack that the segment does not have.
    pub(super) stacks: u64,
}

impl OpenSegment {
    /// Appends all of these bytes, or none.
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
