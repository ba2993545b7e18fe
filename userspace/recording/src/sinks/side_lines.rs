//! Lines that belong to no rank: the call stacks that ops and calls name (`stacks.jsonl`), and the activity
//! of the host's GPUs (`gpus.jsonl`).

use std::{collections::HashSet, sync::Arc};

use flow::schema::{GpuRow, StackId, StackRow};

use super::{
    lazy_lines::LazyLines,
    output_dir::OutputDir,
    sink::{Sink, Written},
};

/// Most stacks that are written. A process that has more wants to fill the disk.
const MAX_STACKS: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct SideLines {
    stacks: LazyLines,
    /// Stacks already written: segments repeat them.
    written: HashSet<(u32, StackId)>,
    gpus: LazyLines,
}

impl SideLines {
    pub(super) fn new(dir: &Arc<OutputDir>) -> Self {
        Self {
            stacks: LazyLines::new(Arc::clone(dir), "stacks.jsonl"),
            written: HashSet::new(),
            gpus: LazyLines::new(Arc::clone(dir), "gpus.jsonl"),
        }
    }

    fn both(&mut self) -> [&mut LazyLines; 2] {
        [&mut self.stacks, &mut self.gpus]
    }
}

impl Sink for SideLines {
    fn stack(&mut self, stack: &StackRow) {
        if self.written.len() < MAX_STACKS && self.written.insert((stack.pid, stack.stack)) {
            self.stacks.push(|line| stack.write_json(line));
        }
    }

    fn gpu(&mut self, row: &GpuRow) {
        self.gpus.push(|line| row.write_json(line));
    }

    fn flush(&mut self) {
        self.both().into_iter().for_each(LazyLines::flush);
    }

    fn close(&mut self) {
        self.flush();
    }

    fn take_errors(&mut self) -> Vec<String> {
        self.both().into_iter().flat_map(LazyLines::take_errors).collect()
    }

    fn bytes(&self) -> u64 {
        self.stacks.bytes() + self.gpus.bytes()
    }

    fn written(&self) -> Written {
        let files = [&self.stacks, &self.gpus];
        Written {
            files: files
                .into_iter()
                .filter_map(LazyLines::file_name)
                .map(|name| (String::new(), name))
                .collect(),
            lost: files.into_iter().map(LazyLines::lost).sum(),
            ..Written::default()
        }
    }
}
