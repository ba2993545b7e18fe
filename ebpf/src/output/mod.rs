//! The ways out of the kernel side: a ring buffer, or a perf event array. The same records go through both.
//!
//! Which one is a choice of the program: the loader attaches the program of the buffer that it reads.

mod perf;
mod ring;

use aya_ebpf::programs::ProbeContext;
pub use perf::{PerfArray, ScratchSlot};
pub use ring::RingBuffer;

use crate::common::RecordHeader;

/// A buffer that user space reads.
pub trait Output {
    /// Room for a record of at most `SIZE` bytes.
    type Entry<const SIZE: usize>: Entry;

    /// Room for a record, or nothing if there is none: count that as a loss. What comes out must be submitted or discarded
    /// on every way.
    fn reserve<const SIZE: usize>() -> Option<Self::Entry<SIZE>>;
}

/// Room for one record.
pub trait Entry {
    /// The first of its `SIZE` bytes, 8-byte aligned. What stands there before is undefined.
    fn base(&self) -> *mut u8;

    /// Writes the header and sends the record. Says whether it is on its way: if not, count that as a loss.
    #[must_use]
    fn submit(self, ctx: &ProbeContext, header: RecordHeader) -> bool;

    /// Sends nothing.
    fn discard(self);
}

/// Bytes of one record, aligned as the ring buffer aligns them.
#[repr(C, align(8))]
pub struct Room<const SIZE: usize>([u8; SIZE]);
