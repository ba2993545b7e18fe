//! The short way through a walk, from what was compiled for the walk: see [`ncclflow_common::Short`].

use std::collections::BTreeSet;

use ncclflow_common::{
    ARG_SLOTS, FetchPlan, GATE_TAGS, Gate, MAX_COPY, NODE_BYTES_AT, NOWHERE, PACKED_BYTES, Queue,
    SHORT_COPIES, SHORT_HEADS, STACK_POINTER_SLOT, Short, ShortCopy, Step, StepOp,
};

use super::set::WalkProgram;

const LOAD: u8 = StepOp::Load as u8;
const LOAD_WORDS: u8 = StepOp::LoadWords as u8;
const COPY: u8 = StepOp::Copy as u8;
const EMIT_AND_COPY: u8 = StepOp::EmitAndCopy as u8;

/// Compiles the short way of this walk, whose probe's own plan is `own`. Gives `None` for a walk of another
/// form.
pub(super) fn short(program: &WalkProgram, own: &FetchPlan) -> Option<Short> {
    let walk = &program.walk;
    let head_plan = &program.head;
    let in_use = walk.queues.get(..usize::try_from(walk.n_queues).ok()?)?;
    let [first, second, others @ ..] = in_use else { return None };
    let (hash, first_head) = (loaded(head_plan, walk.identity[1])?, loaded(head_plan, first.head)?);
    let args = [walk.identity[0], first_head.from];
    if hash.from != args[0] || args.iter().any(|arg| usize::from(*arg) >= ARG_SLOTS) {
        return None;
    }
    // A list without a word of its own hangs on one that has.
    let deciding = |list: &Queue| if list.when == STACK_POINTER_SLOT { list.head } else { list.when };
    let deciding: BTreeSet<u8> = others.iter().map(deciding).collect();
    let [empty, also_empty] = Vec::from_iter(&deciding)[..] else { return None };
    let heads = Heads::of(head_plan, args[1], [first.head, second.head, *empty, *also_empty])?;
    let gate = lonely_gate(program, first)?;
    if second.n_gates != 0 && !deciding.contains(&second.gates_when) {
        return None;
    }
    let (of_first, of_second) = (node_copy(program, first)?, node_copy(program, second)?);
    let [first_head, second_head, empty, also_empty] = heads.words;
    Some(Short {
        heads_at: heads.at,
        heads_len: heads.len,
        args,
        heads: [first_head, second_head],
        empty: [empty, also_empty],
        record_len: [of_first.record_len, of_second.record_len, own.record_len],
        next_at: [first.next_at, second.next_at],
        tag_at: gate.tag_at,
        free_tags: tags_without_rows(gate),
        identity_at: place_of(hash, own)?,
        nodes: [of_first.copy, of_second.copy],
        ..own_copies(own, args)?
    })
}

/// A word of 8 bytes of the target's memory.
#[derive(Clone, Copy)]
struct Word {
    /// Slot with the address that the offset is counted from.
    from: u8,
    offset: i64,
}

/// Returns the word that this slot is loaded from, if that is one step.
fn loaded(plan: &FetchPlan, slot: u8) -> Option<Word> {
    let mut found = steps_of(plan).iter().filter_map(|step| match step.op {
        LOAD if step.len == 8 && step.dst == slot => Some(Word { from: step.src, offset: step.imm }),
        LOAD_WORDS => {
            let word = slot.checked_sub(step.dst).filter(|word| u16::from(*word) * 8 < step.len)?;
            Some(Word { from: step.src, offset: step.imm + 8 * i64::from(word) })
        }
        _ => None,
    });
    found.next().filter(|_| found.next().is_none())
}

/// The heads of lists, read at once.
struct Heads {
    at: u32,
    len: u16,
    /// Number of the word of each head.
    words: [u8; 4],
}

impl Heads {
    /// Returns the heads that the head plan has in these slots, loaded from the argument `lists`.
    fn of(plan: &FetchPlan, lists: u8, slots: [u8; 4]) -> Option<Self> {
        let mut offsets = [0; 4];
        for (offset, slot) in offsets.iter_mut().zip(slots) {
            *offset = loaded(plan, slot).filter(|word| word.from == lists)?.offset;
        }
        let (at, last) = (offsets.iter().min()?, offsets.iter().max()?);
        let len = usize::try_from(last - at + 8).ok().filter(|len| *len <= SHORT_HEADS)?;
        let mut words = [0; 4];
        for (word, offset) in words.iter_mut().zip(offsets) {
            let bytes = u8::try_from(offset - at).ok().filter(|bytes| bytes.is_multiple_of(8))?;
            *word = bytes / 8;
        }
        Some(Self { at: u32::try_from(*at).ok()?, len: u16::try_from(len).ok()?, words })
    }
}

/// Returns the gate of a list that has only one, which all nodes go through by a tag of one byte.
fn lonely_gate<'a>(program: &'a WalkProgram, list: &Queue) -> Option<&'a Gate> {
    let gate = program.walk.gates.get(usize::from(list.first_gate))?;
    let by_tag = gate.tag_len == 1
        && gate.one_fan == 0
        && [gate.only_at, gate.rows_at, gate.first_row_at] == [NOWHERE; 3]
        && gate.tag_at < list.copied;
    (by_tag && list.n_gates == 1 && list.gates_when == STACK_POINTER_SLOT).then_some(gate)
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
    let bytes_at = usize::from(step.at) + 8;
    let whole = step.op == EMIT_AND_COPY && step.src == 0 && bytes_at == NODE_BYTES_AT && plan.class == 0;
    let chained = list.stride == 0
        && list.when == STACK_POINTER_SLOT
        && list.next_at.is_multiple_of(8)
        && list.next_at + 8 <= list.copied;
    (whole && chained).then_some(NodeCopy { copy: copy_of(step)?, record_len: plan.record_len })
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

/// Returns the offset of this word in the probe's own record.
fn place_of(word: Word, own: &FetchPlan) -> Option<u16> {
    let copy = steps_of(own).iter().find(|copy| {
        copy.src == word.from && copy.imm <= word.offset && word.offset + 8 <= copy.imm + i64::from(copy.len)
    })?;
    let at = copy_of(copy)?.at + u16::try_from(word.offset - copy.imm).ok()?;
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
