//! A line file that is created with its first line.

use std::{io, mem, sync::Arc};

use super::{
    budget::is_over_max_size,
    json_lines::{JsonLinesFile, LostLines},
    output_dir::OutputDir,
    output_file::Source,
};

#[derive(Debug)]
pub(super) struct LazyLines {
    dir: Arc<OutputDir>,
    name: &'static str,
    file: Option<JsonLinesFile>,
    /// The file could not be created.
    has_failed: bool,
    /// Lines without a file.
    lost: LostLines,
    errors: Vec<String>,
}

impl LazyLines {
    pub(super) fn new(dir: Arc<OutputDir>, name: &'static str) -> Self {
        Self { dir, name, file: None, has_failed: false, lost: LostLines::default(), errors: Vec::new() }
    }

    /// Adds a line, or counts it as lost.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> serde_json::Result<()>) {
        let Some(file) = self.file() else { return };
        let pushed = file.push(write);
        self.note(pushed);
    }

    /// Returns the file, unless it could not be created.
    fn file(&mut self) -> Option<&mut JsonLinesFile> {
        if self.file.is_none() && !self.has_failed {
            match self.dir.create_source(self.name, Source::Lines) {
                Ok(file) => self.file = Some(JsonLinesFile::new(file)),
                Err(error) if is_over_max_size(&error) => {
                    self.lost += LostLines::over_max_size(1);
                    return None;
                }
                Err(error) => {
                    self.has_failed = true;
                    self.errors.push(format!("cannot make `{}`: {error}", self.name));
                }
            }
        }
        if self.file.is_none() {
            self.lost += LostLines { lines: 1, over_max_size: 0 };
        }
        self.file.as_mut()
    }

    fn note(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            self.errors.push(format!("writing `{}` stopped: {error}", self.name));
        }
    }

    pub(super) fn flush(&mut self) {
        let flushed = self.file.as_mut().map_or(Ok(()), JsonLinesFile::flush);
        self.note(flushed);
    }

    pub(super) fn take_errors(&mut self) -> Vec<String> {
        mem::take(&mut self.errors)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.file.as_ref().map_or(0, JsonLinesFile::bytes)
    }

    /// Returns its name, if it was created.
    pub(super) fn file_name(&self) -> Option<String> {
        self.file.as_ref().map(|_| self.name.to_owned())
    }

    /// Returns the lines that could not be written.
    pub(super) fn lost(&self) -> LostLines {
        [Some(self.lost), self.file.as_ref().map(JsonLinesFile::lost)].into_iter().flatten().sum()
    }
}
