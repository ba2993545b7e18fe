//! Pages of a process's memory, copied as they are needed.
//!
//! A child copies memory, and each question to it takes two changes of processes. Who reads small fields of
//! many structs reads the same pages again and again.

use std::collections::BTreeMap;

use nccl_library::elf::RuntimeAddr;

use super::Memory;

const PAGE_BYTES: usize = 4096;
const PAGE: u64 = PAGE_BYTES as u64;

/// Memory as it was when it was copied.
#[derive(Debug)]
pub(crate) struct PageCache {
    kept: BTreeMap<u64, Page>,
    /// Most pages that are kept; where more are needed, those of the beginning are copied again.
    most: usize,
    #[cfg(test)]
    pub(crate) questions: usize,
}

#[derive(Debug)]
struct Page {
    /// All bytes of the page; empty if it cannot be read.
    bytes: Vec<u8>,
    /// The page was needed since the last [`PageCache::renew`].
    is_used: bool,
}

impl PageCache {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            kept: BTreeMap::new(),
            most,
            #[cfg(test)]
            questions: 0,
        }
    }

    /// Copies these pages by one question. Pages that cannot be read are kept as empty.
    fn copy(&mut self, memory: Memory<'_>, pages: &[u64], is_used: bool) {
        #[cfg(test)]
        {
            self.questions += 1;
        }
        let places: Vec<_> = pages.iter().map(|at| (RuntimeAddr(*at), PAGE_BYTES)).collect();
        let copies = memory.copies(&places).unwrap_or_default();
        if self.kept.len() + pages.len() > self.most {
            self.kept.clear();
        }
        let copies = copies.into_iter().map(Option::unwrap_or_default).chain(std::iter::repeat(Vec::new()));
        for (at, bytes) in pages.iter().zip(copies) {
            self.kept.insert(*at, Page { bytes, is_used });
        }
    }

    /// Copies the pages of pieces, given by address and bytes, that are not kept, by one question.
    pub(crate) fn fetch(&mut self, memory: Memory<'_>, pieces: impl Iterator<Item = (u64, usize)>) {
        let pages = pieces.flat_map(|(at, length)| {
            let last = at.saturating_add((length as u64).saturating_sub(1));
            (at / PAGE..=last / PAGE).map(|number| number * PAGE).take(self.most)
        });
        let mut pages: Vec<u64> = pages.filter(|at| !self.kept.contains_key(at)).collect();
        pages.sort_unstable();
        pages.dedup();
        if !pages.is_empty() {
            self.copy(memory, &pages, true);
        }
    }

    /// Fills `into` from a page; `None`: it cannot be read.
    fn of_page(&mut self, memory: Memory<'_>, page: u64, from: usize, into: &mut [u8]) -> Option<()> {
        if !self.kept.contains_key(&page) {
            self.copy(memory, &[page], true);
        }
        let page = self.kept.get_mut(&page)?;
        page.is_used = true;
        into.copy_from_slice(page.bytes.get(from..)?.get(..into.len())?);
        Some(())
    }

    /// Fills `into` from an address on.
    pub(crate) fn read(&mut self, memory: Memory<'_>, address: u64, into: &mut [u8]) -> Option<()> {
        let (mut at, mut rest) = (address, into);
        while !rest.is_empty() {
            let from = usize::try_from(at % PAGE).ok()?;
            let length = rest.len().min(PAGE_BYTES - from);
            let (part, behind) = rest.split_at_mut(length);
            self.of_page(memory, at - at % PAGE, from, part)?;
            at = at.checked_add(length as u64)?;
            rest = behind;
        }
        Some(())
    }

    pub(crate) fn word(&mut self, memory: Memory<'_>, address: u64) -> Option<u64> {
        let mut word = [0; 8];
        self.read(memory, address, &mut word)?;
        Some(u64::from_le_bytes(word))
    }

    /// Copies the pages again that were needed since the last time: the next reading mostly needs the same.
    pub(crate) fn renew(&mut self, memory: Memory<'_>) {
        let kept = std::mem::take(&mut self.kept);
        let used: Vec<u64> = kept.into_iter().filter(|(_, page)| page.is_used).map(|(at, _)| at).collect();
        if !used.is_empty() {
            self.copy(memory, &used, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;

    #[test]
    fn a_reading_of_many_pages_keeps_a_bound() {
        const MOST: usize = 64;
        let process = Process::open(std::process::id()).unwrap();
        let (memory, mut cache) = (Memory::new(&process), PageCache::new(MOST));
        let data = vec![7; (MOST + 40) * PAGE_BYTES];
        let first = (data.as_ptr() as u64).next_multiple_of(PAGE);
        for page in 0..MOST as u64 + 30 {
            let mut byte = [0];
            cache.read(memory, first + page * PAGE, &mut byte).unwrap();
            assert_eq!(byte, [7]);
            assert!(cache.kept.len() <= MOST);
        }
    }
}
