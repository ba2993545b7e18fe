//! `stacks.jsonl`: the call stacks that ops and calls name.

use std::{collections::HashSet, sync::Arc};

use flow::schema::{StackId, StackRow};

use super::{
    lazy_lines::LazyLines,
    output_dir::OutputDir,
    sink::{Sink, Written},
};

/// Stacks that are written. A process that has more wants to fill the disk.
const MAX_STACKS: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct StackLines {
    lines: LazyLines,
    /// Segments of a recording repeat them.
    written: HashSet<(u32, StackId)>,
}

impl StackLines {
    pub(super) fn new(dir: Arc<OutputDir>) -> Self {
        Self { lines: LazyLines::new(dir, "stacks.jsonl"), written: HashSet::new() }
    }
}

impl Sink for StackLines {
    fn stack(&mut self, stack: &StackRow) {
        if self.written.len() < MAX_STACKS && self.written.insert((stack.pid, stack.stack)) {
            self.lines.push(|line| stack.write_json(line));
        }
    }

    fn flush(&mut self) {
        self.lines.flush();
    }

    fn close(&mut self) {
        self.lines.flush();
    }

    fn take_errors(&mut self) -> Vec<String> {
        self.lines.take_errors()
    }

    fn bytes(&self) -> u64 {
        self.lines.bytes()
    }

    fn written(&self) -> Written {
        self.lines.written()
    }
}
