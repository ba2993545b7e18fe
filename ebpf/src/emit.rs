//! Count the hit, reserve, run the plan, submit; or count the loss. The only way out of the kernel side.

use core::{
    intrinsics::{AtomicOrdering, atomic_xadd},
    mem::MaybeUninit,
};

use aya_ebpf::{
    EbpfContext,
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns,
        generated::bpf_get_attach_cookie,
    },
    programs::{ProbeContext, RetProbeContext},
};
use aya_log_ebpf::debug;

use crate::{
    common::{FetchPlan, ProbeCounters, RECORD_CLASSES, RecordHeader, SLOTS, WAKEUP_BYTES},
    fetch::{self, Room, Words},
    maps,
};

/// What a record's header says beside the plan's own numbers.
#[derive(Clone, Copy)]
pub struct Origin {
    pub ts_ns: u64,
    pub pid_tgid: u64,
}

impl Origin {
    #[inline(always)]
    pub fn here() -> Self {
        // SAFETY: a helper without arguments.
        Self { ts_ns: unsafe { bpf_ktime_get_ns() }, pid_tgid: bpf_get_current_pid_tgid() }
    }
}

/// A plan, its counters, and the number of this hit.
#[derive(Clone, Copy)]
pub struct Hit<'a> {
    pub number: u32,
    pub plan: &'a FetchPlan,
    pub counters: *mut ProbeCounters,
    pub hit: u64,
}

/// Adds one and returns the count before; another task may count on this CPU between any two of our instructions.
///
/// The intrinsic, because the BPF target has no compare-and-swap by default and so `core` leaves `fetch_add` out.
#[inline(always)]
pub fn count(counter: *mut u64) -> u64 {
    // SAFETY: the pointer is into a live element of COUNTERS, 8-byte aligned, and only ever accessed atomically here.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, 1) }
}

/// The cookie of the probe that was hit.
#[inline(always)]
pub fn cookie(ctx: &impl EbpfContext) -> u32 {
    // SAFETY: the context is the one that the kernel gave to this program.
    unsafe { bpf_get_attach_cookie(ctx.as_ptr()) as u32 }
}

/// Counts a hit of this number; nothing if nothing is to be sent.
#[inline(always)]
pub fn hit<'a>(number: u32) -> Option<Hit<'a>> {
    // None: a number that the loader never gives.
    let counters: *mut ProbeCounters = maps::COUNTERS.get_ptr_mut(number)?;
    // SAFETY: `counters` is a live map element.
    let hit = count(unsafe { &raw mut (*counters).hits });
    match maps::PLANS.get(number) {
        Some(plan) if plan.n_steps != 0 && maps::armed() => Some(Hit { number, plan, counters, hit }),
        _ => {
            // SAFETY: as above.
            count(unsafe { &raw mut (*counters).disarmed });
            None
        }
    }
}

/// Sends one record for the probe that was hit.
#[inline(always)]
pub fn record(ctx: &ProbeContext) {
    send_record(ctx, &mut fetch::entry(ctx));
}

/// Sends one record for the return that was hit.
#[inline(always)]
pub fn record_return(ctx: &RetProbeContext) {
    send_record(ctx, &mut fetch::at_return(ctx));
}

#[inline(always)]
fn send_record(ctx: &impl EbpfContext, words: &mut Words<SLOTS>) {
    let cookie = cookie(ctx);
    if let Some(hit) = hit(cookie)
        && of_probe(hit, words, Origin::here()) == 0
    {
        // The development log: at level 0, the default, the verifier drops this.
        debug!(ctx, "a record of probe {} of process {} was lost", cookie, ctx.tgid());
    }
}

macro_rules! by_class {
    ($name:ident, $words:expr, $small:ident, $medium:ident, $large:ident) => {
        /// Runs a plan into a record of its class and sends it; or counts the loss and gives 0.
        #[inline(always)]
        pub fn $name(hit: Hit<'_>, words: &mut Words<{ $words }>, origin: Origin) -> u64 {
            match hit.plan.class {
                0 => send::<{ RECORD_CLASSES[0].size }, { $words }>(hit, words, origin, fetch::$small),
                1 => send::<{ RECORD_CLASSES[1].size }, { $words }>(hit, words, origin, fetch::$medium),
                _ => send::<{ RECORD_CLASSES[2].size }, { $words }>(hit, words, origin, fetch::$large),
            }
        }
    };
}

by_class!(of_probe, crate::common::SLOTS, step_of_probe_small, step_of_probe_medium, step_of_probe_large);
by_class!(of_part, crate::common::PART_SLOTS, step_of_part_small, step_of_part_medium, step_of_part_large);

#[inline(always)]
fn send<const SIZE: usize, const N: usize>(
    hit: Hit<'_>,
    words: &mut Words<N>,
    origin: Origin,
    step: fetch::RunStep<SIZE, N>,
) -> u64 {
    let Hit { number, plan, counters, hit } = hit;
    let Some(mut entry) = maps::RECORDS.reserve::<Room<SIZE>>(0) else {
        // SAFETY: `counters` is a live map element.
        count(unsafe { &raw mut (*counters).lost_full });
        return 0;
    };
    let room: *mut MaybeUninit<Room<SIZE>> = &raw mut *entry;
    let room = room.cast::<Room<SIZE>>();
    let Some(faults) = fetch::run::<SIZE, N>(words, number, plan.n_steps, room, step) else {
        entry.discard(BPF_RB_NO_WAKEUP.into());
        // SAFETY: as above.
        count(unsafe { &raw mut (*counters).disarmed });
        return 0;
    };
    if faults != 0 {
        // SAFETY: as above.
        count(unsafe { &raw mut (*counters).faulted });
    }
    let header = RecordHeader {
        len: plan.record_len,
        probe: number as u16,
        // SAFETY: a helper without arguments.
        cpu: unsafe { bpf_get_smp_processor_id() } as u32,
        hit,
        ts_ns: origin.ts_ns,
        tgid: (origin.pid_tgid >> 32) as u32,
        tid: origin.pid_tgid as u32,
        faults,
    };
    // SAFETY: SIZE is larger than the header, and the reservation is 8-byte aligned.
    unsafe { room.cast::<RecordHeader>().write(header) };
    entry.submit(wake_up());
    1
}

/// Whether the reader is to be woken by a record.
#[inline(always)]
fn wake_up() -> u64 {
    let enough = maps::RECORDS.query(BPF_RB_AVAIL_DATA.into()) >= WAKEUP_BYTES;
    if enough { BPF_RB_FORCE_WAKEUP.into() } else { BPF_RB_NO_WAKEUP.into() }
}
