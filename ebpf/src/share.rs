//! Who may put something into a ring buffer that is more than half full: see [`crate::common::ShareTaken`].

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::{
    bindings::BPF_RB_AVAIL_DATA,
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, generated::bpf_ringbuf_query},
};

use crate::{
    common::{ShareTaken, own_tenant, share_key},
    maps,
};

/// Bytes in the ring buffer with this number that were not read.
#[inline(always)]
pub fn unread(number: u32) -> u64 {
    // SAFETY: a live ring buffer.
    unsafe { bpf_ringbuf_query(maps::ring(number), BPF_RB_AVAIL_DATA.into()) }
}

/// Whether a reservation of this size is refused. Where the buffer is not so full this is one comparison.
#[inline(always)]
pub fn is_refused(ring: u32, size: u32) -> bool {
    // SAFETY: a live map element; an aligned word.
    let since = maps::CROWDED.get_ptr(ring).map_or(0, |since| unsafe { since.read_volatile() });
    since != 0 && is_over(ring, size) != 0
}

/// Notes how full the buffer is, where that has changed.
#[inline(always)]
pub fn note(ring: u32, unread: u64) {
    let Some(since) = maps::CROWDED.get_ptr_mut(ring) else { return };
    let is_crowded = unread > maps::common_bytes();
    // SAFETY: a live map element; an aligned word. Who comes second at the same moment begins a time anew, in which
    // shares are whole again.
    unsafe {
        if (since.read_volatile() != 0) != is_crowded {
            since.write_volatile(if is_crowded { bpf_ktime_get_ns() } else { 0 });
        }
    }
}

/// What a tenant has taken that was not seen before.
static NOTHING_TAKEN: ShareTaken = ShareTaken { since_ns: 0, bytes: 0, refused: 0 };

/// Counts a reservation for the tenant of the current process; 1 if its share is used up.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn is_over(ring: u32, size: u32) -> u64 {
    let Some(crowded) = maps::CROWDED.get_ptr(ring) else { return 0 };
    // It may have been read since.
    note(ring, unread(ring));
    // SAFETY: as above.
    let since = unsafe { crowded.read_volatile() };
    let share = maps::SHARES.get(ring).copied().unwrap_or(0);
    if since == 0 || share == 0 {
        return 0;
    }
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: a live map element; an aligned word.
    let known = maps::TENANTS.get_ptr(&tgid).map(|tenant| unsafe { tenant.read_volatile() });
    let tenant = match known {
        Some(tenant) => tenant,
        None => own_tenant(tgid),
    };
    let key = share_key(tenant, ring);
    let known = match maps::TAKEN.get_ptr_mut(&key) {
        None => {
            // Where it cannot be kept nothing is refused. Not from the stack: this is called deep down, where older
            // kernels have no more of it.
            let _ = maps::TAKEN.insert(&key, &NOTHING_TAKEN, 0);
            maps::TAKEN.get_ptr_mut(&key)
        }
        known => known,
    };
    let Some(taken) = known else { return 0 };
    // SAFETY: a live map element of aligned words, which others may change at the same time: what then counts for the
    // wrong time is a record.
    unsafe {
        if (&raw const (*taken).since_ns).read_volatile() != since {
            (&raw mut (*taken).since_ns).write_volatile(since);
            (&raw mut (*taken).bytes).write_volatile(0);
        }
        let before =
            atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(&raw mut (*taken).bytes, size as u64);
        if before + size as u64 <= share {
            return 0;
        }
        atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(&raw mut (*taken).refused, 1);
    }
    1
}
