//! The BPF ring buffer (kernel 5.8): one for all CPUs, in the order of reservation. Records are built in place.

use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    maps::ring_buf::RingBufEntry,
    programs::ProbeContext,
};

use super::{Entry, Output, Room};
use crate::{
    common::{RecordHeader, WAKEUP_BYTES},
    maps,
};

/// The ring buffer.
pub struct RingBuffer;

/// A reservation in the ring buffer.
pub struct RingEntry<const SIZE: usize>(RingBufEntry<Room<SIZE>>);

impl Output for RingBuffer {
    type Entry<const SIZE: usize> = RingEntry<SIZE>;

    #[inline(always)]
    fn reserve<const SIZE: usize>() -> Option<RingEntry<SIZE>> {
        maps::RECORDS.reserve::<Room<SIZE>>(0).map(RingEntry)
    }
}

impl<const SIZE: usize> Entry for RingEntry<SIZE> {
    #[inline(always)]
    fn base(&self) -> *mut u8 {
        let room: *const MaybeUninit<Room<SIZE>> = &raw const *self.0;
        room.cast::<u8>().cast_mut()
    }

    #[inline(always)]
    fn submit(self, _ctx: &ProbeContext, header: RecordHeader) -> bool {
        // SAFETY: SIZE is larger than the header, and a reservation is 8-byte aligned.
        unsafe { self.base().cast::<RecordHeader>().write(header) };
        let flags = if maps::RECORDS.query(BPF_RB_AVAIL_DATA.into()) >= WAKEUP_BYTES {
            BPF_RB_FORCE_WAKEUP
        } else {
            BPF_RB_NO_WAKEUP
        };
        self.0.submit(flags.into());
        true
    }

    #[inline(always)]
    fn discard(self) {
        self.0.discard(BPF_RB_NO_WAKEUP.into());
    }
}
