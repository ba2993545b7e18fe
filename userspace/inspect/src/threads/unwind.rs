//! Unwinds from a program counter and a stack pointer to the callers' frames, by the call frame information
//! in the target's memory.
//!
//! Only what a step needs is copied: a search in the table of `.eh_frame_hdr`, one frame description entry
//! and its common entry. If a step needs a register that is not known (of a sleeping thread only the stack
//! pointer is), or there is no information, the next word on the stack that looks like a return address is
//! taken, and the frame is marked as inferred.

use std::cell::Cell;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameOffset, EndianSlice, EvaluationResult, LittleEndian, Register,
    RegisterRule, UnwindContext, UnwindExpression, UnwindSection as _, X86_64,
};

use super::{StackTop, modules::Modules};
use crate::memory::{Memory, PageCache};
use nccl_library::elf::RuntimeAddr;

const MAX_FRAMES: usize = 96;
/// Maximum number of return addresses that are guessed in one stack.
pub(super) const MAX_GUESSES: usize = 6;
/// Words of the stack that are looked through for a return address.
const GUESS_WORDS: u64 = 1024;
/// Maximum number of bytes of a frame description entry, and of a common one; real ones have some hundred at
/// most.
const MAX_ENTRY: u32 = 16 << 10;
/// Bytes of a stack that are looked through for NCCL's addresses.
const MAX_LOOK: u64 = 128 << 10;
const MAX_STEPS: u32 = 1000;
/// Number of registers: x86-64 has 16 and the return address; System V ABI, figure 3.36.
const REGISTERS: usize = 17;

/// A thread's registers, as far as they are known, and a copy of the top of its stack if there is one.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    pub(super) pc: u64,
    pub(super) registers: [Option<u64>; REGISTERS],
    /// Bytes from the stack pointer on, of the same moment as the registers.
    pub(super) copy: Vec<u8>,
    /// The stack has changed since: behind the copy it is not read.
    pub(super) is_past: bool,
    /// A word behind the copy was asked for, and not read.
    pub(super) is_short: Cell<bool>,
}

impl Stack {
    pub(super) fn at(pc: u64, stack_pointer: u64) -> Self {
        let mut registers = [None; REGISTERS];
        set(&mut registers, X86_64::RSP, Some(stack_pointer));
        Self { pc, registers, copy: Vec::new(), is_past: false, is_short: Cell::new(false) }
    }

    pub(super) fn stack_pointer(&self) -> Option<u64> {
        get(&self.registers, X86_64::RSP)
    }

    /// Returns where the stack stands, without what is on it.
    pub(super) fn top(&self) -> Option<StackTop> {
        let pointer = self.stack_pointer()?;
        let registers = self.registers.iter().flatten().copied().filter(|value| *value != pointer);
        Some(StackTop { pointer, registers: registers.collect() })
    }

    /// Returns the word at an address: as it was when the registers were taken, or as it is now.
    fn word(&self, memory: Memory<'_>, address: u64) -> Option<u64> {
        let offset = address
            .checked_sub(self.stack_pointer().unwrap_or(0))
            .and_then(|offset| usize::try_from(offset).ok());
        let copied =
            offset.and_then(|offset| self.copy.get(offset..offset.checked_add(8)?)?.first_chunk::<8>());
        match copied {
            Some(bytes) => Some(u64::from_le_bytes(*bytes)),
            None if self.is_past => {
                self.is_short.set(true);
                None
            }
            None => memory.word(RuntimeAddr(address)).ok(),
        }
    }

    /// Returns the words from the stack pointer to the end of the stack, at most [`MAX_LOOK`] bytes.
    pub(super) fn words(&self, memory: Memory<'_>, modules: &Modules) -> impl Iterator<Item = u64> + use<> {
        let from = self.stack_pointer().unwrap_or(0);
        let end = modules.at(from).map_or(from, |mapping| mapping.end.0);
        let mut bytes = self.copy.clone();
        if bytes.is_empty() {
            bytes = memory.bytes(RuntimeAddr(from), (end - from).min(MAX_LOOK)).unwrap_or_default();
        }
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        words.into_iter()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Program counter of the innermost frame, return address of the others.
    pub(super) pc: u64,
    /// The frame has called another one; `pc` follows the call.
    has_called: bool,
    pub(super) inferred: bool,
    /// Address on the stack at which `pc` stands, if that is known.
    pub(super) found_at: Option<u64>,
}

impl Frame {
    /// Returns an address inside the instruction that the thread is at. A call that ends a function returns
    /// to an address past its end.
    pub(super) fn lookup(&self) -> u64 {
        self.pc.saturating_sub(u64::from(self.has_called))
    }
}

/// Returns the frames, innermost first, and whether the last one has no caller. At most `guesses` return
/// addresses are guessed.
pub(super) fn unwind(
    memory: Memory<'_>,
    modules: &mut Modules,
    stack: &Stack,
    mut guesses: usize,
) -> (Vec<Frame>, bool) {
    let mut registers = stack.registers;
    let mut frame = Frame { pc: stack.pc, has_called: false, inferred: false, found_at: None };
    let mut frames = vec![frame];
    while frames.len() < MAX_FRAMES {
        let Some(before) = get(&registers, X86_64::RSP) else { break };
        let entry = modules.entry(memory, frame.lookup());
        let step = entry.and_then(|entry| entry.apply(memory, stack, &registers, frame.lookup()));
        let step = step.unwrap_or(Step::Lost);
        let (next, pc, is_signal, found_at) = match step {
            Step::To(next, pc, is_signal, found_at) => (*next, pc, is_signal, found_at),
            Step::Lost if guesses > 0 => {
                guesses -= 1;
                let Some((next, pc)) = guess(memory, modules, stack, before) else { break };
                frame.inferred = true;
                (next, pc, false, None)
            }
            Step::End => return (frames, true),
            Step::Lost => break,
        };
        // Stacks grow down: a frame that does not lie above is nonsense, or a circle.
        let after = get(&next, X86_64::RSP).unwrap_or(0);
        if pc == 0 || (after <= before && !is_signal) {
            break;
        }
        frame = Frame { pc, has_called: !is_signal, inferred: frame.inferred, found_at };
        registers = next;
        frames.push(frame);
    }
    (frames, false)
}

type Registers = [Option<u64>; REGISTERS];

fn get(registers: &Registers, register: Register) -> Option<u64> {
    registers.get(usize::from(register.0)).copied().flatten()
}

pub(super) fn set(registers: &mut Registers, register: Register, value: Option<u64>) {
    if let Some(slot) = registers.get_mut(usize::from(register.0)) {
        *slot = value;
    }
}

enum Step {
    /// The caller's registers, its program counter, whether a signal interrupted it there, and the address on
    /// the stack at which the program counter stands.
    To(Box<Registers>, u64, bool, Option<u64>),
    End,
    Lost,
}

/// A frame description entry behind its common entry, in a section of their own.
#[derive(Debug)]
pub(super) struct Entry {
    bytes: Vec<u8>,
    /// Offset of the description entry in `bytes`.
    offset: usize,
    bases: BaseAddresses,
}

impl Entry {
    /// Finds the entry for an address by the sorted table at `table` (LSB Core, `.eh_frame_hdr`): offsets of
    /// 4 bytes from the table's own address, which is what all linkers write.
    pub(super) fn find(memory: Memory<'_>, tables: &mut PageCache, table: u64, address: u64) -> Option<Self> {
        const ENCODINGS: [u8; 3] = [0x1b, 0x03, 0x3b];
        let head = tables.word(memory, table)?.to_le_bytes();
        if head.first() != Some(&1) || head.get(1..4) != Some(&ENCODINGS[..]) {
            return None;
        }
        let count = tables.word(memory, table.checked_add(8)?)?.to_le_bytes();
        let count = u32::from_le_bytes(*count.first_chunk()?);
        let rows = table.checked_add(12)?;
        let mut row = |index: u32| -> Option<(u64, u64)> {
            let word = tables.word(memory, rows.checked_add(8 * u64::from(index))?)?;
            let [start, entry] = [word & 0xffff_ffff, word >> 32];
            let absolute = |offset: u64| {
                let offset = i64::from(u32::try_from(offset).unwrap_or(0).cast_signed());
                table.wrapping_add_signed(offset)
            };
            Some((absolute(start), absolute(entry)))
        };
        // The last row that begins at or below the address.
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if row(middle)?.0 <= address { low = middle + 1 } else { high = middle }
        }
        let (_, at) = row(low.checked_sub(1)?)?;
        let mut description = entry_at(memory, at)?;
        let pointer = u32::from_le_bytes(*description.get(4..)?.first_chunk()?);
        let common = entry_at(memory, at.checked_add(4)?.checked_sub(u64::from(pointer))?)?;
        // The description now follows its common entry, and has to point there.
        let offset = common.len();
        let pointer = u32::try_from(offset).ok()?.checked_add(4)?;
        description.get_mut(4..8)?.copy_from_slice(&pointer.to_le_bytes());
        let bases = BaseAddresses::default().set_eh_frame(at.wrapping_sub(offset as u64));
        Some(Self { bytes: [common, description].concat(), offset, bases })
    }

    /// Returns the bytes of memory that the entry takes.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() + size_of::<Self>()
    }

    fn apply(&self, memory: Memory<'_>, stack: &Stack, registers: &Registers, address: u64) -> Option<Step> {
        let section = EhFrame::new(&self.bytes, LittleEndian);
        let fde = section
            .fde_from_offset(&self.bases, EhFrameOffset(self.offset), EhFrame::cie_from_offset)
            .ok()?;
        if !fde.contains(address) {
            return None;
        }
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(&section, &self.bases, &mut context, address).ok()?;
        let evaluate = |expression: &UnwindExpression<usize>, first: Option<u64>| {
            let expression = expression.get(&section).ok()?;
            evaluate(memory, stack, registers, expression, fde.cie().encoding(), first)
        };
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                get(registers, *register)?.wrapping_add_signed(*offset)
            }
            CfaRule::Expression(expression) => evaluate(expression, None)?,
        };
        let mut next = *registers;
        // The callee may have changed these registers.
        for register in [0, 1, 2, 4, 5, 8, 9, 10, 11] {
            set(&mut next, Register(register), None);
        }
        set(&mut next, X86_64::RSP, Some(cfa));
        let (mut pc, mut found_at) = (None, None);
        for (register, rule) in row.registers() {
            let value = match rule {
                RegisterRule::Undefined => None,
                RegisterRule::SameValue => get(registers, *register),
                RegisterRule::Offset(offset) => stack.word(memory, cfa.wrapping_add_signed(*offset)),
                RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset)),
                RegisterRule::Register(other) => get(registers, *other),
                RegisterRule::Expression(expression) => {
                    evaluate(expression, Some(cfa)).and_then(|at| stack.word(memory, at))
                }
                RegisterRule::ValExpression(expression) => evaluate(expression, Some(cfa)),
                _ => return None,
            };
            if *register == X86_64::RA {
                if matches!(rule, RegisterRule::Undefined) {
                    return Some(Step::End);
                }
                pc = value;
                found_at = match rule {
                    RegisterRule::Offset(offset) => Some(cfa.wrapping_add_signed(*offset)),
                    _ => None,
                };
            }
            set(&mut next, *register, value);
        }
        match pc {
            Some(0) => Some(Step::End),
            pc => Some(Step::To(Box::new(next), pc?, fde.is_signal_trampoline(), found_at)),
        }
    }
}

/// Reads an entry of `.eh_frame` with its length: at most [`MAX_ENTRY`] bytes.
fn entry_at(memory: Memory<'_>, at: u64) -> Option<Vec<u8>> {
    let length = memory.bytes(RuntimeAddr(at), 4).ok()?;
    let length = u32::from_le_bytes(*length.first_chunk()?);
    if !(8..=MAX_ENTRY).contains(&length) {
        return None;
    }
    memory.bytes(RuntimeAddr(at), 4 + u64::from(length)).ok()
}

fn evaluate(
    memory: Memory<'_>,
    stack: &Stack,
    registers: &Registers,
    expression: gimli::Expression<EndianSlice<'_, LittleEndian>>,
    encoding: gimli::Encoding,
    first: Option<u64>,
) -> Option<u64> {
    let mut evaluation = expression.evaluation(encoding);
    evaluation.set_max_iterations(MAX_STEPS);
    if let Some(first) = first {
        evaluation.set_initial_value(first);
    }
    let mut result = evaluation.evaluate().ok()?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                evaluation.resume_with_register(gimli::Value::Generic(get(registers, register)?)).ok()?
            }
            EvaluationResult::RequiresMemory { address, .. } => {
                evaluation.resume_with_memory(gimli::Value::Generic(stack.word(memory, address)?)).ok()?
            }
            _ => return None,
        };
    }
    match evaluation.as_result() {
        [gimli::Piece { location: gimli::Location::Address { address }, .. }] => Some(*address),
        _ => None,
    }
}

/// Finds the nearest word further up the stack that is an address right after a call. A word is preferred if
/// the one below it points further up the stack: a function with a frame pointer leaves such a pair, and
/// remains of older calls seldom form one.
fn guess(memory: Memory<'_>, modules: &Modules, stack: &Stack, from: u64) -> Option<(Registers, u64)> {
    let end = modules.at(from).map_or(u64::MAX, |mapping| mapping.end.0);
    let mut loose = None;
    for index in 0..GUESS_WORDS {
        let Some((at, word)) = from.checked_add(8 * index).and_then(|at| Some((at, stack.word(memory, at)?)))
        else {
            break;
        };
        if !modules.is_code(word) || !is_behind_call(memory, word) {
            continue;
        }
        let below = at.checked_sub(8).filter(|below| *below >= from);
        let frame_pointer = below.and_then(|below| stack.word(memory, below));
        let frame_pointer = frame_pointer.filter(|pointer| (at..end).contains(pointer) && pointer % 8 == 0);
        let mut registers = [None; REGISTERS];
        set(&mut registers, X86_64::RSP, Some(at.checked_add(8)?));
        set(&mut registers, X86_64::RBP, frame_pointer);
        if frame_pointer.is_some() {
            return Some((registers, word));
        }
        loose = loose.or(Some((registers, word)));
    }
    loose
}

/// Tells whether a call instruction ends at an address: `e8` with 4 bytes, or `ff /2` of 2 to 7 bytes (Intel
/// SDM, CALL).
fn is_behind_call(memory: Memory<'_>, address: u64) -> bool {
    let Some(start) = address.checked_sub(7) else { return false };
    let Ok(code) = memory.bytes(RuntimeAddr(start), 7) else { return false };
    let indirect = |length: usize| {
        code.get(7 - length..9 - length)
            .is_some_and(|bytes| matches!(bytes, [0xff, modrm] if modrm & 0x38 == 0x10))
    };
    code.get(2) == Some(&0xe8) || [2, 3, 4, 6, 7].into_iter().any(indirect)
}
