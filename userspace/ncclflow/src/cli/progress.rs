//! Progress of work that takes long, on a line of the terminal that is overwritten; nothing where standard
//! error is no terminal.

use std::{
    io::{IsTerminal as _, Write as _, stderr},
    time::{Duration, Instant},
};

use crate::dump::Progress;

/// Progress of a scan of memory.
pub(super) struct ProgressLine {
    is_terminal: bool,
    is_shown: bool,
}

impl ProgressLine {
    /// Duration up to which scans are not worth a line.
    const PATIENCE: Duration = Duration::from_secs(1);

    pub(super) fn new() -> Self {
        Self { is_terminal: stderr().is_terminal(), is_shown: false }
    }

    pub(super) fn show(&mut self, progress: &Progress<'_>) {
        if !self.is_terminal || progress.scan.elapsed < Self::PATIENCE {
            return;
        }
        let scan = progress.scan;
        let gib = |bytes: u64| format!("{}.{} GiB", bytes >> 30, ((bytes & 0x3fff_ffff) * 10) >> 30);
        let percent = scan.passed_bytes.saturating_mul(100).checked_div(scan.mapped_bytes).unwrap_or(100);
        // Nobody may be there to read it.
        let _ = write!(
            stderr(),
            "\r\x1b[Kprocess {}: {percent}% of {} looked through, {} read, {} s",
            progress.process.pid(),
            gib(scan.mapped_bytes),
            gib(scan.scanned_bytes),
            scan.elapsed.as_secs()
        );
        self.is_shown = true;
    }

    pub(super) fn clear(&self) {
        if self.is_shown {
            let _ = write!(stderr(), "\r\x1b[K");
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

impl BytesLine {
    const INTERVAL: Duration = Duration::from_millis(200);

    /// `label` stands before the figures.
    pub(super) fn new(label: &'static str) -> Self {
        Self { label, is_terminal: stderr().is_terminal(), begun: Instant::now(), shown: None }
    }

    pub(super) fn show(&mut self, bytes: u64, of_bytes: u64) {
        let is_due = self.shown.is_none_or(|shown| shown.elapsed() >= Self::INTERVAL);
        if !self.is_terminal || self.begun.elapsed() < ProgressLine::PATIENCE || !is_due {
            return;
        }
        let percent = bytes.saturating_mul(100).checked_div(of_bytes).unwrap_or(100).min(100);
        // Nobody may be there to read it.
        let _ = write!(
            stderr(),
            "\r\x1b[K{}{percent}% of {} MiB read, {} s",
            self.label,
            of_bytes >> 20,
            self.begun.elapsed().as_secs()
        );
        self.shown = Some(Instant::now());
    }

    pub(super) fn clear(&self) {
        if self.shown.is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
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
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < ProgressLine::PATIENCE {
            return;
        }
        let percent = done.saturating_mul(100).checked_div(of).unwrap_or(100);
        let line = format!(
            "making files: {percent}% of {of} records; after Ctrl-C they stay incomplete, the recording \
             is complete"
        );
        if stderr().is_terminal() {
            let _ = write!(stderr(), "\r\x1b[K{line}");
        } else if !self.is_shown {
            tell!("{line}");
        }
        self.is_shown = true;
    }

    pub(super) fn clear(&self) {
        if self.is_shown && stderr().is_terminal() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
