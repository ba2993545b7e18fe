//! Count the hit, reserve, run the plan, submit; or count the loss. The only way out of the kernel side.

use core::{
    intrinsics::{AtomicOrdering, atomic_xadd},
    mem::MaybeUninit,
};

use aya_ebpf::{
    EbpfContext as _,
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns,
        generated::bpf_get_attach_cookie,
    },
    programs::ProbeContext,
};
use aya_log_ebpf::debug;

use crate::{
    common::{ProbeCounters, RecordHeader, WAKEUP_BYTES},
    fetch, maps,
};

/// Room for one record of at most `SIZE` bytes, aligned as the ring buffer aligns it.
#[repr(C, align(8))]
struct Room<const SIZE: usize>([u8; SIZE]);

/// Adds one and returns the count before; another task may count on this CPU between any two of our instructions.
///
/// The intrinsic, because the BPF target has no compare-and-swap by default and so `core` leaves `fetch_add` out.
#[inline(always)]
fn count(counter: *mut u64) -> u64 {
    // SAFETY: the pointer is into a live element of COUNTERS, 8-byte aligned, and only ever accessed atomically here.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, 1) }
}

/// Sends one record for the probe that was hit, or counts why not.
#[inline(always)]
pub fn record<const SIZE: usize>(ctx: &ProbeContext) {
    // SAFETY: the context is the one that the kernel gave to this program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u32;
    let Some(counters): Option<*mut ProbeCounters> = maps::COUNTERS.get_ptr_mut(cookie) else {
        return; // a cookie that the loader never gives
    };
    // SAFETY: `counters` is a live map element.
    let hit = count(unsafe { &raw mut (*counters).hits });
    let plan = match maps::PLANS.get(cookie) {
        Some(plan) if plan.n_steps != 0 && maps::wire_version_agrees() => plan,
        _ => {
            // SAFETY: as above.
            count(unsafe { &raw mut (*counters).disarmed });
            return;
        }
    };
    let Some(mut entry) = maps::RECORDS.reserve::<Room<SIZE>>(0) else {
        // SAFETY: as above.
        count(unsafe { &raw mut (*counters).lost_full });
        return;
    };
    let room: *mut MaybeUninit<Room<SIZE>> = &raw mut *entry;
    let base = room.cast::<u8>();
    let faults = fetch::run::<SIZE>(ctx, plan, base);
    if faults != 0 {
        // The development log: at level 0, the default, the verifier drops this.
        debug!(ctx, "probe {} of process {}: reads failed in steps {:x}", cookie, ctx.tgid(), faults);
        // SAFETY: as above.
        count(unsafe { &raw mut (*counters).faulted });
    }
    let pid_tgid = bpf_get_current_pid_tgid();
    let header = RecordHeader {
        len: plan.record_len as u16,
        probe: cookie as u16,
        // SAFETY: a helper without arguments.
        cpu: unsafe { bpf_get_smp_processor_id() } as u32,
        hit,
        // SAFETY: a helper without arguments.
        ts_ns: unsafe { bpf_ktime_get_ns() },
        tgid: (pid_tgid >> 32) as u32,
        tid: pid_tgid as u32,
        faults,
    };
    // SAFETY: SIZE is larger than the header, and the reservation is 8-byte aligned.
    unsafe { base.cast::<RecordHeader>().write(header) };
    let flags = if maps::RECORDS.query(BPF_RB_AVAIL_DATA.into()) >= WAKEUP_BYTES {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    entry.submit(flags.into());
}
