//! The short way through a walk, from what was compiled for the walk: see [`ncclflow_common::Short`].

use ncclflow_common::{
    ARG_SLOTS, FetchPlan, GATE_TAGS, Gate, MAX_COPY, PACKED_BYTES, Queue, SHORT_COPIES, SHORT_HEADS, Short,
    ShortCopy, Step, StepOp,
};

use super::set::WalkProgram;
use nccl_library::{
    fields::{FieldRef, comm, kernel_plan},
    layouts::Layouts,
};

const COPY: u8 = StepOp::Copy as u8;
const EMIT_AND_COPY: u8 = StepOp::EmitAndCopy as u8;

/// Compiles the short way of the walk after a launch, whose probe's own plan is `own`. Its slots `args` hold
/// the communicator, and the plan with the lists. Gives `None` if they are no arguments of the function, or
/// the structs are of another form.
pub(super) fn short(
    layouts: &Layouts,
    args: [u8; 2],
    program: &WalkProgram,
    own: &FetchPlan,
) -> Option<Short> {
    let ([first, second, ..], gate) = (&program.walk.queues, program.walk.gates.first()?);
    let (of_first, of_second) = (node_copy(program, first)?, node_copy(program, second)?);
    if args.iter().any(|arg| usize::from(*arg) >= ARG_SLOTS) || gate.tag_at >= first.copied {
        return None;
    }
    let offset = |field: FieldRef| {
        let field = field.find(layouts).filter(|field| field.size == 8)?;
        u32::try_from(field.offset).ok()
    };
    // The first two lists, and those two on which all others hang: see [`Queue::when`].
    let heads = [
        offset(kernel_plan::COLL_TASKS)?,
        offset(kernel_plan::WORKS)?,
        offset(kernel_plan::P2P_TASKS)?,
        offset(kernel_plan::PROXY_OPS)?,
    ];
    let (heads_at, last) = (*heads.iter().min()?, *heads.iter().max()?);
    let heads_len = u16::try_from((last - heads_at).checked_add(8)?).ok()?;
    if usize::from(heads_len) > SHORT_HEADS {
        return None;
    }
    if heads.iter().any(|head| !(head - heads_at).is_multiple_of(8)) {
        return None;
    }
    let words = heads.map(|head| u8::try_from((head - heads_at) / 8).unwrap_or(u8::MAX));
    Some(Short {
        heads_at,
        heads_len,
        args,
        heads: [words[0], words[1]],
        empty: [words[2], words[3]],
        record_len: [of_first.record_len, of_second.record_len, own.record_len],
        next_at: [first.next_at, second.next_at],
        tag_at: gate.tag_at,
        free_tags: tags_without_rows(gate),
        identity_at: place_of(args[0], offset(comm::HASH)?.into(), own)?,
        nodes: [of_first.copy, of_second.copy],
        ..own_copies(own, args)?
    })
}

/// Returns the tags that have no rows, one bit for each.
fn tags_without_rows(gate: &Gate) -> u16 {
    const { assert!(GATE_TAGS == 16) };
    gate.fans.iter().rev().fold(0, |tags, fan| tags << 1 | u16::from(fan.n_plans == 0))
}

struct NodeCopy {
    copy: ShortCopy,
    record_len: u16,
}

/// Returns what is copied of the nodes of a list that is chained.
fn node_copy(program: &WalkProgram, list: &Queue) -> Option<NodeCopy> {
    let plan = &program.parts.get(usize::try_from(list.plan).ok()?)?.plan;
    let [step] = steps_of(plan) else { return None };
    let last = list.copied.checked_sub(8)?;
    let is_in_record = list.next_at.is_multiple_of(8) && list.next_at <= last;
    is_in_record.then_some(NodeCopy { copy: copy_of(step)?, record_len: plan.record_len })
}

/// Returns the copies that the probe's own record consists of; the other fields are 0.
fn own_copies(own: &FetchPlan, [table, lists]: [u8; 2]) -> Option<Short> {
    let steps = steps_of(own);
    if own.class != 0 || steps.len() > SHORT_COPIES {
        return None;
    }
    let mut short = Short::default();
    for (number, (step, copy)) in steps.iter().zip(&mut short.own).enumerate() {
        if ![COPY, EMIT_AND_COPY].contains(&step.op) || ![table, lists].contains(&step.src) {
            return None;
        }
        *copy = copy_of(step)?;
        short.own_of_lists |= u8::from(step.src == lists) << number;
        short.own_emits |= u8::from(step.op == EMIT_AND_COPY) << number;
    }
    Some(short)
}

/// Returns the offset, in the probe's own record, of the word at `offset` from the address in a slot.
fn place_of(slot: u8, offset: i64, own: &FetchPlan) -> Option<u16> {
    let copy = steps_of(own).iter().find(|copy| {
        copy.src == slot && copy.imm <= offset && offset + 8 <= copy.imm + i64::from(copy.len)
    })?;
    let at = copy_of(copy)?.at + u16::try_from(offset - copy.imm).ok()?;
    at.is_multiple_of(8).then_some(at)
}

fn copy_of(step: &Step) -> Option<ShortCopy> {
    let at = if step.op == EMIT_AND_COPY { step.at.checked_add(8)? } else { step.at };
    // This bound is the same for all copies, as the verifier wants it.
    if usize::from(at) + MAX_COPY > PACKED_BYTES {
        return None;
    }
    Some(ShortCopy { imm: u32::try_from(step.imm).ok()?, at, len: step.len })
}

fn steps_of(plan: &FetchPlan) -> &[Step] {
    usize::try_from(plan.n_steps).ok().and_then(|count| plan.steps.get(..count)).unwrap_or_default()
}
