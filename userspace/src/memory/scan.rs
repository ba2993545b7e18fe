//! Looks for a word in the memory of a process.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{AddressSpace, Memory, ReadError, regions::Pages};
use crate::elf::RuntimeAddr;

/// Bytes that are copied at once: small enough to stay in the cache, large enough to make calls cheap.
const CHUNK: u64 = 1 << 20;
/// Bytes of address space whose pages are looked up at once.
const WINDOW: u64 = 256 << 20;

/// How much a scan may do.
#[derive(Clone, Copy, Debug)]
pub struct ScanLimits {
    /// Most bytes to copy.
    pub bytes: u64,
    /// Longest time.
    pub time: Duration,
}

impl Default for ScanLimits {
    fn default() -> Self {
        Self { bytes: 64 << 30, time: Duration::from_secs(30) }
    }
}

/// What a scan did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScanReport {
    /// Mappings that data can be in, and their bytes.
    pub mappings: usize,
    pub mapped_bytes: u64,
    /// Bytes that were copied: pages that were never touched are not.
    pub scanned_bytes: u64,
    pub milliseconds: u64,
    /// Every page was looked at. Otherwise a limit was reached, or the search was ended early.
    pub complete: bool,
    /// Chunks that could not be read: unmapped meanwhile.
    pub unreadable: u64,
}

/// Copies memory chunk by chunk and compares words.
#[derive(Debug)]
pub struct Scanner<'p> {
    memory: Memory<'p>,
    limits: ScanLimits,
    buffer: Vec<u8>,
}

impl<'p> Scanner<'p> {
    pub fn new(memory: Memory<'p>, limits: ScanLimits) -> Self {
        Self { memory, limits, buffer: Vec::new() }
    }

    /// Calls `found` for every 8-byte-aligned place in the regions of `space` for which `matches(address, word)` holds,
    /// until it breaks.
    ///
    /// # Errors
    /// When the process is gone or may not be read; mappings that vanish are counted and passed over.
    pub fn search(
        &mut self,
        space: &AddressSpace,
        matches: impl Fn(u64, u64) -> bool,
        mut found: impl FnMut(RuntimeAddr) -> ControlFlow<()>,
    ) -> Result<ScanReport, ReadError> {
        let started = Instant::now();
        let mut pages = Pages::open(self.memory.process());
        let mut report = ScanReport {
            mappings: space.regions.len(),
            mapped_bytes: space.bytes(),
            ..ScanReport::default()
        };
        let mut ended = ControlFlow::Continue(());
        'regions: for region in &space.regions {
            for window in pieces(region.start, region.end, WINDOW) {
                for run in pages.filled(RuntimeAddr(window.0), RuntimeAddr(window.1)) {
                    for (start, end) in pieces(run.0, run.1, CHUNK) {
                        let out_of_bounds = report.scanned_bytes >= self.limits.bytes
                            || started.elapsed() >= self.limits.time;
                        if out_of_bounds || ended.is_break() {
                            ended = ControlFlow::Break(());
                            break 'regions;
                        }
                        ended = self.chunk(start, end, &mut report, &matches, &mut found)?;
                    }
                }
                if started.elapsed() >= self.limits.time {
                    ended = ControlFlow::Break(());
                    break 'regions;
                }
            }
        }
        report.complete = ended.is_continue();
        report.milliseconds = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(report)
    }

    fn chunk(
        &mut self,
        start: u64,
        end: u64,
        report: &mut ScanReport,
        matches: &impl Fn(u64, u64) -> bool,
        found: &mut impl FnMut(RuntimeAddr) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, ReadError> {
        let length = usize::try_from(end - start).unwrap_or(0);
        self.buffer.resize(length, 0);
        let read = match self.memory.read_some(RuntimeAddr(start), &mut self.buffer) {
            Ok(read) => read,
            Err(error) if error.is_final() => return Err(error),
            Err(_) => 0,
        };
        if read < length {
            report.unreadable += 1;
        }
        report.scanned_bytes += read as u64;
        let words = self.buffer.get(..read).unwrap_or_default().as_chunks::<8>().0;
        for (at, word) in (start..).step_by(8).zip(words) {
            if matches(at, u64::from_le_bytes(*word)) && found(RuntimeAddr(at)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// `start..end` in pieces of at most `size`, each but the last ending at a multiple of `size`.
fn pieces(start: u64, end: u64, size: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut from = start;
    std::iter::from_fn(move || {
        let to = (from / size).checked_add(1).and_then(|next| next.checked_mul(size)).unwrap_or(end).min(end);
        let piece = (from < to).then_some((from, to));
        from = to;
        piece
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{memory::Region, target::Process};

    const WORD: u64 = 0x1234_5678_9abc_def1;

    fn space_of(data: &[u64]) -> AddressSpace {
        let start = data.as_ptr() as u64;
        let region = Region { start, end: start + 8 * data.len() as u64, is_heap: false };
        AddressSpace { regions: vec![region], ..AddressSpace::default() }
    }

    #[test]
    fn words_are_found_where_they_are_also_at_the_edges_of_chunks() {
        let process = Process::open(std::process::id()).unwrap();
        let mut data = vec![7u64; 400_000];
        let places = [0, 1, 131_071, 131_072, 200_000, 399_999];
        for place in places {
            data[place] = WORD;
        }
        let mut found = Vec::new();
        let report = Scanner::new(Memory::new(&process), ScanLimits::default())
            .search(
                &space_of(&data),
                |_, word| word == WORD,
                |at| {
                    found.push(usize::try_from((at.0 - data.as_ptr() as u64) / 8).unwrap());
                    ControlFlow::Continue(())
                },
            )
            .unwrap();
        assert_eq!(found, places);
        assert!(report.complete && report.scanned_bytes == 3_200_000 && report.unreadable == 0, "{report:?}");
    }

    #[test]
    fn limits_and_an_early_end_are_reported_as_incomplete() {
        let process = Process::open(std::process::id()).unwrap();
        let data = vec![WORD; 1_000_000];
        let memory = Memory::new(&process);
        let search = |limits, end: ControlFlow<()>| {
            Scanner::new(memory, limits).search(&space_of(&data), |_, word| word == WORD, |_| end).unwrap()
        };
        let few = ScanLimits { bytes: 1 << 20, ..ScanLimits::default() };
        let report = search(few, ControlFlow::Continue(()));
        assert!(!report.complete && report.scanned_bytes < 4 << 20, "{report:?}");
        assert!(!search(ScanLimits::default(), ControlFlow::Break(())).complete);
        let no_time = ScanLimits { time: Duration::ZERO, ..ScanLimits::default() };
        assert_eq!(search(no_time, ControlFlow::Continue(())).scanned_bytes, 0);
    }

    #[test]
    fn what_was_unmapped_meanwhile_is_counted_not_fatal() {
        let process = Process::open(std::process::id()).unwrap();
        let region = Region { start: 0x1000, end: 0x3000, is_heap: false };
        let space = AddressSpace { regions: vec![region], ..AddressSpace::default() };
        let report = Scanner::new(Memory::new(&process), ScanLimits::default())
            .search(&space, |_, _| true, |_| ControlFlow::Continue(()))
            .unwrap();
        assert_eq!(report.scanned_bytes, 0);
    }
}
