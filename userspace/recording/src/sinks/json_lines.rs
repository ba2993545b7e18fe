//! A file of JSON lines in which no reader, crash or full disk ever leaves half a line.

use std::{
    io::{self, Write as _},
    iter::Sum,
    mem,
    ops::AddAssign,
};

use super::output_file::OutputFile;

/// Bytes that are gathered before they are written: one system call for some hundred lines.
const BATCH: usize = 64 * 1024;

/// Counts of lines that are in no file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostLines {
    pub lines: u64,
    /// Lines among these for which there was no room under the limit.
    pub over_max_size: u64,
}

impl LostLines {
    /// Counts lines for which there was no room.
    pub(super) fn over_max_size(lines: u64) -> Self {
        Self { lines, over_max_size: lines }
    }
}

impl AddAssign for LostLines {
    fn add_assign(&mut self, other: Self) {
        self.lines += other.lines;
        self.over_max_size += other.over_max_size;
    }
}

impl Sum for LostLines {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, lost| {
            sum += lost;
            sum
        })
    }
}

#[derive(Debug)]
pub struct JsonLinesFile {
    file: OutputFile,
    /// Lines that are not written yet.
    batch: Vec<u8>,
    batch_lines: u64,
    /// Bytes of whole lines in the file.
    written: u64,
    lines: u64,
    /// Lines that could not be written.
    lost: LostLines,
    /// The last batch could not be written: a disk that is full now may have room later.
    is_failing: bool,
    /// The file may end with half a line: nothing more is written.
    is_broken: bool,
}

impl JsonLinesFile {
    pub fn new(file: OutputFile) -> Self {
        Self {
            file,
            batch: Vec::with_capacity(BATCH),
            batch_lines: 0,
            written: 0,
            lines: 0,
            lost: LostLines::default(),
            is_failing: false,
            is_broken: false,
        }
    }

    /// Adds a line that is not JSON, without control characters, which could end it early.
    pub fn push_text(&mut self, line: &str) -> io::Result<()> {
        self.push(|batch| {
            batch.extend(line.bytes().filter(|byte| !byte.is_ascii_control()));
            Ok(())
        })
    }

    /// Adds the line that `write` appends. An error is returned once, until lines can be written again. Lines
    /// that could not be written count as lost, also those without room under the limit.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> serde_json::Result<()>) -> io::Result<()> {
        if self.is_broken {
            self.lost.lines += 1;
            return Ok(());
        }
        let before = self.batch.len();
        if let Err(error) = write(&mut self.batch) {
            self.batch.truncate(before);
            self.lost.lines += 1;
            return Err(error.into());
        }
        self.batch.push(b'\n');
        if !self.file.reach(self.written.saturating_add(self.batch.len() as u64)) {
            self.batch.truncate(before);
            self.lost += LostLines::over_max_size(1);
            return Ok(());
        }
        self.batch_lines += 1;
        if self.batch.len() >= BATCH { self.flush() } else { Ok(()) }
    }

    pub fn flush(&mut self) -> io::Result<()> {
        if self.batch.is_empty() || self.is_broken {
            return Ok(());
        }
        let lines = mem::take(&mut self.batch_lines);
        let written = self.file.write_all(&self.batch);
        let was_failing = mem::replace(&mut self.is_failing, written.is_err());
        if written.is_ok() {
            self.written += self.batch.len() as u64;
            self.lines += lines;
        } else {
            // Part of the batch may be there: cut back to the last line known to be whole.
            self.is_broken = self.file.cut(self.written).is_err();
            self.lost.lines += lines;
        }
        self.batch.clear();
        if was_failing { Ok(()) } else { written }
    }

    /// Returns the bytes of lines that are in the file or in the batch.
    pub(super) fn bytes(&self) -> u64 {
        self.written + self.batch.len() as u64
    }

    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    pub(super) fn lost(&self) -> LostLines {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsFd as _};

    use super::*;

    #[test]
    fn lines_are_whole_and_counted() {
        let mut file = tempfile::tempfile().unwrap();
        let mut lines = JsonLinesFile::new(file.try_clone().unwrap().into());
        for n in 0..100_000 {
            lines.push(|line| serde_json::to_writer(line, &n)).unwrap();
        }
        let seen = read(&mut file);
        assert!(seen.ends_with('\n'), "what is there before the last flush is whole lines");
        lines.flush().unwrap();
        assert_eq!(read(&mut file).lines().count(), 100_000);
        assert_eq!((lines.lines(), lines.lost()), (100_000, LostLines::default()));
    }

    /// A file size limit is the one kind of full disk that a test can make for itself, without root.
    #[test]
    fn a_full_disk_leaves_whole_lines_and_a_count() {
        let mut file = rustix_memfd();
        let mut lines = JsonLinesFile::new(file.try_clone().unwrap().into());
        let mut failed = 0;
        for n in 0..100_000 {
            failed += u32::from(lines.push_text(&format!("line {n}")).is_err());
        }
        failed += u32::from(lines.flush().is_err());
        assert_eq!(failed, 1, "the error is told once");
        let text = read(&mut file);
        assert!(text.is_empty() || text.ends_with('\n'));
        assert_eq!(text.lines().count() as u64, lines.lines());
        assert_eq!(lines.lines() + lines.lost().lines, 100_000);
        assert!(lines.lost().lines > 0 && lines.lost().over_max_size == 0);
    }

    /// A full disk is not the end. A file that may grow again stands for a disk that has room again.
    #[test]
    fn a_disk_that_has_room_again_is_written_to_again() {
        let mut lines = JsonLinesFile::new(rustix_memfd().into());
        let long = "x".repeat(200_000);
        assert!(lines.push_text(&long).is_err());
        assert!(lines.push_text(&long).is_ok(), "the error is told once");
        let mut file = tempfile::tempfile().unwrap();
        lines.file = file.try_clone().unwrap().into();
        // State after a write that failed in the middle.
        lines.file.write_all(b"half a li").unwrap();
        lines.file.cut(0).unwrap();
        for n in 0..100 {
            lines.push_text(&format!("line {n}")).unwrap();
        }
        lines.flush().unwrap();
        assert_eq!((lines.lines(), lines.lost().lines), (100, 2));
        let text = read(&mut file);
        assert!(text.starts_with("line 0\n") && text.ends_with("line 99\n"), "{text}");
        lines.file = rustix_memfd().into();
        lines.written = 0;
        assert!(lines.push_text(&long).is_err(), "a later failure is told again");
    }

    /// A memory file that is sealed against growth: writing past its end fails with EPERM.
    fn rustix_memfd() -> File {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
        let file = File::from(memfd_create("full", MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(100_000).unwrap();
        fcntl_add_seals(file.as_fd(), SealFlags::GROW).unwrap();
        file
    }

    fn read(file: &mut File) -> String {
        use std::io::{Read as _, Seek as _};
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        text.trim_end_matches('\0').to_owned()
    }
}
