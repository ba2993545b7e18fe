//! The perf event array: a buffer per CPU, into which the kernel copies. Records are built in a scratch slot.
//!
//! Between two instructions of a program another task can be switched in on its CPU and run a program too, so one slot per
//! CPU would be overwritten. There are several, and a program has the one that it claimed until it has sent its record.
//! (A counter of how deep the nesting is would not do: tasks do not end in the reverse order of their beginning.)

use core::intrinsics::{AtomicOrdering, atomic_xchg};

use aya_ebpf::{
    EbpfContext as _, bindings::BPF_F_CURRENT_CPU, helpers::generated::bpf_perf_event_output,
    programs::ProbeContext,
};

use super::{Entry, Output, Room};
use crate::{
    common::{LARGEST_RECORD, RecordHeader, SCRATCH_SLOTS},
    maps,
};

/// The perf event array.
pub struct PerfArray;

/// Room for the largest record, and who has it.
#[repr(C)]
pub struct ScratchSlot {
    /// 1 while a program has the slot; only ever accessed atomically.
    claimed: u64,
    room: Room<LARGEST_RECORD>,
}

/// A claimed scratch slot.
pub struct PerfEntry<const SIZE: usize>(*mut ScratchSlot);

/// Index of a slot of this CPU that is now ours. [`SCRATCH_SLOTS`] if all are taken.
///
/// A function of its own, so that the verifier follows what comes after once and not once per slot.
#[inline(never)]
fn claim() -> u32 {
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

impl Output for PerfArray {
    type Entry<const SIZE: usize> = PerfEntry<SIZE>;

    #[inline(always)]
    fn reserve<const SIZE: usize>() -> Option<PerfEntry<SIZE>> {
        const { assert!(SIZE <= LARGEST_RECORD) };
        // The task stays on its CPU while its program runs, so this is the element that was claimed.
        maps::SCRATCH.get_ptr_mut(claim()).map(PerfEntry)
    }
}

impl<const SIZE: usize> PerfEntry<SIZE> {
    #[inline(always)]
    fn release(self) {
        // SAFETY: a live element of SCRATCH, ours until here.
        unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(&raw mut (*self.0).claimed, 0) };
    }
}

impl<const SIZE: usize> Entry for PerfEntry<SIZE> {
    #[inline(always)]
    fn base(&self) -> *mut u8 {
        // SAFETY: a live element of SCRATCH.
        unsafe { (&raw mut (*self.0).room).cast() }
    }

    #[inline(always)]
    fn submit(self, ctx: &ProbeContext, header: RecordHeader) -> bool {
        let base = self.base();
        // SAFETY: the room is larger than the header and 8-byte aligned.
        unsafe { base.cast::<RecordHeader>().write(header) };
        let flags = BPF_F_CURRENT_CPU;
        // SAFETY: the context is the program's own; SIZE bytes from `base` are in the slot.
        let failed = unsafe {
            bpf_perf_event_output(
                ctx.as_ptr(),
                (&raw const maps::PERF_RECORDS).cast_mut().cast(),
                flags,
                base.cast(),
                SIZE as u64,
            )
        } < 0;
        self.release();
        !failed
    }

    #[inline(always)]
    fn discard(self) {
        self.release();
    }
}
