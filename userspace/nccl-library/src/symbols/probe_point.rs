//! The choice of the instruction in a function at which a uprobe is attached, so that a hit costs one trap
//! and not two.
//!
//! The kernel runs the instruction that a uprobe replaced. A few it emulates (arch/x86/kernel/uprobes.c,
//! `branch_setup_xol_ops` and `push_setup_xol_ops`, Linux 4.16 and later): then a hit is one trap. It
//! single-steps any other out of line, which is a second trap, and in a virtual machine that can be thirty
//! times as expensive as the first. So where a function begins with another instruction, the probe goes to
//! the first that is emulated, as long as everything that a probe at the entry could see is still where it
//! was.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfo, InstructionInfoFactory,
    Mnemonic, OpAccess, OpKind, Register,
};

use super::Param;
use crate::parameter::ParamLocation;

/// Most instructions that may be skipped.
const MAX_SKIPPED: usize = 6;
/// Longest function that is probed behind its entry: all of it is searched for jumps to the point.
pub(super) const MAX_FUNCTION: u64 = 64 << 10;

/// Registers that pass integers and addresses in x86-64 code for Linux.
pub(super) const ARGUMENTS: [Register; 6] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];

/// Returns the bytes from the entry of a function to the instruction that a uprobe is attached to; 0, the
/// entry, if nothing better is known to be safe. `code` is all of the function, x86-64; `params` says where
/// its parameters are at the entry.
pub(super) fn uprobe_offset(code: &[u8], params: &[Param]) -> u64 {
    match emulated_place(code, params) {
        0 => behind_refused(code),
        place => place,
    }
}

/// Returns the first place behind instructions at the entry that [`refuses_probe`] names: they do nothing, so
/// all is as at the entry. 0 if there are none, or something jumps there.
fn behind_refused(code: &[u8]) -> u64 {
    let mut place = 0;
    while let Some(rest) = usize::try_from(place).ok().and_then(|place| code.get(place..))
        && refuses_probe(rest).is_some()
        && place < MAX_FUNCTION
    {
        place += Decoder::new(64, rest, DecoderOptions::NONE).decode().len() as u64;
    }
    if place != 0 && is_jumped_to(code, place) { 0 } else { place }
}

/// Says why no uprobe may be set on the instruction at the beginning of `code`, x86-64.
///
/// Linux 6.18 replaces a probed NOP of 5 bytes by a call, which pushes below the stack pointer: a leaf
/// function with values in its red zone reads them back wrong (9,999 of 10,000 on 6.18.44). It refuses NOPs
/// of 10 bytes (errno 524); later kernels replace those.
pub fn refuses_probe(code: &[u8]) -> Option<&'static str> {
    let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
    if instruction.mnemonic() != Mnemonic::Nop {
        return None;
    }
    match instruction.len() {
        5 => Some(
            "its first instruction is a NOP of 5 bytes, where kernels from 6.18 on overwrite values of a function \
             that calls no other",
        ),
        10 => Some("its first instruction is a NOP of 10 bytes, which kernels refuse or replace"),
        _ => None,
    }
}

fn emulated_place(code: &[u8], params: &[Param]) -> u64 {
    let read = read_registers(params);
    let mut information = InstructionInfoFactory::new();
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    for _ in 0..=MAX_SKIPPED {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return 0;
        }
        if is_emulated(&instruction) {
            let offset = instruction.ip();
            return if offset == 0 || is_jumped_to(code, offset) { 0 } else { offset };
        }
        if !can_be_skipped(&instruction, &read, &mut information) {
            return 0;
        }
    }
    0
}

/// Returns the registers that a plan can read at the probe: those of the parameters, or, unless all of their
/// locations are known, all that can pass one.
fn read_registers(params: &[Param]) -> Vec<Register> {
    let of = |param: &Param| match param.location {
        ParamLocation::Register(number) => x86_register(number).map(Some),
        ParamLocation::EntryStack { .. } => Some(None),
        ParamLocation::Unknown(_) => None,
    };
    let known: Option<Vec<Option<Register>>> = params.iter().map(of).collect();
    match known {
        Some(known) if !known.is_empty() => known.into_iter().flatten().collect(),
        _ => ARGUMENTS.to_vec(),
    }
}

/// Returns the integer register with a DWARF number (System V x86-64 psABI, figure 3.36).
pub fn x86_register(number: u16) -> Option<Register> {
    use Register::{R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP};
    const REGISTERS: [Register; 16] =
        [RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP, R8, R9, R10, R11, R12, R13, R14, R15];
    REGISTERS.get(usize::from(number)).copied()
}

/// Tells whether every kernel from 4.16 on emulates the instruction. (Of `nop` only the one of one byte; a
/// prefix that makes operands 16 bits wide excludes the others.)
fn is_emulated(instruction: &Instruction) -> bool {
    let length = instruction.len();
    match instruction.code() {
        Code::Push_r64 => length <= 2,
        Code::Nopd | Code::Nopq => length == 1,
        Code::Call_rel32_64 | Code::Jmp_rel32_64 => length == 5,
        Code::Jmp_rel8_64 => length == 2,
        _ if instruction.is_jcc_short() => length == 2,
        _ if instruction.is_jcc_near() => length == 6,
        _ => false,
    }
}

/// Tells whether everything that a probe could look at is the same after the instruction: the registers, the
/// stack, and memory.
pub(super) fn can_be_skipped(
    instruction: &Instruction,
    read: &[Register],
    infos: &mut InstructionInfoFactory,
) -> bool {
    let writes_memory =
        |infos: &InstructionInfo| infos.used_memory().iter().any(|memory| writes(memory.access()));
    instruction.flow_control() == FlowControl::Next
        && !writes_memory(infos.info(instruction))
        && written(instruction, infos).all(|register| register != Register::RSP && !read.contains(&register))
}

/// Returns the registers, all of their bits, that the instruction writes to, or may.
pub(super) fn written(
    instruction: &Instruction,
    infos: &mut InstructionInfoFactory,
) -> impl Iterator<Item = Register> {
    let used = infos.info(instruction).used_registers().iter();
    used.filter(|used| writes(used.access())).map(|used| used.register().full_register())
}

/// Returns the address that a jump leads to, with or without a condition.
pub(super) fn branch_target(instruction: &Instruction) -> Option<u64> {
    matches!(instruction.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch)
        .then(|| instruction.near_branch_target())
}

/// Tells whether an access reads, or may.
pub(super) fn reads(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

/// Tells whether an access writes, or may.
fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

/// Tells whether something in the function jumps to `offset`, or to a place between the entry and it, so that
/// a probe there would be hit more than once a call. True also if a computed jump makes that unknown.
fn is_jumped_to(code: &[u8], offset: u64) -> bool {
    Decoder::new(64, code, DecoderOptions::NONE).into_iter().any(|instruction| {
        let is_computed = instruction.flow_control() == FlowControl::IndirectBranch
            && (instruction.op0_kind() != OpKind::Memory || instruction.memory_index() != Register::None);
        is_computed || branch_target(&instruction).is_some_and(|target| (1..=offset).contains(&target))
    })
}

#[cfg(test)]
mod tests {
    use super::{refuses_probe, uprobe_offset};
    use crate::parameter::ParamLocation;
    use crate::symbols::Param;

    /// DWARF numbers of rdi, rsi, edx.
    const THREE: [u16; 3] = [5, 4, 1];

    fn offset(code: &[u8], registers: &[u16]) -> u64 {
        let param = |number: &u16| Param {
            name: "p".into(),
            type_name: "int".into(),
            size: Some(4),
            location: ParamLocation::Register(*number),
        };
        uprobe_offset(code, &registers.iter().map(param).collect::<Vec<_>>())
    }

    /// `ncclProfilerStopProxyStepEvent` of 2.27: mov ncclProfiler(%rip),%rcx; test %rcx,%rcx; jne; xor
    /// %eax,%eax; ret
    const HOOK: [u8; 15] =
        [0x48, 0x8b, 0x0d, 0x19, 0x7b, 0x99, 0x18, 0x48, 0x85, 0xc9, 0x75, 0x03, 0x31, 0xc0, 0xc3];

    #[test]
    fn a_hook_is_probed_at_its_first_branch() {
        assert_eq!(offset(&HOOK, &THREE), 10);
        // rcx is read, or nothing is known.
        assert_eq!(offset(&HOOK, &[5, 4, 1, 2]), 0);
        assert_eq!(offset(&HOOK, &[]), 0);
    }

    /// `ncclProfilerRecordProxyStepEventState` of 2.28.9 reads four parameters and writes r8.
    #[test]
    fn a_parameter_that_is_written_before_the_branch_is_kept() {
        let hook =
            [0x4c, 0x8b, 0x05, 0x59, 0xfd, 0x5e, 0x0b, 0x4d, 0x85, 0xc0, 0x75, 0x04, 0x31, 0xc0, 0xc3, 0x90];
        assert_eq!(offset(&hook, &[5, 4, 1, 2]), 10);
        assert_eq!(offset(&hook, &[5, 4, 1, 2, 8]), 0);
        // test %ecx,%ecx; movslq %edi,%rdi; push %rbx
        assert_eq!(offset(&[0x85, 0xc9, 0x48, 0x63, 0xff, 0x53], &THREE), 0);
        // xor %eax,%eax; ret: nothing is emulated
        assert_eq!(offset(&[0x31, 0xc0, 0xc3], &THREE), 0);
    }

    #[test]
    fn what_begins_with_a_push_is_probed_there() {
        assert_eq!(offset(&[0x41, 0x57, 0x41, 0x56], &THREE), 0);
        // endbr64; push %rbx
        assert_eq!(offset(&[0xf3, 0x0f, 0x1e, 0xfa, 0x53, 0xc3], &THREE), 4);
    }

    #[test]
    fn nothing_that_a_probe_can_see_is_changed_before_it() {
        // sub $8,%rsp; push %rbx
        assert_eq!(offset(&[0x48, 0x83, 0xec, 0x08, 0x53], &THREE), 0);
        // mov %rax,8(%rdi); push %rbx
        assert_eq!(offset(&[0x48, 0x89, 0x47, 0x08, 0x53], &THREE), 0);
        // movslq %edi,%rdi; push %rbx
        assert_eq!(offset(&[0x48, 0x63, 0xff, 0x53], &THREE), 0);
        // mov %rsp,%rax; push %rbx
        assert_eq!(offset(&[0x48, 0x89, 0xe0, 0x53], &THREE), 3);
        // ret; push: the end of the function
        assert_eq!(offset(&[0xc3, 0x53], &THREE), 0);
    }

    #[test]
    fn a_loop_is_not_counted_as_calls() {
        // mov (%rsi),%rax; push %rbx; jmp to the push
        assert_eq!(offset(&[0x48, 0x8b, 0x06, 0x53, 0xeb, 0xfd], &THREE), 0);
        assert_eq!(offset(&[0x48, 0x8b, 0x06, 0x53, 0xeb, 0xfa], &THREE), 3);
        // mov (%rsi),%eax; push %rbx; jmp to the push
        assert_eq!(offset(&[0x8b, 0x06, 0x53, 0xeb, 0xfd], &THREE), 0);
        // mov (%rsi),%rax; mov (%rsi),%rax; push %rbx; jmp to the second: it reaches the push, too
        assert_eq!(offset(&[0x48, 0x8b, 0x06, 0x48, 0x8b, 0x06, 0x53, 0xeb, 0xfa], &THREE), 0);
        // A jump whose way is computed can go anywhere: jmp *%rax, jmp *(%rdx,%rax,8); a call's end through a
        // pointer cannot.
        assert_eq!(offset(&[0x48, 0x8b, 0x06, 0x53, 0xff, 0xe0], &THREE), 0);
        assert_eq!(offset(&[0x48, 0x8b, 0x06, 0x53, 0xff, 0x24, 0xc2], &THREE), 0);
        assert_eq!(offset(&[0x48, 0x8b, 0x06, 0x53, 0xff, 0x60, 0x18], &THREE), 3);
    }

    /// `nopl 0(%rax,%rax,1)` and `cs nopw 0(%rax,%rax,1)`, as compilers and assemblers write them.
    const NOP_5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
    const NOP_10: [u8; 10] = [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00];

    #[test]
    fn a_nop_that_kernels_replace_is_never_probed() {
        for nop in [NOP_5.as_slice(), &NOP_10] {
            assert!(refuses_probe(nop).is_some());
            let with = |code: &[u8]| [nop, code].concat();
            // push %rbx behind it: emulated
            assert_eq!(offset(&with(&[0x53, 0xc3]), &THREE), nop.len() as u64);
            // mov %edi,%eax; ret: not emulated, and still not the NOP
            let code = with(&[0x89, 0xf8, 0xc3]);
            assert_eq!(offset(&code, &THREE), nop.len() as u64);
            assert!(refuses_probe(&code[nop.len()..]).is_none());
            // Two of them.
            assert_eq!(offset(&with(&with(&[0x89, 0xf8, 0xc3])), &THREE), 2 * nop.len() as u64);
        }
        // 5 bytes, and a loop back to what follows: the entry stays, and is refused.
        let looped = [NOP_5.as_slice(), &[0x89, 0xf8, 0xeb, 0xfc]].concat();
        assert_eq!(offset(&looped, &THREE), 0);
        assert!(refuses_probe(&looped).is_some());
    }

    #[test]
    fn other_instructions_are_not_refused() {
        for code in [
            [0x90].as_slice(),                     // nop
            &[0x66, 0x90],                         // xchg %ax,%ax
            &[0x0f, 0x1f, 0x40, 0x00],             // nopl 0(%rax)
            &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],       // nopl 0(%rax), 7 bytes
            &[0xe8, 0, 0, 0, 0],                   // call, 5 bytes
            &[0xb8, 1, 0, 0, 0],                   // mov $1,%eax, 5 bytes
            &[0xf3, 0x0f, 0x1e, 0xfa],             // endbr64
            &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8], // movabs, 10 bytes
            &[],
            &[0x0f, 0x1f],
        ] {
            assert_eq!(refuses_probe(code), None, "{code:x?}");
        }
    }

    #[test]
    fn bytes_that_are_no_code_are_probed_at_the_entry() {
        assert_eq!(offset(&[], &THREE), 0);
        assert_eq!(offset(&[0x06, 0x53], &THREE), 0);
        assert_eq!(offset(&[0x48, 0x8b], &THREE), 0);
    }
}
