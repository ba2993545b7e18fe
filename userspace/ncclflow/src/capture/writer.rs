//! Writes a capture.

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{CaptureHeader, END, MAGIC};
use crate::kernel::stream::Batch;

/// Bytes that are gathered before they are written.
const BATCH: usize = 1 << 20;

/// A capture being written. After a failed write nothing more is: what could not be kept is counted.
#[derive(Debug)]
pub struct CaptureWriter {
    file: File,
    batch: Vec<u8>,
    /// Records in `batch`.
    batched: u64,
    lost: u64,
    failed: bool,
}

impl CaptureWriter {
    /// A new file (mode 0600); one that exists, or a link, is an error.
    pub fn create(path: &Path, header: &CaptureHeader) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = File::from(openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)?);
        let mut batch = MAGIC.to_vec();
        serde_json::to_writer(&mut batch, header)?;
        batch.push(b'\n');
        let mut writer = Self { file, batch, batched: 0, lost: 0, failed: false };
        writer.flush()?;
        Ok(writer)
    }

    /// Adds a batch of records. An error is returned once, when it happens.
    pub fn push(&mut self, batch: &Batch) -> io::Result<()> {
        if self.failed {
            self.lost += batch.len() as u64;
            return Ok(());
        }
        self.batch.extend_from_slice(batch.bytes());
        self.batched += batch.len() as u64;
        if self.batch.len() >= BATCH { self.flush() } else { Ok(()) }
    }

    /// Adds the session's report, which says that the capture is whole.
    pub fn finish(mut self, report: &str) -> io::Result<()> {
        if self.failed {
            return Ok(());
        }
        self.batch.extend_from_slice(&END.to_le_bytes());
        self.batch.extend_from_slice(report.as_bytes());
        self.flush()
    }

    pub fn lost(&self) -> u64 {
        self.lost
    }

    pub fn flush(&mut self) -> io::Result<()> {
        if self.failed || self.batch.is_empty() {
            return Ok(());
        }
        let written = self.file.write_all(&self.batch);
        if written.is_err() {
            self.failed = true;
            self.lost += self.batched;
        }
        self.batched = 0;
        self.batch.clear();
        written
    }
}
