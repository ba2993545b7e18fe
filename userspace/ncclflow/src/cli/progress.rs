//! Progress of work that takes long, on a line of the terminal that is overwritten; nothing where standard
//! error is no terminal.

use std::{
    io::{IsTerminal as _, Write as _, stderr},
    time::{Duration, Instant},
};

use anyhow::Result;

use dump::Progress;

/// Duration up to which work is not worth a line.
const PATIENCE: Duration = Duration::from_secs(1);

/// Overwrites the line of the terminal. Nobody may be there to read it.
fn overwrite(line: &str) {
    let _ = write!(stderr(), "\r\x1b[K{line}");
}

fn percent(done: u64, of: u64) -> u64 {
    done.saturating_mul(100).checked_div(of).unwrap_or(100)
}

/// Progress of a scan of memory.
pub(super) struct ProgressLine {
    is_terminal: bool,
    is_shown: bool,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        Self { is_terminal: stderr().is_terminal(), is_shown: false }
    }

    pub(super) fn show(&mut self, progress: &Progress<'_>) {
        if !self.is_terminal || progress.scan.elapsed < PATIENCE {
            return;
        }
        let scan = progress.scan;
        let gib = |bytes: u64| format!("{}.{} GiB", bytes >> 30, ((bytes & 0x3fff_ffff) * 10) >> 30);
        overwrite(&format!(
            "process {}: {}% of {} looked through, {} read, {} s",
            progress.process.pid(),
            percent(scan.passed_bytes, scan.mapped_bytes),
            gib(scan.mapped_bytes),
            gib(scan.scanned_bytes),
            scan.elapsed.as_secs()
        ));
        self.is_shown = true;
    }

    pub(super) fn clear(&self) {
        if self.is_shown {
            overwrite("");
        }
    }
}

/// Progress of reading files.
pub(super) struct BytesLine {
    label: &'static str,
    is_terminal: bool,
    begun: Instant,
    shown: Option<Instant>,
}

/// Shows the progress of `work` while it reads files.
pub(super) fn reading<T>(label: &'static str, work: impl FnOnce(&mut BytesLine) -> Result<T>) -> Result<T> {
    let mut line = BytesLine::new(label);
    let done = work(&mut line);
    line.clear();
    done
}

impl BytesLine {
    /// Time between two updates of the line.
    const INTERVAL: Duration = Duration::from_millis(200);

    pub(super) fn new(label: &'static str) -> Self {
        Self { label, is_terminal: stderr().is_terminal(), begun: Instant::now(), shown: None }
    }

    pub(super) fn show(&mut self, bytes: u64, of_bytes: u64) {
        let is_due = self.shown.is_none_or(|shown| shown.elapsed() >= Self::INTERVAL);
        if !self.is_terminal || self.begun.elapsed() < PATIENCE || !is_due {
            return;
        }
        overwrite(&format!(
            "{}{}% of {} MiB read, {} s",
            self.label,
            percent(bytes, of_bytes).min(100),
            of_bytes >> 20,
            self.begun.elapsed().as_secs()
        ));
        self.shown = Some(Instant::now());
    }

    pub(super) fn clear(&self) {
        if self.shown.is_some() {
            overwrite("");
        }
    }
}

/// Progress of making files from a recording.
#[derive(Default)]
pub(super) struct FilesProgress {
    since: Option<Instant>,
    is_shown: bool,
}

impl FilesProgress {
    pub(super) fn show(&mut self, done: u64, of: u64) {
        if self.since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            return;
        }
        let line = format!(
            "making files: {}% of {of} records; after Ctrl-C they stay incomplete, the recording is complete",
            percent(done, of)
        );
        if stderr().is_terminal() {
            overwrite(&line);
        } else if !self.is_shown {
            tell!("{line}");
        }
        self.is_shown = true;
    }

    pub(super) fn clear(&self) {
        if self.is_shown && stderr().is_terminal() {
            overwrite("");
        }
    }
}
