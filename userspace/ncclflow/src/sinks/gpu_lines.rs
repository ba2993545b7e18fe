//! `gpus.jsonl`: what the GPUs of the host did.

use std::sync::Arc;

use flow::schema::GpuRow;

use super::{
    lazy_lines::LazyLines,
    output_dir::OutputDir,
    sink::{Sink, Written},
};

#[derive(Debug)]
pub(super) struct GpuLines {
    lines: LazyLines,
}

impl GpuLines {
    pub(super) fn new(dir: Arc<OutputDir>) -> Self {
        Self { lines: LazyLines::new(dir, "gpus.jsonl") }
    }
}

impl Sink for GpuLines {
    fn gpu(&mut self, row: &GpuRow) {
        self.lines.push(|line| row.write_json(line));
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
