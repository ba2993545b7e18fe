//! Room that a program has to itself: where records for the perf event array are built, and where a walk
//! keeps its state, as the frames of a call may have 512 bytes together (kernels before 6.13).
//!
//! Between two instructions of a program another task can be switched in on its CPU and run a program too, so
//! one slot per CPU would be overwritten. There are several, and a program has the one that it claimed until
//! it has sent its records. (A counter of how deep the nesting is would not do: tasks do not end in the
//! reverse order of their beginning.)

use core::intrinsics::{AtomicOrdering, atomic_xchg};

use crate::{
    common::{LARGEST_RECORD, SCRATCH_SLOTS},
    maps,
    state::{Room, Slot, Stack, State},
};

macro_rules! claims {
    ($claim:ident, $index:ident, $map:ident, $room:ty) => {
        /// A slot of this CPU that is now ours; nothing if all are taken.
        #[inline(always)]
        pub fn $claim() -> Option<*mut Slot<$room>> {
            // The task stays on its CPU while its program runs, so this is the element that was claimed.
            maps::$map.get_ptr_mut($index())
        }

        /// A function of its own, so that the verifier follows what comes after once and not once per slot.
        #[inline(never)]
        fn $index() -> u32 {
            let mut index = 0;
            while index < SCRATCH_SLOTS {
                if let Some(slot) = maps::$map.get_ptr_mut(index) {
                    // SAFETY: a live element of the map, 8-byte aligned.
                    let before = unsafe {
                        atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(&raw mut (*slot).claimed, 1)
                    };
                    if before == 0 {
                        return index;
                    }
                }
                index += 1;
            }
            SCRATCH_SLOTS
        }
    };
}

claims!(claim, claim_index, SCRATCH, Room<LARGEST_RECORD>);
claims!(claim_state, claim_state_index, STATES, State);
claims!(claim_stack, claim_stack_index, STACKS, Stack);

/// The slot is for others again.
#[inline(always)]
pub fn release<T>(slot: *mut Slot<T>) {
    // SAFETY: a live element of its map, ours until here.
    unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(&raw mut (*slot).claimed, 0) };
}
