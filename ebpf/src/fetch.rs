//! Runs a fetch plan.
//!
//! A plan is run by a function of its own, and a step by another, that the verifier sees once, however often
//! it is called (kernel 5.12: a *global* function, known by its exported name, with pointers to structs of
//! known size). Steps inlined into a loop of 48 took the verifier 20 ms a program.

use core::mem::MaybeUninit;

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_pid_tgid, generated::bpf_probe_read_user},
    programs::{ProbeContext, RetProbeContext},
};

use crate::{
    common::{ARG_SLOTS, MAX_COPY, MAX_STEPS, PART_SLOTS, RECORD_CLASSES, SLOTS, STACK_POINTER_SLOT, StepOp},
    maps,
    state::Room,
};

const LOAD: u8 = StepOp::Load as u8;
const SCALE: u8 = StepOp::Scale as u8;
const INT32: u8 = StepOp::Int32 as u8;
const ADD: u8 = StepOp::Add as u8;
const WRAP: u8 = StepOp::Wrap as u8;
const SKIP: u8 = StepOp::Skip as u8;
const EMIT: u8 = StepOp::Emit as u8;
const COPY: u8 = StepOp::Copy as u8;
const EMIT_AND_COPY: u8 = StepOp::EmitAndCopy as u8;
const LOAD_WORDS: u8 = StepOp::LoadWords as u8;
const KEEP: u8 = StepOp::Keep as u8;
const TAKE: u8 = StepOp::Take as u8;

/// What a step says: done, its read failed, or it is none that can be run.
const DONE: u64 = 0;
const FAULT: u64 = 1;
const INVALID: u64 = 2;
/// Above these bits: how many steps are to be left out.
const SKIPPED: u32 = 8;

/// The words that a plan works with.
#[repr(C)]
pub struct Words<const N: usize>(pub [u64; N]);

impl<const N: usize> Words<N> {
    /// All words 0, in place. Word by word: a call of `memset`, which goes byte by byte, costs as much as a
    /// plan.
    #[inline(always)]
    pub fn zeroed(room: &mut MaybeUninit<Self>) -> &mut Self {
        let first = room.as_mut_ptr().cast::<u64>();
        let mut n = 0;
        while n < N {
            // SAFETY: `n` is within the array.
            unsafe { first.add(n).write_volatile(0) };
            n += 1;
        }
        // SAFETY: every word was written.
        unsafe { room.assume_init_mut() }
    }
}

/// Runs the plan with this number on words into a record; see [`faults`] for what comes back.
pub type RunPlan<const SIZE: usize, const N: usize> =
    extern "C" fn(*mut Words<N>, u32, *mut Room<SIZE>) -> u64;

/// What a runner says of a plan that is none that can be run.
const NO_PLAN: u64 = u64::MAX;

/// The mask of the steps whose read failed; nothing if the plan is none that can be run.
#[inline(always)]
pub fn faults(said: u64) -> Option<u64> {
    if said == NO_PLAN { None } else { Some(said) }
}

/// The words that a plan at a probe starts with: the argument registers and the stack pointer.
#[inline(always)]
pub fn entry<'w, const N: usize>(
    ctx: &ProbeContext,
    room: &'w mut MaybeUninit<Words<N>>,
) -> &'w mut Words<N> {
    let words = Words::zeroed(room);
    let mut n = 0;
    while n < ARG_SLOTS {
        words.0[n] = ctx.arg::<u64>(n).unwrap_or(0);
        n += 1;
    }
    words.0[STACK_POINTER_SLOT as usize] = stack_pointer(ctx);
    words
}

/// The words that a plan at a function's return starts with: what it returns and the stack pointer.
#[inline(always)]
pub fn at_return<'w>(ctx: &RetProbeContext, room: &'w mut MaybeUninit<Words<SLOTS>>) -> &'w mut Words<SLOTS> {
    let words = Words::zeroed(room);
    words.0[0] = ctx.ret();
    words.0[STACK_POINTER_SLOT as usize] = stack_pointer(ctx);
    words
}

/// The loader has checked the plan; the bounds here are for the verifier, which does not know that.
#[inline(always)]
fn run(plan: u32, step: impl Fn(u32) -> u64) -> u64 {
    let Some(plan) = maps::PLANS.get(plan) else { return NO_PLAN };
    // Without a branch on what a step says: the verifier would follow every combination.
    let (mut faults, mut invalid, mut skip) = (0u64, 0, 0);
    let mut i = 0;
    while i < MAX_STEPS as u32 {
        if i >= plan.n_steps {
            break;
        }
        if skip != 0 {
            skip -= 1;
        } else {
            let said = step(i);
            faults |= (said & FAULT) << i;
            invalid |= said & INVALID;
            skip = said >> SKIPPED;
        }
        i += 1;
    }
    if invalid == 0 { faults } else { NO_PLAN }
}

macro_rules! runner {
    ($run:ident, $step:ident, $words:expr, $size:expr) => {
        /// Runs a plan: a [`RunPlan`].
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $run(words: *mut Words<{ $words }>, plan: u32, out: *mut Room<{ $size }>) -> u64 {
            if words.is_null() || out.is_null() {
                return NO_PLAN; // for the verifier, which allows null
            }
            run(plan, |index| $step(words, plan, index, out))
        }

        /// Runs one step of a plan.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $step(
            words: *mut Words<{ $words }>,
            plan: u32,
            index: u32,
            out: *mut Room<{ $size }>,
        ) -> u64 {
            if words.is_null() || out.is_null() {
                return INVALID;
            }
            // SAFETY: not null, and the callers give words and room of these types.
            step(unsafe { &mut (*words).0 }, plan, index, out.cast(), $size)
        }
    };
}

runner!(run_of_probe_small, step_of_probe_small, SLOTS, RECORD_CLASSES[0].size);
runner!(run_of_probe_medium, step_of_probe_medium, SLOTS, RECORD_CLASSES[1].size);
runner!(run_of_probe_large, step_of_probe_large, SLOTS, RECORD_CLASSES[2].size);
runner!(run_of_part_small, step_of_part_small, PART_SLOTS, RECORD_CLASSES[0].size);
runner!(run_of_part_medium, step_of_part_medium, PART_SLOTS, RECORD_CLASSES[1].size);
runner!(run_of_part_large, step_of_part_large, PART_SLOTS, RECORD_CLASSES[2].size);
// A plan that finds the lists of a walk writes nothing.
runner!(run_of_head, step_of_head, SLOTS, 8);

#[inline(always)]
fn step<const N: usize>(slots: &mut [u64; N], plan: u32, index: u32, out: *mut u8, size: usize) -> u64 {
    let Some(plan) = maps::PLANS.get(plan) else { return INVALID };
    if index >= MAX_STEPS as u32 {
        return INVALID;
    }
    let step = &plan.steps[index as usize];
    let src = slots[step.src as usize % N];
    let at = step.at as usize;
    match step.op {
        LOAD => {
            let mut value = 0u64;
            let len = step.len as u32 & 15;
            if len == 0 || len > 8 {
                return INVALID;
            }
            // SAFETY: `value` holds 8 bytes and `len` is at most 8; the helper checks the address.
            let failed = unsafe {
                bpf_probe_read_user(
                    (&raw mut value).cast(),
                    len,
                    src.wrapping_add(step.imm as u64) as *const _,
                )
            } < 0;
            slots[step.dst as usize % N] = value;
            return if failed { FAULT } else { DONE };
        }
        SCALE => {
            let index = slots[step.index as usize % N];
            slots[step.dst as usize % N] = src.wrapping_add(index.wrapping_mul(step.imm as u64));
        }
        ADD => slots[step.dst as usize % N] = src.wrapping_add(step.imm as u64),
        WRAP => {
            let limit = slots[step.index as usize % N];
            slots[step.dst as usize % N] = if src >= limit { src.wrapping_sub(limit) } else { src };
        }
        SKIP => {
            if src == 0 {
                return (step.imm as u64 & 0xff) << SKIPPED;
            }
        }
        INT32 => slots[step.dst as usize % N] = src as i32 as i64 as u64,
        EMIT => {
            if at > size - 8 {
                return INVALID;
            }
            // SAFETY: `at + 8 <= size`; the room is 8-byte aligned.
            unsafe { out.add(at & !7).cast::<u64>().write(src) };
        }
        COPY | EMIT_AND_COPY => {
            let len = step.len as u32 & (2 * MAX_COPY as u32 - 1);
            if size < MAX_COPY + 8 || len > MAX_COPY as u32 {
                return INVALID;
            }
            let mut at = at;
            if step.op == EMIT_AND_COPY {
                if at > size - MAX_COPY - 8 {
                    return INVALID;
                }
                // SAFETY: `at + 8 <= size`; the room is 8-byte aligned.
                unsafe { out.add(at & !7).cast::<u64>().write(src) };
                at += 8;
            }
            if at > size - MAX_COPY {
                return INVALID;
            }
            // SAFETY: `at + len <= size`; the helper checks the address.
            let failed = unsafe {
                bpf_probe_read_user(out.add(at).cast(), len, src.wrapping_add(step.imm as u64) as *const _)
            } < 0;
            return if failed { FAULT } else { DONE };
        }
        LOAD_WORDS => {
            let (first, len) = (step.dst as usize % (N / 2), step.len as u32 & (8 * N as u32 - 1));
            if len > 4 * N as u32 {
                return INVALID;
            }
            // SAFETY: the first half of the words can be the first, and half of them follow; the helper checks the address.
            let failed = unsafe {
                bpf_probe_read_user(
                    slots.as_mut_ptr().add(first).cast(),
                    len,
                    src.wrapping_add(step.imm as u64) as *const _,
                )
            } < 0;
            return if failed { FAULT } else { DONE };
        }
        KEEP => keep(src),
        TAKE => slots[step.dst as usize % N] = take(step.imm != 0),
        _ => return INVALID,
    }
    DONE
}

/// The process in a key of [`maps::KEPT`].
const PROCESS: u64 = !(u32::MAX as u64);

#[inline(always)]
fn keep(word: u64) {
    let thread = bpf_get_current_pid_tgid();
    // Where there is no room, nothing is found later.
    let _ = maps::KEPT.insert(&thread, word, 0);
    let _ = maps::KEPT.insert(&(thread & PROCESS), word, 0);
}

#[inline(always)]
fn take(of_process: bool) -> u64 {
    let mut key = bpf_get_current_pid_tgid();
    if of_process {
        key &= PROCESS;
    }
    // SAFETY: a live map element; an aligned word.
    let Some(word) = maps::KEPT.get_ptr(&key).map(|kept| unsafe { kept.read_volatile() }) else { return 0 };
    let _ = maps::KEPT.remove(&key);
    word
}

#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn stack_pointer(ctx: &impl EbpfContext) -> u64 {
    // SAFETY: a uprobe's context is a pt_regs.
    unsafe { (*ctx.as_ptr().cast::<aya_ebpf::bindings::pt_regs>()).rsp as u64 }
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn stack_pointer(ctx: &impl EbpfContext) -> u64 {
    // SAFETY: a uprobe's context starts with a user_pt_regs.
    unsafe { (*ctx.as_ptr().cast::<aya_ebpf::bindings::user_pt_regs>()).sp }
}
