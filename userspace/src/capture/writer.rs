//! Writes a capture.

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{CaptureHeader, END, MAGIC, MAX_RECORD};

/// Bytes that are gathered before they are written.
const BATCH: usize = 1 << 20;

/// A capture being written. After a failed write nothing more is: what could not be kept is counted.
#[derive(Debug)]
pub struct CaptureWriter {
    file: File,
    batch: Vec<u8>,
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
        Ok(Self { file, batch, lost: 0, failed: false })
    }

    /// Adds a record. An error is returned once, when it happens.
    pub fn record(&mut self, record: &[u8]) -> io::Result<()> {
        let len = u32::try_from(record.len()).ok().filter(|len| *len <= MAX_RECORD);
        let Some(len) = len.filter(|_| !self.failed) else {
            self.lost += 1;
            return Ok(());
        };
        self.batch.extend_from_slice(&len.to_le_bytes());
        self.batch.extend_from_slice(record);
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

    /// Records that could not be kept.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.file.write_all(&self.batch);
        self.failed |= written.is_err();
        self.batch.clear();
        written
    }
}
