//! Progress in bytes: a bar on a terminal, a line at intervals elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::tool::say;

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Progress {
    bar: Option<ProgressBar>,
    what: String,
    total: Option<u64>,
    last_line: Instant,
}

impl Progress {
    /// Shows progress of `total` bytes.
    pub(super) fn new(what: &str, total: u64) -> Self {
        Self::with(what, Some(total))
    }

    /// Shows progress of a number of bytes that is not known.
    pub(super) fn unbounded(what: &str) -> Self {
        Self::with(what, None)
    }

    fn with(what: &str, total: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let (bar, template) = match total {
                Some(total) => (ProgressBar::new(total), "{msg} {wide_bar} {percent}% {bytes}/{total_bytes}"),
                None => (ProgressBar::new_spinner(), "{spinner} {msg} {bytes} {bytes_per_sec}"),
            };
            let style = ProgressStyle::with_template(template);
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
                .with_message(what.to_owned())
        });
        if bar.is_none() {
            say(what);
        }
        Self { bar, what: what.to_owned(), total, last_line: Instant::now() }
    }

    /// Sets the number of bytes that are done.
    pub(super) fn set(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.tick();
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            match self.total {
                Some(total) => say(&format!(
                    "{}: {} of {} MB, {} %",
                    self.what,
                    done / 1_000_000,
                    total / 1_000_000,
                    done.saturating_mul(100) / total.max(1)
                )),
                None => say(&format!("{}: {} MB", self.what, done / 1_000_000)),
            }
        }
    }

    pub(super) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
