//! Count the hit, reserve, run the plan, submit; or count the loss.

use aya_ebpf::{
    EbpfContext as _,
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns,
        generated::bpf_get_attach_cookie,
    },
    programs::ProbeContext,
};
use aya_log_ebpf::debug;

use crate::{
    common::RecordHeader,
    fetch, maps,
    output::{Entry as _, Output},
    tally::{Tally, lost_by_process},
};

/// Sends one record for the probe that was hit, or counts why not.
#[inline(always)]
pub fn record<O: Output, const SIZE: usize>(ctx: &ProbeContext) {
    // SAFETY: the context is the one that the kernel gave to this program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u32;
    let Some(tally) = Tally::of(cookie) else { return };
    let plan = match maps::PLANS.get(cookie) {
        Some(plan) if plan.n_steps != 0 && maps::armed() => plan,
        _ => return tally.disarmed(),
    };
    let hit = tally.hit();
    let Some(entry) = O::reserve::<SIZE>() else { return tally.lost_full() };
    let Some(faults) = fetch::run::<SIZE>(ctx, plan, entry.base()) else {
        // The loader has checked the plan, so this does not happen; if it did, it would be a loss.
        entry.discard();
        return tally.lost_full();
    };
    let header = header(plan.record_len as u16, cookie as u16, hit, faults);
    if !entry.submit(ctx, header) {
        return tally.lost_full();
    }
    if faults != 0 {
        // The development log: at level 0, the default, the verifier drops this.
        debug!(ctx, "probe {} of process {}: reads failed in steps {:x}", cookie, ctx.tgid(), faults);
        tally.faulted();
    }
}

/// The header of a record of `len` bytes that the current task makes now.
#[inline(always)]
pub fn header(len: u16, probe: u16, hit: u64, faults: u64) -> RecordHeader {
    let pid_tgid = bpf_get_current_pid_tgid();
    RecordHeader {
        len,
        probe,
        // SAFETY: a helper without arguments.
        cpu: unsafe { bpf_get_smp_processor_id() } as u32,
        hit,
        // SAFETY: a helper without arguments.
        ts_ns: unsafe { bpf_ktime_get_ns() },
        tgid: (pid_tgid >> 32) as u32,
        tid: pid_tgid as u32,
        faults,
        lost: lost_by_process(),
    }
}
