//! Count the hit, reserve, run the plan, submit; or count the loss. The only way out of the kernel side.

use core::mem::MaybeUninit;

use aya_ebpf::{
    EbpfContext,
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns,
        generated::bpf_get_attach_cookie,
    },
    programs::{ProbeContext, RetProbeContext},
};
use aya_log_ebpf::debug;

use crate::{
    common::{COOKIE_BITS, FetchPlan, PACKED_BYTES, PART_SLOTS, RECORD_CLASSES, RecordHeader, SLOTS},
    fetch::{self, Words},
    maps,
    output::{Entry, bpf_user_pt_regs_t},
    state::{Room, State},
    tally::{Tally, lost_by_process},
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
    pub tally: Tally,
    pub hit: u64,
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
    let tally = Tally::of(number)?;
    match maps::PLANS.get(number) {
        Some(plan) if plan.n_steps != 0 && maps::armed() => {
            Some(Hit { number, plan, tally, hit: tally.hit() })
        }
        _ => {
            tally.disarmed();
            None
        }
    }
}

/// Counts a record of a part of a walk, whose probe has found the session open.
#[inline(always)]
pub fn part<'a>(number: u32) -> Option<Hit<'a>> {
    let (tally, plan) = (Tally::of(number)?, maps::PLANS.get(number)?);
    Some(Hit { number, plan, tally, hit: tally.hit() })
}

/// The program's context, as global functions take it.
#[inline(always)]
pub fn context(ctx: &ProbeContext) -> *mut bpf_user_pt_regs_t {
    ctx.as_ptr().cast()
}

/// Sends one record for the probe that was hit.
#[inline(always)]
pub fn record(ctx: &ProbeContext, origin: Origin) {
    send_record(ctx, fetch::entry(ctx, &mut MaybeUninit::uninit()), origin);
}

/// Sends one record for the return that was hit.
#[inline(always)]
pub fn record_return(ctx: &RetProbeContext) {
    // SAFETY: the context is the one that the kernel gave to this program.
    let only = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } >> COOKIE_BITS;
    if only != 0 && only != bpf_get_current_pid_tgid() >> 32 {
        return; // not a hit: see COOKIE_BITS
    }
    send_record(ctx, fetch::at_return(ctx, &mut MaybeUninit::uninit()), Origin::here());
}

#[inline(always)]
fn send_record(ctx: &impl EbpfContext, words: &mut Words<SLOTS>, origin: Origin) {
    let cookie = cookie(ctx);
    if let Some(hit) = hit(cookie)
        && of_probe(hit, words, origin, ctx.as_ptr().cast()) == 0
    {
        // The development log: at level 0, the default, the verifier drops this.
        debug!(ctx, "a record of probe {} of process {} was lost", cookie, ctx.tgid());
    }
}

/// It was sent, and something of it could not be read.
pub const UNREAD: u64 = 2;

macro_rules! by_class {
    ($name:ident, $words:expr, $small:ident, $medium:ident, $large:ident) => {
        /// Runs a plan into a record of its class and sends it, and gives 1, or [`UNREAD`]; or counts the loss and
        /// gives 0.
        #[inline(always)]
        pub fn $name(
            hit: Hit<'_>,
            words: &mut Words<{ $words }>,
            origin: Origin,
            ctx: *mut bpf_user_pt_regs_t,
        ) -> u64 {
            match hit.plan.class {
                0 => send::<{ RECORD_CLASSES[0].size }, { $words }>(hit, words, origin, ctx, fetch::$small),
                1 => send::<{ RECORD_CLASSES[1].size }, { $words }>(hit, words, origin, ctx, fetch::$medium),
                _ => send::<{ RECORD_CLASSES[2].size }, { $words }>(hit, words, origin, ctx, fetch::$large),
            }
        }
    };
}

by_class!(of_probe, crate::common::SLOTS, run_of_probe_small, run_of_probe_medium, run_of_probe_large);
by_class!(of_part, crate::common::PART_SLOTS, run_of_part_small, run_of_part_medium, run_of_part_large);

#[inline(always)]
fn send<const SIZE: usize, const N: usize>(
    hit: Hit<'_>,
    words: &mut Words<N>,
    origin: Origin,
    ctx: *mut bpf_user_pt_regs_t,
    run: fetch::RunPlan<SIZE, N>,
) -> u64 {
    let Hit { number, plan, tally, hit } = hit;
    let Some(entry) = Entry::<SIZE>::reserve() else {
        tally.lost_full();
        return 0;
    };
    let Some(faults) = fetch::faults(run(words, number, entry.room())) else {
        // The loader has checked the plan, so this does not happen; if it did, it would be a loss.
        entry.discard();
        tally.lost_full();
        return 0;
    };
    if !entry.submit(ctx, header(number, plan, hit, origin, faults)) {
        tally.lost_full();
        return 0;
    }
    if faults != 0 {
        tally.faulted();
        return UNREAD;
    }
    1
}

/// Sends the record of a node or row by itself; 0 if there was no room, [`UNREAD`] if it could not be read. `given`:
/// its number, and above 32 bits the tag. (A global function has five arguments at most.)
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn send_part(
    plan: u32,
    address: u64,
    given: u64,
    state: *mut State,
    ctx: *mut bpf_user_pt_regs_t,
) -> u64 {
    if state.is_null() {
        return 0;
    }
    // SAFETY: not null, and given by `record`.
    let origin = unsafe { Origin { ts_ns: (*state).ts_ns, pid_tgid: (*state).pid_tgid } };
    let Some(hit) = part(plan) else { return 0 };
    let mut room = MaybeUninit::uninit();
    let words = Words::<PART_SLOTS>::zeroed(&mut room);
    words.0[0] = address;
    words.0[1] = given as u32 as u64;
    words.0[2] = given >> 32;
    // SAFETY: as above.
    words.0[3] = unsafe { (*state).identity[0] };
    of_part(hit, words, origin, ctx)
}

/// Runs a plan into a record of the smallest class that is part of a pack; says which steps could not read,
/// or nothing if there is no record. [`number`] completes it.
#[inline(always)]
pub fn into_pack<const N: usize>(
    number: u32,
    words: &mut Words<N>,
    origin: Origin,
    room: *mut Room<PACKED_BYTES>,
    run: fetch::RunPlan<PACKED_BYTES, N>,
) -> Option<u64> {
    let plan = maps::PLANS.get(number)?;
    let faults = fetch::faults(run(words, number, room))?;
    // SAFETY: room for a record, 8-byte aligned.
    unsafe { room.cast::<RecordHeader>().write(header(number, plan, 0, origin, faults)) };
    Some(faults)
}

/// Counts a record of a pack. `own`: the number of the probe's own record, which was counted when it was hit.
///
/// Last of all: a counter is an atomic operation, and such a one waits until all that was written before has
/// come out of the processor's store buffer. What is written to the ring buffer takes as long as the memory
/// does.
#[inline(always)]
pub fn number(header: &mut RecordHeader, own: Option<u64>) {
    let Some(tally) = Tally::of(header.probe as u32) else { return };
    header.hit = match own {
        Some(hit) => hit,
        None => tally.hit(),
    };
    if header.faults != 0 {
        tally.faulted();
    }
}

/// Counts a record of a part of a walk for which there is no room.
#[inline(always)]
pub fn part_is_lost(number: u32) {
    if let Some(tally) = Tally::of(number) {
        tally.hit();
        tally.lost_full();
    }
}

#[inline(always)]
fn header(number: u32, plan: &FetchPlan, hit: u64, origin: Origin, faults: u64) -> RecordHeader {
    header_of(number, plan.record_len, hit, origin, faults)
}

#[inline(always)]
pub fn header_of(number: u32, record_len: u16, hit: u64, origin: Origin, faults: u64) -> RecordHeader {
    RecordHeader {
        len: record_len,
        probe: number as u16,
        // SAFETY: a helper without arguments.
        cpu: unsafe { bpf_get_smp_processor_id() } as u32,
        hit,
        ts_ns: origin.ts_ns,
        tgid: (origin.pid_tgid >> 32) as u32,
        tid: origin.pid_tgid as u32,
        faults,
        lost: lost_by_process(),
    }
}
