//! A line file that is created with its first line.

use std::io;

use super::{
    budget::is_over_max_size,
    json_lines::{JsonLinesFile, LostLines},
    output_dir::OutputDir,
    output_file::Source,
};

#[derive(Debug)]
pub(super) struct LazyLines {
    pub(super) name: &'static str,
    file: Option<JsonLinesFile>,
    /// The file could not be created.
    has_failed: bool,
    /// Lines without a file.
    lost: LostLines,
}

impl LazyLines {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, file: None, has_failed: false, lost: LostLines::default() }
    }

    /// Adds a line to the file in this folder, or counts it as lost.
    ///
    /// # Errors
    /// What is to be told, once.
    pub(super) fn push(
        &mut self,
        dir: &OutputDir,
        write: impl FnOnce(&mut Vec<u8>) -> serde_json::Result<()>,
    ) -> Result<(), String> {
        let mut created = Ok(());
        if self.file.is_none() && !self.has_failed {
            match dir.create_source(self.name, Source::Lines) {
                Ok(file) => self.file = Some(JsonLinesFile::new(file)),
                Err(error) if is_over_max_size(&error) => {
                    self.lost += LostLines::over_max_size(1);
                    return Ok(());
                }
                Err(error) => {
                    self.has_failed = true;
                    created = Err(format!("cannot make `{}`: {error}", self.name));
                }
            }
        }
        let Some(file) = &mut self.file else {
            self.lost.lines += 1;
            return created;
        };
        let pushed = file.push(write);
        self.told(pushed)
    }

    fn told(&self, outcome: io::Result<()>) -> Result<(), String> {
        outcome.map_err(|error| format!("writing `{}` stopped: {error}", self.name))
    }

    pub(super) fn flush(&mut self) -> Result<(), String> {
        let flushed = self.file.as_mut().map_or(Ok(()), JsonLinesFile::flush);
        self.told(flushed)
    }

    /// Returns the file, if it was created.
    pub(super) fn file(&self) -> Option<&JsonLinesFile> {
        self.file.as_ref()
    }

    /// Returns the lines that could not be written.
    pub(super) fn lost(&self) -> LostLines {
        [Some(self.lost), self.file.as_ref().map(|file| file.lost)].into_iter().flatten().sum()
    }
}
