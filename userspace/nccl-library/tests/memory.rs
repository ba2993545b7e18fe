//! Memory that resolving a hostile file takes, as the allocator counts it.
//!
//! One test: all threads of the program share the allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fs,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use nccl_library::{
    elf::Image,
    symbols::{nccl_request, resolve},
};
use test_support::{hostile_file::overlapping_tables, nccl};

/// Counts what is allocated.
struct Counted;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Returns the most memory that was held at a time during `work`, beyond what was held before.
fn peak(work: impl FnOnce()) -> usize {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    work();
    PEAK.load(Relaxed) - before
}

#[test]
fn a_small_file_of_overlapping_tables_is_refused_before_it_takes_much() {
    /// Budget for derived structures, plus the bytes that are read of the file.
    const MOST: usize = (256 + 64) << 20;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libnccl.so.2");
    fs::write(&file, overlapping_tables()).unwrap();
    let taken = peak(|| {
        let resolution = resolve(&Image::open(&file).unwrap(), &nccl_request()).unwrap();
        let problems = format!("{:?}", resolution.problems);
        assert!(problems.contains("bytes of memory"), "it says why: {problems}");
    });
    assert!(taken < MOST, "{taken} bytes");

    // A real one needs a small part of it.
    let Some(library) = nccl("2.32.3-cu12") else { return };
    let taken = peak(|| {
        let resolution = resolve(&Image::open(&library).unwrap(), &nccl_request()).unwrap();
        assert!(!resolution.functions.is_empty());
    });
    assert!(taken < MOST / 4, "{taken} bytes");
}
