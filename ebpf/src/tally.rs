//! Counts what becomes of each hit: `hits = delivered + lost_full + disarmed`, to the last one.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use crate::{common::ProbeCounters, maps};

/// The counters of one probe on this CPU.
#[derive(Clone, Copy)]
pub struct Tally(*mut ProbeCounters);

/// Adds one and returns the count before; another task may count on this CPU between any two of our instructions.
///
/// The intrinsic, because the BPF target has no compare-and-swap by default and so `core` leaves `fetch_add` out.
#[inline(always)]
fn count(counter: *mut u64) -> u64 {
    // SAFETY: the pointer is into a live element of COUNTERS, 8-byte aligned, and only ever accessed atomically here.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, 1) }
}

impl Tally {
    /// Nothing for a cookie that the loader never gives.
    #[inline(always)]
    pub fn of(cookie: u32) -> Option<Self> {
        maps::COUNTERS.get_ptr_mut(cookie).map(Self)
    }

    /// A record is to be made: its number. A program that makes several records in one hit counts each of them.
    #[inline(always)]
    pub fn hit(self) -> u64 {
        // SAFETY: a live map element.
        count(unsafe { &raw mut (*self.0).hits })
    }

    /// There was no room for it.
    #[inline(always)]
    pub fn lost_full(self) {
        // SAFETY: as above.
        count(unsafe { &raw mut (*self.0).lost_full });
    }

    /// The session is not open.
    #[inline(always)]
    pub fn disarmed(self) {
        // SAFETY: as above.
        count(unsafe { &raw mut (*self.0).disarmed });
    }

    /// It is sent with something unread.
    #[inline(always)]
    pub fn faulted(self) {
        // SAFETY: as above.
        count(unsafe { &raw mut (*self.0).faulted });
    }
}
