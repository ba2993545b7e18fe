//! Counts what becomes of each hit: `hits = delivered + lost_full`, to the last one.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::helpers::bpf_get_current_pid_tgid;

use crate::{
    common::{ProbeCounters, loss_slot},
    maps,
};

/// The counters of one probe on this CPU.
#[derive(Clone, Copy)]
pub struct Tally(*mut ProbeCounters);

/// Adds one and returns the count before; another task may count on this CPU between any two of our
/// instructions.
///
/// The intrinsic, because the BPF target has no compare-and-swap by default and so `core` leaves `fetch_add`
/// out. Ordered, because LLVM 22 makes of a relaxed one an addition that fetches nothing, whether its result
/// is used or not: every record then had the same number.
#[inline(always)]
fn count(counter: *mut u64) -> u64 {
    // SAFETY: the pointer is into a live element of COUNTERS or LOSSES, 8-byte aligned, and only ever accessed atomically here.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(counter, 1) }
}

impl Tally {
    /// Nothing for a cookie that the loader never gives.
    #[inline(always)]
    pub fn of(cookie: u32) -> Option<Self> {
        maps::COUNTERS.get_ptr_mut(cookie).map(Self)
    }

    /// The session is open and a record is to be made: its number. A program that makes several records in
    /// one hit counts each of them.
    #[inline(always)]
    pub fn hit(self) -> u64 {
        // SAFETY: a live map element.
        count(unsafe { &raw mut (*self.0).hits })
    }

    /// There was no room for it. Later records of the process say so.
    #[inline(always)]
    pub fn lost_full(self) {
        // SAFETY: as above.
        count(unsafe { &raw mut (*self.0).lost_full });
        if let Some(lost) = maps::LOSSES.get_ptr_mut(slot()) {
            count(lost);
        }
    }

    /// The session is not open: no record is to be made.
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

/// Records of the current process that were lost so far.
#[inline(always)]
pub fn lost_by_process() -> u64 {
    // SAFETY: a live map element; an aligned word that others only add to.
    maps::LOSSES.get_ptr(slot()).map_or(0, |lost| unsafe { lost.read_volatile() })
}

#[inline(always)]
fn slot() -> u32 {
    loss_slot((bpf_get_current_pid_tgid() >> 32) as u32)
}
