//! A page that shows recordings to people: the verdict first, then what it rests on.
//!
//! Rows come once, through the same pipeline as those of an export, and are summed up as they come: memory is
//! bounded, however large the recordings are. The page says what was summed up. The verdict is that of
//! `ncclflow check`; nothing is judged here.
//!
//! The page is one file that needs no network and no server: its scripts and its style are in
//! `assets/report`, the data is JSON in it. All that tenants chose (names, paths) is data, and shown as text
//! only.

mod code;
mod collector;
mod communicators;
mod counted;
mod data;
mod iterations;
mod kinds;
mod links;
mod open_ops;
mod page;
mod rates;
mod sessions;
mod shapes;
mod timeline;
mod verdict;

#[cfg(test)]
mod tests;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result};

use crate::export::{Choice, Chosen, ExportProgress, Exported};
use recording::sinks::NewFile;

use self::{collector::Collector, data::Data};

/// A part of the page that is shown first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    Verdict,
    Communicators,
    Timeline,
    Traffic,
    Delays,
    Slowest,
    Sizes,
    Iterations,
    Code,
    Losses,
}

/// Options of a report.
#[derive(Debug)]
pub struct ReportOptions {
    pub inputs: Vec<PathBuf>,
    /// Path of the new file.
    pub output: PathBuf,
    /// A file that is there is replaced.
    pub replace: bool,
    pub choice: Choice,
    /// Section at which the page opens; `None` for its beginning.
    pub open: Option<Section>,
}

/// Result of making the page.
#[derive(Debug)]
pub struct Reported {
    /// The verdict in one sentence.
    pub sentence: String,
    pub bytes: u64,
    pub exported: Exported,
}

/// Makes the page. If it fails, there is no new file.
///
/// # Errors
/// If a folder has no recording or cannot be read, or the file exists or cannot be written.
pub fn report(options: ReportOptions, progress: &mut dyn FnMut(ExportProgress)) -> Result<Reported> {
    let ReportOptions { inputs, output, replace, choice, open } = options;
    let chosen = Chosen::by_one_clock(&inputs, choice, progress)?;
    if replace && std::fs::symlink_metadata(&output).is_ok_and(|entry| entry.is_file()) {
        std::fs::remove_file(&output).with_context(|| format!("replacing `{}`", output.display()))?;
    }
    let mut file =
        NewFile::create(&output, "give another name, or --force to replace it (a report is one file)")?;
    let data = Arc::<Mutex<Option<Data>>>::default();
    let collector = Collector::new(Arc::clone(&data), chosen.ranges(), open);
    let exported = chosen.read_into(Box::new(collector), progress)?;
    let data = data.lock().unwrap_or_else(PoisonError::into_inner).take();
    let data = data.context("the report was not finished")?;
    let sentence = data.verdict.sentence.clone();
    let bytes = page::write(&data, &mut file)?;
    file.finish()?;
    Ok(Reported { sentence, bytes, exported })
}
