//! Runs a fetch plan.

use aya_ebpf::{EbpfContext as _, helpers::generated::bpf_probe_read_user, programs::ProbeContext};

use crate::common::{ARG_SLOTS, FetchPlan, MAX_COPY, MAX_STEPS, SLOTS, STACK_POINTER_SLOT, StepOp};

const LOAD: u8 = StepOp::Load as u8;
const SCALE: u8 = StepOp::Scale as u8;
const INT32: u8 = StepOp::Int32 as u8;
const ADD: u8 = StepOp::Add as u8;
const EMIT: u8 = StepOp::Emit as u8;
const COPY: u8 = StepOp::Copy as u8;

/// Runs `plan` into the `SIZE` bytes at `out` and returns the mask of the steps whose read failed.
///
/// The loader has checked the plan; the bounds here are for the verifier, which does not know that.
#[inline(always)]
pub fn run<const SIZE: usize>(ctx: &ProbeContext, plan: &FetchPlan, out: *mut u8) -> u64 {
    let mut slots = [0u64; SLOTS];
    let mut n = 0;
    while n < ARG_SLOTS {
        slots[n] = ctx.arg::<u64>(n).unwrap_or(0);
        n += 1;
    }
    slots[STACK_POINTER_SLOT as usize] = stack_pointer(ctx);

    let mut faults = 0u64;
    let mut i = 0;
    while i < MAX_STEPS {
        if i as u32 >= plan.n_steps {
            break;
        }
        let step = &plan.steps[i];
        let src = slots[step.src as usize % SLOTS];
        let at = step.at as usize;
        match step.op {
            LOAD => {
                let mut value = 0u64;
                let len = step.len as u32 & 15;
                if len == 0 || len > 8 {
                    return u64::MAX;
                }
                // SAFETY: `value` holds 8 bytes and `len` is at most 8; the helper checks the address.
                let failed = unsafe {
                    bpf_probe_read_user(
                        (&raw mut value).cast(),
                        len,
                        src.wrapping_add(step.imm as u64) as *const _,
                    )
                } < 0;
                faults |= u64::from(failed) << i;
                slots[step.dst as usize % SLOTS] = value;
            }
            SCALE => {
                let index = slots[step.index as usize % SLOTS];
                slots[step.dst as usize % SLOTS] = src.wrapping_add(index.wrapping_mul(step.imm as u64));
            }
            ADD => slots[step.dst as usize % SLOTS] = src.wrapping_add(step.imm as u64),
            INT32 => slots[step.dst as usize % SLOTS] = src as i32 as i64 as u64,
            EMIT => {
                if at > SIZE - 8 {
                    return u64::MAX;
                }
                // SAFETY: `at + 8 <= SIZE`.
                unsafe { out.add(at).cast::<u64>().write_unaligned(src) };
            }
            COPY => {
                let len = step.len as u32 & (2 * MAX_COPY as u32 - 1);
                if at > SIZE - MAX_COPY || len > MAX_COPY as u32 {
                    return u64::MAX;
                }
                // SAFETY: `at + len <= SIZE`; the helper checks the address.
                let failed = unsafe {
                    bpf_probe_read_user(
                        out.add(at).cast(),
                        len,
                        src.wrapping_add(step.imm as u64) as *const _,
                    )
                } < 0;
                faults |= u64::from(failed) << i;
            }
            _ => return u64::MAX,
        }
        i += 1;
    }
    faults
}

#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn stack_pointer(ctx: &ProbeContext) -> u64 {
    // SAFETY: a uprobe's context is a pt_regs.
    unsafe { (*ctx.as_ptr().cast::<aya_ebpf::bindings::pt_regs>()).rsp as u64 }
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn stack_pointer(ctx: &ProbeContext) -> u64 {
    // SAFETY: a uprobe's context starts with a user_pt_regs.
    unsafe { (*ctx.as_ptr().cast::<aya_ebpf::bindings::user_pt_regs>()).sp }
}
