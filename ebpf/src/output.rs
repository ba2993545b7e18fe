//! The ways out of the kernel side: a ring buffer, or a perf event array. The same records go through both.
//!
//! Which one is a constant of the session, which the loader sets before the programs are verified: the
//! verifier follows only one of the two ways, and the kernel leaves the other out.

use aya_ebpf::{
    bindings::{BPF_F_CURRENT_CPU, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::generated::{
        bpf_perf_event_output, bpf_ringbuf_discard, bpf_ringbuf_reserve, bpf_ringbuf_submit,
    },
};

use crate::{
    common::RecordHeader,
    maps, scratch,
    share::{self, unread},
    state::{Room, ScratchSlot},
};

/// The context of the program, which only the perf event array asks for. The name is that by which the kernel
/// knows the context of a uprobe program where a global function is given it.
#[repr(C)]
#[allow(non_camel_case_types, reason = "the kernel's name")]
pub struct bpf_user_pt_regs_t {
    opaque: u64,
}

/// Room for one record. To be submitted or discarded on every way.
pub struct Entry<const SIZE: usize> {
    room: *mut Room<SIZE>,
    /// Where the record is built for the perf event array.
    slot: *mut ScratchSlot,
}

impl<const SIZE: usize> Entry<SIZE> {
    /// Room for a record of at most `SIZE` bytes, or nothing if there is none: count that as a loss.
    #[inline(always)]
    pub fn reserve() -> Option<Self> {
        if maps::through_perf() {
            let slot = scratch::claim()?;
            // SAFETY: a live element of SCRATCH, which has room for the largest record.
            let room = unsafe { (&raw mut (*slot).room).cast() };
            return Some(Self { room, slot });
        }
        let number = maps::ring_number();
        if share::is_refused(number, SIZE as u32) {
            return None;
        }
        // SAFETY: a live ring buffer; SIZE is a constant.
        let room: *mut Room<SIZE> = unsafe { bpf_ringbuf_reserve(maps::ring(number), SIZE as u64, 0) }.cast();
        if room.is_null() { None } else { Some(Self { room, slot: core::ptr::null_mut() }) }
    }

    /// 8-byte aligned. What stands in it is undefined.
    #[inline(always)]
    pub fn room(&self) -> *mut Room<SIZE> {
        self.room
    }

    /// Writes the header and sends the record. Says whether it is on its way: if not, count that as a loss.
    #[must_use]
    #[inline(always)]
    pub fn submit(self, ctx: *mut bpf_user_pt_regs_t, header: RecordHeader) -> bool {
        // SAFETY: SIZE is larger than the header, and the room is 8-byte aligned.
        unsafe { self.room.cast::<RecordHeader>().write(header) };
        self.send(ctx, |_| {})
    }

    /// Sends what was written, header and all. Says whether it is on its way; if not, `lost` is given what is
    /// not.
    #[inline(always)]
    pub fn send(self, ctx: *mut bpf_user_pt_regs_t, lost: impl FnOnce(*mut Room<SIZE>)) -> bool {
        if maps::through_perf() {
            // SAFETY: the context is the program's own; SIZE bytes are in the room, which is ours until it is released.
            let failed = unsafe {
                bpf_perf_event_output(
                    ctx.cast(),
                    (&raw const maps::PERF_RECORDS).cast_mut().cast(),
                    BPF_F_CURRENT_CPU,
                    self.room.cast(),
                    SIZE as u64,
                )
            } < 0;
            if failed {
                lost(self.room);
            }
            scratch::release(self.slot);
            return !failed;
        }
        // SAFETY: a reservation of ours.
        unsafe { bpf_ringbuf_submit(self.room.cast(), wake_up()) };
        true
    }

    /// Sends what was written and wakes the reader. Says whether it is on its way.
    #[must_use]
    #[inline(always)]
    pub fn send_at_once(self, ctx: *mut bpf_user_pt_regs_t) -> bool {
        if maps::through_perf() {
            return self.send(ctx, |_| {}); // each of these wakes
        }
        // SAFETY: a reservation of ours.
        unsafe { bpf_ringbuf_submit(self.room.cast(), BPF_RB_FORCE_WAKEUP.into()) };
        true
    }

    /// Sends nothing.
    #[inline(always)]
    pub fn discard(self) {
        if maps::through_perf() {
            scratch::release(self.slot);
        } else {
            // SAFETY: a reservation of ours.
            unsafe { bpf_ringbuf_discard(self.room.cast(), BPF_RB_NO_WAKEUP.into()) };
        }
    }
}

/// Bytes above the mark within which a record wakes the reader: those of a few records, as others can come in
/// between.
const NEAR: u64 = 4096;

/// Whether the reader is to be woken by a record of the ring buffer: where the mark is passed, or a multiple
/// of it, and not by every record until the reader has come.
#[inline(always)]
fn wake_up() -> u64 {
    let number = maps::ring_number();
    let unread = unread(number);
    share::note(number, unread);
    let mark = maps::wakeup_bytes();
    let passed = unread >= mark && unread & (mark - 1) < NEAR;
    if passed { BPF_RB_FORCE_WAKEUP.into() } else { BPF_RB_NO_WAKEUP.into() }
}
