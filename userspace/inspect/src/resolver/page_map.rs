//! Finds the pages of a process that hold data.
//!
//! Reading a page that was never touched makes the kernel build page tables for it in the target, and there
//! can be hundreds of gigabytes of such pages. From Linux 6.7 on the kernel lists filled pages itself
//! (`PAGEMAP_SCAN`). Before, `/proc/PID/pagemap` has a word for every page
//! (Documentation/admin-guide/mm/pagemap.rst).

use std::{
    fs::File,
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    sync::atomic::{AtomicBool, Ordering},
};

use linux_raw_sys::general::{PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PAGE_IS_SWAPPED, page_region, pm_scan_arg};

/// Bits of a word of `/proc/PID/pagemap`: the page is in memory, or swapped out.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// `_IOWR('f', 16, struct pm_scan_arg)`, include/uapi/linux/fs.h.
pub(super) const PAGEMAP_SCAN: u32 = 0xc060_6610;
/// Runs that are listed by one call.
const RUNS: usize = 1024;

/// Returns the runs of filled pages between `start` and `end`, as (start, end), in order. Asked in this
/// process: [`super::filled`] has a child ask.
pub(super) fn filled_pages(pagemap: &File, start: u64, end: u64) -> Vec<(u64, u64)> {
    /// Cleared on an older kernel, which will not know the call the next time either.
    static LISTS: AtomicBool = AtomicBool::new(true);
    if LISTS.load(Ordering::Relaxed) {
        if let Some(runs) = list(pagemap, start, end) {
            return runs;
        }
        LISTS.store(false, Ordering::Relaxed);
    }
    look_at_each(pagemap, start, end)
}

/// Lists the runs by `PAGEMAP_SCAN`; `None` where the kernel does not have it.
fn list(pagemap: &File, start: u64, end: u64) -> Option<Vec<(u64, u64)>> {
    let page = rustix::param::page_size() as u64;
    let first = start - start % page;
    let last = end.checked_next_multiple_of(page)?;
    let (mut runs, mut listed) = (Vec::new(), vec![page_region { start: 0, end: 0, categories: 0 }; RUNS]);
    let mut from = first;
    while from < last {
        let mut arg = pm_scan_arg {
            size: size_of::<pm_scan_arg>() as u64,
            flags: 0,
            start: from,
            end: last,
            walk_end: 0,
            vec: listed.as_mut_ptr() as u64,
            vec_len: listed.len() as u64,
            max_pages: 0,
            // Pages that are filled, and are not the page of zeros that all processes share.
            category_inverted: PAGE_IS_PFNZERO.into(),
            category_mask: PAGE_IS_PFNZERO.into(),
            category_anyof_mask: u64::from(PAGE_IS_PRESENT | PAGE_IS_SWAPPED),
            return_mask: PAGE_IS_PRESENT.into(),
        };
        // SAFETY: `arg` is the struct that this request takes, with its own size in it, and `vec` is
        // valid for writes of `vec_len` page regions until the call returns. Without flags nothing
        // changes in the target.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as libc::Ioctl, &raw mut arg) };
        let found = listed.get(..usize::try_from(count).ok()?)?;
        runs.extend(found.iter().map(|run| (run.start.max(start), run.end.min(end))));
        if arg.walk_end <= from {
            break;
        }
        from = arg.walk_end;
    }
    Some(join(runs))
}

fn look_at_each(pagemap: &File, start: u64, end: u64) -> Vec<(u64, u64)> {
    let page = rustix::param::page_size() as u64;
    let first = start / page;
    let count = end.div_ceil(page).saturating_sub(first);
    let Ok(bytes) = usize::try_from(count.saturating_mul(8)) else { return vec![(start, end)] };
    let mut words = vec![0; bytes];
    // A short read means that the rest is not mapped any more.
    let Ok(read) = pagemap.read_at(&mut words, first.saturating_mul(8)) else {
        return vec![(start, end)];
    };
    let words = words.get(..read).unwrap_or_default();
    let filled = (first..).zip(words.as_chunks::<8>().0);
    let filled = filled.filter(|(_, word)| u64::from_le_bytes(**word) & (PRESENT | SWAPPED) != 0);
    join(filled.map(|(number, _)| ((number * page).max(start), ((number + 1) * page).min(end))))
}

fn join(runs: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.1 == run.0 => last.1 = run.1,
            _ => joined.push(run),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anonymous memory for a test: 64 pages, of which some are written to.
    struct Mapping(*mut u8, u64);

    impl Mapping {
        fn new(page: u64) -> Self {
            let length = usize::try_from(64 * page).unwrap();
            // SAFETY: a new mapping; nothing else is touched.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    length,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                )
            };
            assert_ne!(at, libc::MAP_FAILED);
            // SAFETY: our own mapping. Huge pages would fill more than is written.
            unsafe { libc::madvise(at, length, libc::MADV_NOHUGEPAGE) };
            Self(at.cast(), page)
        }

        fn touch(&self, page: u64) {
            // SAFETY: inside the mapping.
            unsafe { self.0.add(usize::try_from(page * self.1).unwrap()).write_volatile(1) };
        }

        fn address(&self, page: u64) -> u64 {
            self.0 as u64 + page * self.1
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: the mapping that `new` made; nobody uses it any more.
            unsafe { libc::munmap(self.0.cast(), usize::try_from(64 * self.1).unwrap()) };
        }
    }

    #[test]
    fn only_pages_that_were_written_to_are_filled_whichever_way_it_is_found_out() {
        let pagemap = &File::open("/proc/self/pagemap").unwrap();
        let mapping = Mapping::new(rustix::param::page_size() as u64);
        for page in [3, 4, 5, 20, 63] {
            mapping.touch(page);
        }
        let at = |page| mapping.address(page);
        let expected = [(at(3), at(6)), (at(20), at(21)), (at(63), at(64))];
        assert_eq!(look_at_each(pagemap, at(0), at(64)), expected);
        if let Some(listed) = list(pagemap, at(0), at(64)) {
            assert_eq!(listed, expected);
            // A range that begins and ends within pages.
            assert_eq!(
                list(pagemap, at(4) + 8, at(20) + 16).unwrap(),
                [(at(4) + 8, at(6)), (at(20), at(20) + 16)]
            );
        }
        assert_eq!(look_at_each(pagemap, at(6), at(20)), []);
    }
}
