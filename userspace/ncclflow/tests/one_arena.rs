//! Threads allocate from one arena. This is a program without the test harness: the harness runs tests in a
//! second thread, and there glibc has decided already.

#![cfg(target_env = "gnu")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, sync::Barrier, thread};

/// glibc reserves this much for each arena but the first one, at addresses that are multiples of it
/// (`HEAP_MAX_SIZE` of malloc/arena.c, 64-bit).
const ARENA: u64 = 64 << 20;

/// Arenas beside the first one, by the kernel's own list of mappings: readable memory from a multiple of 64
/// MiB, and behind it the reserve up to the next multiple.
fn further_arenas() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let ranges: Vec<(u64, u64, &str)> = maps
        .lines()
        .map(|line| {
            let (range, rest) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            (number(start), number(end), &rest[..4])
        })
        .collect();
    ranges
        .windows(2)
        .filter(|pair| {
            let [(start, end, used), (reserve, reserve_end, unused)] = pair else { return false };
            start % ARENA == 0
                && *used == "rw-p"
                && end == reserve
                && *unused == "---p"
                && *reserve_end == start + ARENA
        })
        .count()
}

/// Most arenas that were there at once while eight threads held what they had allocated.
fn arenas_of_eight_threads() -> usize {
    let (allocated, counted) = (Barrier::new(9), Barrier::new(9));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let held: Vec<Vec<u8>> = (0..100).map(|_| vec![1; 4096]).collect();
                allocated.wait();
                counted.wait();
                assert!(held.iter().flatten().all(|byte| *byte == 1));
            });
        }
        allocated.wait();
        let count = further_arenas();
        counted.wait();
        count
    })
}

fn main() {
    ncclflow::allocator::share_one_arena();
    assert_eq!(
        arenas_of_eight_threads(),
        0,
        "arenas beside the first one, with eight threads that hold memory"
    );
}
