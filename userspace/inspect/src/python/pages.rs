//! Memory of a process that is read through kept pages.
//!
//! A walk through an interpreter reads some hundred small fields, which lie on a dozen pages, and reads them
//! again to see whether they are the same. A code object's facts lie in six small pieces, and a new stack can
//! have a hundred code objects.

use std::cell::RefCell;

use cpython::Unreadable;

use crate::{
    memory::{Memory, PageCache},
    process::Process,
};

/// Maximum number of pages that are kept.
const MAX_PAGES: usize = 512;

/// Memory as it was at the last reading: see [`cpython::Memory::renew`].
#[derive(Debug)]
pub struct Pages<'p> {
    memory: Memory<'p>,
    kept: RefCell<PageCache>,
}

impl<'p> Pages<'p> {
    pub fn new(process: &'p Process) -> Self {
        Self { memory: Memory::new(process), kept: RefCell::new(PageCache::new(MAX_PAGES)) }
    }

    /// Copies pieces, given by address and bytes, all at once.
    pub fn fetch(&self, pieces: impl Iterator<Item = (u64, usize)>) {
        self.kept.borrow_mut().fetch(self.memory, pieces);
    }
}

impl cpython::Memory for Pages<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.kept.borrow_mut().read(self.memory, address, into).ok_or(Unreadable(address))
    }

    fn renew(&self) {
        self.kept.borrow_mut().renew(self.memory);
    }
}

#[cfg(test)]
mod tests {
    use cpython::Memory as _;

    use super::*;

    const PAGE: u64 = 4096;
    const PAGE_BYTES: usize = 4096;

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
        assert_eq!(pages.kept.borrow().questions, 3);
        data.fill(2);
        assert_eq!(read(9, 1).unwrap(), [1], "as it was at this reading");
        pages.renew();
        assert_eq!(pages.kept.borrow().questions, 4);
        assert_eq!((read(9, 1).unwrap(), read(PAGE, 1).unwrap()), (vec![2], vec![2]));
        // A page that was not used is not copied again.
        pages.renew();
        assert_eq!(read(2 * PAGE, 1).unwrap(), [2]);
        assert_eq!(pages.kept.borrow().questions, 6);
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
    fn pieces_are_copied_once_and_together() {
        let process = Process::open(std::process::id()).unwrap();
        let pages = Pages::new(&process);
        let data: Vec<u8> = (0..20_000).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let at = |offset: usize| data.as_ptr() as u64 + offset as u64;
        // One of them cannot be read.
        pages.fetch([(at(0), 8), (8, 8), (at(9000), 700), (at(9100), 0)].into_iter());
        let read = |offset: usize, length: usize| {
            let mut bytes = vec![0; length];
            pages.read(at(offset), &mut bytes).map(|()| bytes)
        };
        assert_eq!(read(3, 5).unwrap(), data[3..8]);
        assert_eq!(read(9100, 600).unwrap(), data[9100..9700]);
        assert_eq!(pages.kept.borrow().questions, 1);
        assert_eq!(read(19_000, 10).unwrap(), data[19_000..19_010]);
        assert_eq!(pages.kept.borrow().questions, 2, "what was not fetched is asked for");
        assert!(pages.read(8, &mut [0; 8]).is_err());
        assert_eq!(read(9600, 9300).unwrap(), data[9600..18_900], "over the edge of what is there");
    }
}
