//! Where records for the perf event array are built.
//!
//! Between two instructions of a program another task can be switched in on its CPU and run a program too, so one slot per
//! CPU would be overwritten. There are several, and a program has the one that it claimed until it has sent its record.
//! (A counter of how deep the nesting is would not do: tasks do not end in the reverse order of their beginning.)

use core::intrinsics::{AtomicOrdering, atomic_xchg};

use crate::{
    common::{LARGEST_RECORD, SCRATCH_SLOTS},
    fetch::Room,
    maps,
};

/// Room for the largest record, and whether it is taken.
#[repr(C)]
pub struct ScratchSlot {
    /// 1 while a program has the slot; only ever accessed atomically.
    claimed: u64,
    pub room: Room<LARGEST_RECORD>,
}

/// A slot of this CPU that is now ours; nothing if all are taken.
#[inline(always)]
pub fn claim() -> Option<*mut ScratchSlot> {
    // The task stays on its CPU while its program runs, so this is the element that was claimed.
    maps::SCRATCH.get_ptr_mut(claim_index())
}

/// A function of its own, so that the verifier follows what comes after once and not once per slot.
#[inline(never)]
fn claim_index() -> u32 {
    let mut index = 0;
    while index < SCRATCH_SLOTS {
        if let Some(slot) = maps::SCRATCH.get_ptr_mut(index) {
            // SAFETY: a live element of SCRATCH, 8-byte aligned.
            let before =
                unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(&raw mut (*slot).claimed, 1) };
            if before == 0 {
                return index;
            }
        }
        index += 1;
    }
    SCRATCH_SLOTS
}

/// The slot is for others again.
#[inline(always)]
pub fn release(slot: *mut ScratchSlot) {
    // SAFETY: a live element of SCRATCH, ours until here.
    unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(&raw mut (*slot).claimed, 0) };
}
