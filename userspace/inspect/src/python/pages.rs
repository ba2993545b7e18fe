//! Pages of a process's memory, copied as they are needed, and all at once for another reading.
//!
//! A child copies memory, and each question to it takes two changes of processes. A walk through an
//! interpreter reads some hundred small fields, which lie on a dozen pages, and reads them again to see
//! whether they are the same.

use std::{cell::RefCell, collections::BTreeMap};

use cpython::Unreadable;
use nccl_library::elf::RuntimeAddr;

use crate::{memory::Memory, process::Process};

const PAGE_BYTES: usize = 4096;
const PAGE: u64 = PAGE_BYTES as u64;
/// Maximum number of pages that are kept; where a reading needs more, those of its beginning are copied
/// again.
const MAX_PAGES: usize = 512;

/// Memory as it was at the last reading: see [`cpython::Memory::renew`].
#[derive(Debug)]
pub struct Pages<'p> {
    memory: Memory<'p>,
    kept: RefCell<BTreeMap<u64, Page>>,
    #[cfg(test)]
    questions: std::cell::Cell<usize>,
}

#[derive(Debug)]
struct Page {
    /// All bytes of the page; empty if it cannot be read.
    bytes: Vec<u8>,
    /// The page was needed in this reading.
    is_used: bool,
}

impl<'p> Pages<'p> {
    pub fn new(process: &'p Process) -> Self {
        Self {
            memory: Memory::new(process),
            kept: RefCell::default(),
            #[cfg(test)]
            questions: std::cell::Cell::new(0),
        }
    }

    /// Copies these pages by one question. Pages that cannot be read are kept as empty.
    fn copy(&self, pages: &[u64], is_used: bool) {
        #[cfg(test)]
        self.questions.set(self.questions.get() + 1);
        let places: Vec<_> = pages.iter().map(|at| (RuntimeAddr(*at), PAGE_BYTES)).collect();
        let copies = self.memory.copies(&places).unwrap_or_default();
        let mut kept = self.kept.borrow_mut();
        if kept.len() + pages.len() > MAX_PAGES {
            kept.clear();
        }
        let copies = copies.into_iter().map(Option::unwrap_or_default).chain(std::iter::repeat(Vec::new()));
        for (at, bytes) in pages.iter().zip(copies) {
            kept.insert(*at, Page { bytes, is_used });
        }
    }

    /// Fills `into` from a page that is kept; `None`: it is not kept.
    fn of_page(&self, page: u64, from: usize, into: &mut [u8]) -> Option<Result<(), Unreadable>> {
        let mut kept = self.kept.borrow_mut();
        let page_kept = kept.get_mut(&page)?;
        page_kept.is_used = true;
        let found = page_kept.bytes.get(from..).and_then(|rest| rest.get(..into.len()));
        Some(match found {
            Some(found) => {
                into.copy_from_slice(found);
                Ok(())
            }
            None => Err(Unreadable(page)),
        })
    }
}

impl cpython::Memory for Pages<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let (mut at, mut rest) = (address, into);
        while !rest.is_empty() {
            let (page, from) = (at - at % PAGE, at % PAGE);
            let length = rest.len().min(usize::try_from(PAGE - from).unwrap_or(0));
            let (part, behind) = rest.split_at_mut(length);
            let from = usize::try_from(from).unwrap_or(0);
            if self.of_page(page, from, part).is_none() {
                self.copy(&[page], true);
            }
            self.of_page(page, from, part).unwrap_or(Err(Unreadable(page)))?;
            at = at.checked_add(length as u64).ok_or(Unreadable(address))?;
            rest = behind;
        }
        Ok(())
    }

    /// Copies the pages again that the last reading used: this one mostly needs the same.
    fn renew(&self) {
        let kept = self.kept.take();
        let used: Vec<u64> = kept.into_iter().filter(|(_, page)| page.is_used).map(|(at, _)| at).collect();
        if !used.is_empty() {
            self.copy(&used, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use cpython::Memory as _;

    use super::*;

    /// Memory that holds three whole pages, wherever it begins.
    fn filled(with: u8) -> Vec<u8> {
        vec![with; 4 * PAGE_BYTES]
    }

    #[test]
    fn a_page_is_copied_once_in_a_reading_and_all_at_once_in_the_next() {
        let process = Process::open(std::process::id()).unwrap();
        let pages = Pages::new(&process);
        let mut data = filled(1);
        let first = (data.as_ptr() as u64).next_multiple_of(PAGE);
        let read = |at: u64, length: usize| {
            let mut bytes = vec![0; length];
            pages.read(first + at, &mut bytes).map(|()| bytes)
        };
        for at in (0..3 * PAGE - 8).step_by(64) {
            assert_eq!(read(at, 8).unwrap(), [1; 8]);
        }
        assert_eq!(read(PAGE - 3, 6).unwrap(), [1; 6], "over the edge of a page");
        assert_eq!(pages.questions.get(), 3);
        data.fill(2);
        assert_eq!(read(9, 1).unwrap(), [1], "as it was at this reading");
        pages.renew();
        assert_eq!(pages.questions.get(), 4);
        assert_eq!((read(9, 1).unwrap(), read(PAGE, 1).unwrap()), (vec![2], vec![2]));
        // A page that was not used is not copied again.
        pages.renew();
        assert_eq!(read(2 * PAGE, 1).unwrap(), [2]);
        assert_eq!(pages.questions.get(), 6);
        drop(data);
    }

    #[test]
    fn what_is_not_there_is_an_error_also_over_the_edge() {
        let process = Process::open(std::process::id()).unwrap();
        let pages = Pages::new(&process);
        assert!(pages.read(8, &mut [0; 8]).is_err());
        assert!(pages.read(u64::MAX - 3, &mut [0; 8]).is_err());
        assert!(pages.read(PAGE - 4, &mut [0; 8]).is_err());
        pages.renew();
        assert!(pages.read(8, &mut [0; 8]).is_err());
        assert!(pages.read(8, &mut []).is_ok());
    }

    #[test]
    fn a_reading_of_many_pages_keeps_a_bound() {
        let process = Process::open(std::process::id()).unwrap();
        let pages = Pages::new(&process);
        let data = vec![7; (MAX_PAGES + 40) * PAGE_BYTES];
        let first = (data.as_ptr() as u64).next_multiple_of(PAGE);
        for page in 0..MAX_PAGES as u64 + 30 {
            let mut byte = [0];
            pages.read(first + page * PAGE, &mut byte).unwrap();
            assert_eq!(byte, [7]);
            assert!(pages.kept.borrow().len() <= MAX_PAGES);
        }
    }
}
