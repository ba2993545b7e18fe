//! Progress of work that takes long, on a line of the terminal that is overwritten; nothing where standard
//! error is no terminal.

use std::{
    io::{IsTerminal as _, Write as _, stderr},
    time::{Duration, Instant},
};

use anyhow::Result;

use super::terminal::width_of_errors;
use crate::fleet::Asking;
use dump::Progress;
use flow::text::{bytes, cut_right};

/// Duration up to which work is not worth a line.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time between two updates of the line.
const INTERVAL: Duration = Duration::from_millis(200);

/// Overwrites the line of the terminal; what is longer than a line could not be overwritten. Nobody may be there
/// to read it.
fn overwrite(line: &str) {
    let _ = write!(stderr(), "\r\x1b[K{}", cut_right(line, width_of_errors().map(|width| width.max(2) - 1)));
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn size(value: u64) -> String {
    bytes(value as f64)
}

fn percent(done: u64, of: u64) -> u64 {
    done.saturating_mul(100).checked_div(of).unwrap_or(100)
}

/// Shows the progress of `work`.
pub(super) fn reading<T>(
    label: &'static str,
    work: impl FnOnce(&mut ProgressLine) -> Result<T>,
) -> Result<T> {
    work(&mut ProgressLine::new(label))
}

/// A line of the terminal, which goes when this is dropped.
pub(super) struct ProgressLine {
    label: &'static str,
    is_terminal: bool,
    begun: Instant,
    shown: Option<Instant>,
}

impl ProgressLine {
    pub(super) fn new(label: &'static str) -> Self {
        Self { label, is_terminal: stderr().is_terminal(), begun: Instant::now(), shown: None }
    }

    fn show(&mut self, line: impl FnOnce() -> String) {
        let is_due = self.shown.is_none_or(|shown| shown.elapsed() >= INTERVAL);
        if self.is_terminal && is_due && self.begun.elapsed() >= PATIENCE {
            overwrite(&line());
            self.shown = Some(Instant::now());
        }
    }

    /// Shows how many hosts have answered. Where there is no terminal, it is told every ten seconds.
    pub(super) fn hosts(&mut self, asking: &Asking) {
        const OFTEN: Duration = Duration::from_secs(10);
        let Asking { hosts, answered, failed, begun } = *asking;
        let line = || {
            let failed = if failed > 0 { format!(", {failed} without an answer") } else { String::new() };
            let of =
                if hosts > 0 { format!("{answered} of {hosts} hosts answered") } else { "asking".to_owned() };
            format!("{of}{failed}, {} s", begun.elapsed().as_secs())
        };
        if self.is_terminal {
            self.show(line);
        } else if self.shown.unwrap_or(self.begun).elapsed() >= OFTEN {
            tell!("{}", line());
            self.shown = Some(Instant::now());
        }
    }

    /// Shows the progress of reading files.
    pub(super) fn bytes(&mut self, bytes: u64, of_bytes: u64) {
        let (label, percent, seconds) =
            (self.label, percent(bytes, of_bytes).min(100), self.begun.elapsed().as_secs());
        self.show(|| format!("{label}{percent}% of {} read, {seconds} s", size(of_bytes)));
    }

    /// Shows the progress of a scan of memory.
    pub(super) fn scan(&mut self, progress: &Progress<'_>) {
        let scan = progress.scan;
        if scan.elapsed < PATIENCE {
            return;
        }
        self.show(|| {
            format!(
                "process {}: {}% of {} looked through, {} read, {} s",
                progress.process.pid(),
                percent(scan.passed_bytes, scan.mapped_bytes),
                size(scan.mapped_bytes),
                size(scan.scanned_bytes),
                scan.elapsed.as_secs()
            )
        });
    }

    /// Shows the progress of making files from a recording. Where there is no terminal, it is told once.
    pub(super) fn files(&mut self, done: u64, of: u64) {
        let line = || {
            format!(
                "making files: {}% of {of} records; Ctrl-C leaves it (the recording is whole)",
                percent(done, of)
            )
        };
        if !self.is_terminal && self.shown.is_none() && self.begun.elapsed() >= PATIENCE {
            tell!("{}", line());
            self.shown = Some(Instant::now());
        }
        self.show(line);
    }

    pub(super) fn clear(&mut self) {
        if self.shown.take().is_some() && self.is_terminal {
            overwrite("");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}
