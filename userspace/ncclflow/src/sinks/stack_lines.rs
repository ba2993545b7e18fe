//! `stacks.jsonl`: the call stacks that ops and calls name.

use std::{collections::HashSet, mem, sync::Arc};

use flow::schema::{StackId, StackRow};

use super::{
    budget::is_over_max_size,
    json_lines::{JsonLinesFile, LostLines},
    output_dir::OutputDir,
    output_file::Source,
    sink::{Sink, Written},
};

const NAME: &str = "stacks.jsonl";

/// Stacks that are written. A process that has more wants to fill the disk.
const MAX_STACKS: usize = 1 << 20;

/// The file, made with the first stack.
#[derive(Debug)]
pub(super) struct StackLines {
    dir: Arc<OutputDir>,
    file: Option<JsonLinesFile>,
    /// The file could not be made.
    has_failed: bool,
    /// Segments of a recording repeat them.
    written: HashSet<(u32, StackId)>,
    /// Lines without a file.
    lost: LostLines,
    errors: Vec<String>,
}

impl StackLines {
    pub(super) fn new(dir: Arc<OutputDir>) -> Self {
        Self {
            dir,
            file: None,
            has_failed: false,
            written: HashSet::new(),
            lost: LostLines::default(),
            errors: Vec::new(),
        }
    }

    /// The file, unless it could not be made.
    fn file(&mut self) -> Option<&mut JsonLinesFile> {
        if self.file.is_none() && !self.has_failed {
            match self.dir.create_source(NAME, Source::Lines) {
                Ok(file) => self.file = Some(JsonLinesFile::new(file)),
                Err(error) if is_over_max_size(&error) => {
                    self.lost += LostLines::over_max_size(1);
                    return None;
                }
                Err(error) => {
                    self.has_failed = true;
                    self.errors.push(format!("cannot make `{NAME}`: {error}"));
                }
            }
        }
        if self.file.is_none() {
            self.lost += LostLines { lines: 1, over_max_size: 0 };
        }
        self.file.as_mut()
    }
}

impl Sink for StackLines {
    fn stack(&mut self, stack: &StackRow) {
        if self.written.len() >= MAX_STACKS || !self.written.insert((stack.pid, stack.stack)) {
            return;
        }
        // What could not be written the file counts.
        if let Some(Err(error)) = self.file().map(|file| file.push(|line| stack.write_json(line))) {
            self.errors.push(format!("writing `{NAME}` stopped: {error}"));
        }
    }

    fn flush(&mut self) {
        if let Some(Err(error)) = self.file.as_mut().map(JsonLinesFile::flush) {
            self.errors.push(format!("writing `{NAME}` stopped: {error}"));
        }
    }

    fn close(&mut self) {
        self.flush();
    }

    fn take_errors(&mut self) -> Vec<String> {
        mem::take(&mut self.errors)
    }

    fn bytes(&self) -> u64 {
        self.file.as_ref().map_or(0, JsonLinesFile::bytes)
    }

    fn written(&self) -> Written {
        let lost = [Some(self.lost), self.file.as_ref().map(JsonLinesFile::lost)].into_iter().flatten().sum();
        let files = self.file.iter().map(|_| (String::new(), NAME.to_owned())).collect();
        Written { files, lost, ..Written::default() }
    }
}
