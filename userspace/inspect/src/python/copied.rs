//! Copies of pieces of a process's memory, many by one question.
//!
//! A child copies memory, and each question to it takes two changes of processes. A code object's facts lie
//! in six small pieces, and a new stack can have a hundred code objects.

use std::{cell::RefCell, collections::BTreeMap};

use cpython::Unreadable;
use nccl_library::elf::RuntimeAddr;

use crate::{memory::Memory, process::Process};

/// Bytes that are read where fewer are asked for: names and tables of lines follow their heads.
const AHEAD: usize = 256;
/// Size of a page. No piece is read over the end of a page, behind which there may be nothing.
const PAGE: u64 = 4096;

/// Memory as it was when it was copied.
#[derive(Debug)]
pub struct Copied<'p> {
    memory: Memory<'p>,
    /// Pieces by address; they can overlap.
    pieces: RefCell<BTreeMap<u64, Vec<u8>>>,
    #[cfg(test)]
    questions: std::cell::Cell<usize>,
}

impl<'p> Copied<'p> {
    pub fn new(process: &'p Process) -> Self {
        Self {
            memory: Memory::new(process),
            pieces: RefCell::default(),
            #[cfg(test)]
            questions: std::cell::Cell::new(0),
        }
    }

    /// Copies pieces, given by address and bytes, all at once. One that cannot be read is left out.
    pub fn fetch(&self, wanted: impl Iterator<Item = (u64, usize)>) {
        let mut wanted: Vec<(u64, usize)> = wanted.map(|(at, length)| (at, ahead(at, length))).collect();
        wanted.sort_unstable();
        wanted.dedup_by_key(|(at, _)| *at);
        self.copy(&wanted);
    }

    fn copy(&self, wanted: &[(u64, usize)]) {
        let places: Vec<_> = wanted.iter().map(|(at, length)| (RuntimeAddr(*at), *length)).collect();
        #[cfg(test)]
        self.questions.set(self.questions.get() + 1);
        let Ok(copies) = self.memory.copies(&places) else { return };
        let mut pieces = self.pieces.borrow_mut();
        for ((at, _), copy) in wanted.iter().zip(copies) {
            pieces.extend(copy.map(|copy| (*at, copy)));
        }
    }

    /// Fills `into` from a piece that was copied.
    fn find(&self, at: u64, into: &mut [u8]) -> Option<()> {
        let pieces = self.pieces.borrow();
        let (start, piece) = pieces.range(..=at).next_back()?;
        let from = usize::try_from(at - start).ok()?;
        into.copy_from_slice(piece.get(from..from.checked_add(into.len())?)?);
        Some(())
    }
}

impl cpython::Memory for Copied<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        if into.is_empty() || self.find(address, into).is_some() {
            return Ok(());
        }
        self.copy(&[(address, ahead(address, into.len()))]);
        self.find(address, into).ok_or(Unreadable(address))
    }
}

/// Returns `length`, or more if the page has more.
fn ahead(at: u64, length: usize) -> usize {
    let to_end = usize::try_from(PAGE - at % PAGE).unwrap_or(0);
    length.max(AHEAD.min(to_end))
}

#[cfg(test)]
mod tests {
    use cpython::Memory as _;

    use super::*;

    #[test]
    fn pieces_are_copied_once_and_together() {
        let process = Process::open(std::process::id()).unwrap();
        let copied = Copied::new(&process);
        let data: Vec<u8> = (0..2000).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let at = |offset: usize| data.as_ptr() as u64 + offset as u64;
        // One of them cannot be read.
        copied.fetch([(at(0), 8), (8, 8), (at(1000), 700)].into_iter());
        let read = |offset: usize, length: usize| {
            let mut bytes = vec![0; length];
            copied.read(at(offset), &mut bytes).map(|()| bytes)
        };
        assert_eq!(read(3, 5).unwrap(), data[3..8]);
        assert_eq!(read(1100, 600).unwrap(), data[1100..1700]);
        assert_eq!(copied.questions.get(), 1);
        assert_eq!(read(600, 10).unwrap(), data[600..610]);
        assert_eq!(copied.questions.get(), 2, "what was not fetched is asked for");
        assert!(copied.read(8, &mut [0; 8]).is_err());
        assert_eq!(read(990, 300).unwrap(), data[990..1290], "over the edge of what is there");
    }
}
