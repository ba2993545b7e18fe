//! A pack: records of a walk that travel together, as one item of the buffer.

use crate::{
    common::{PACK_BYTES, PACKED, PACKED_BYTES, RecordHeader},
    emit,
    state::{Room, State},
    tally::Tally,
};

/// Makes a pack empty. Nothing of it is in the processor's caches, so some of every record is written before
/// it is known what: the memory is on its way while the nodes are read.
#[inline(always)]
pub fn clear(room: *mut Room<PACK_BYTES>) {
    const LINE: usize = 64;
    const LINES: usize = 4;
    let mut i = 0;
    while i < PACKED {
        let mut line = 0;
        while line < LINES {
            // SAFETY: within the pack, 8-byte aligned. Volatile, as it is written again.
            unsafe {
                room.cast::<u8>().add(i * PACKED_BYTES + line * LINE).cast::<u64>().write_volatile(0);
            }
            line += 1;
        }
        i += 1;
    }
}

/// The header of a record of a pack, if it is there.
#[inline(always)]
fn header_in<'a>(room: *mut Room<PACK_BYTES>, record: usize) -> Option<&'a mut RecordHeader> {
    // SAFETY: within the pack, 8-byte aligned; what stands there was written here.
    let header = unsafe { &mut *room.cast::<u8>().add(record * PACKED_BYTES).cast::<RecordHeader>() };
    if header.len != 0 { Some(header) } else { None }
}

/// Counts the records of a pack.
#[inline(always)]
pub fn number_all(room: *mut Room<PACK_BYTES>, state: &State) {
    let mut i = 0;
    while i < PACKED {
        if let Some(header) = header_in(room, i) {
            let own = header.probe as u32 == state.cookie;
            emit::number(header, if own { Some(state.hit) } else { None });
        }
        i += 1;
    }
}

/// Counts the records of a pack that was not sent.
#[inline(always)]
pub fn pack_is_lost(room: *mut Room<PACK_BYTES>) {
    let mut i = 0;
    while i < PACKED {
        if let Some(header) = header_in(room, i)
            && let Some(tally) = Tally::of(header.probe as u32)
        {
            tally.lost_full();
        }
        i += 1;
    }
}

/// The place of the pack's next record.
#[inline(always)]
pub fn place_of(room: *mut Room<PACK_BYTES>, state: &State) -> *mut Room<PACKED_BYTES> {
    if room.is_null() {
        return core::ptr::null_mut();
    }
    // Volatile, so that the address is not computed before it is known not to be null: the verifier forbids
    // that. SAFETY: a field of a live value.
    let packed = unsafe { (&raw const state.packed).read_volatile() } as usize;
    if packed >= PACKED {
        return core::ptr::null_mut();
    }
    // SAFETY: within the pack.
    unsafe { room.cast::<u8>().add(packed * PACKED_BYTES).cast() }
}
