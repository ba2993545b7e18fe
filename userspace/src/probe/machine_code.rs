//! Where in a function a breakpoint is cheap, and where one function calls another: from x86-64 machine code.
//!
//! At a breakpoint the kernel has to run the instruction that stood there. A few it emulates (arch/x86/kernel/uprobes.c,
//! `branch_setup_xol_ops` and `push_setup_xol_ops`, kernel 4.17 and later): calls, jumps, `push`, `nop`. Any other it runs
//! in a page of its own with the single-step flag set, which is a second trap; on virtual machines that costs many times the
//! first (measured on one: 0.5 µs a hit against 15 µs).

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
};

/// Longest function that is looked at. NCCL's longest of interest has 5,200 bytes.
const MAX_CODE: usize = 64 << 10;

/// Instructions from the entry that are looked at for one that is emulated.
const MAX_ENTRY: usize = 8;

/// Instructions that a constant is followed over on its way to a call.
const MAX_WAY: usize = 256;

/// A function's instructions, in the order of their addresses.
#[derive(Debug)]
pub(super) struct MachineCode {
    instructions: Vec<Instruction>,
}

/// A call of one function by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallSite {
    /// Address of the call instruction.
    pub(super) address: u64,
    /// Constants that the register can hold there; none if it is not known.
    pub(super) constants: Vec<i64>,
}

impl MachineCode {
    /// The code at `address`. `None` if something in it is no instruction.
    pub(super) fn read(code: &[u8], address: u64) -> Option<Self> {
        let code = code.get(..code.len().min(MAX_CODE))?;
        let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
        let mut instructions = Vec::new();
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                return None;
            }
            instructions.push(instruction);
        }
        Some(Self { instructions })
    }

    /// The first instruction that the kernel emulates, if it is reached on the only way from the entry and at nothing else, with the
    /// registers in `kept` as they were.
    pub(super) fn emulated_near_entry(&self, kept: &[Register]) -> Option<u64> {
        let entry = self.instructions.first()?.ip();
        let mut infos = InstructionInfoFactory::new();
        for instruction in self.instructions.iter().take(MAX_ENTRY) {
            if is_emulated(instruction) {
                let at = instruction.ip();
                let is_jumped_to = self
                    .instructions
                    .iter()
                    .filter_map(branch_target)
                    .any(|target| target > entry && target <= at);
                return (!is_jumped_to).then_some(at);
            }
            let writes_kept = infos
                .info(instruction)
                .used_registers()
                .iter()
                .any(|used| writes(used.access()) && kept.contains(&used.register().full_register()));
            if instruction.flow_control() != FlowControl::Next || writes_kept {
                return None;
            }
        }
        None
    }

    /// The calls of the function at `callee`, with the constants that the register `of` can hold there.
    pub(super) fn calls_of(&self, callee: u64, of: Register) -> Vec<CallSite> {
        let is_call = |instruction: &&Instruction| {
            instruction.flow_control() == FlowControl::Call && instruction.near_branch_target() == callee
        };
        let mut sites: Vec<CallSite> = self
            .instructions
            .iter()
            .filter(is_call)
            .map(|instruction| CallSite { address: instruction.ip(), constants: Vec::new() })
            .collect();
        for (at, instruction) in self.instructions.iter().enumerate() {
            let Some(constant) = constant_into(instruction, of) else { continue };
            for call in self.calls_reached(at, of) {
                for site in sites.iter_mut().filter(|site| site.address == call) {
                    if !site.constants.contains(&constant) {
                        site.constants.push(constant);
                    }
                }
            }
        }
        sites
    }

    /// Addresses of the first calls on the ways from instruction `at` on which the register keeps its value.
    fn calls_reached(&self, at: usize, of: Register) -> Vec<u64> {
        let mut infos = InstructionInfoFactory::new();
        let (mut calls, mut seen, mut ways) = (Vec::new(), Vec::new(), vec![at + 1]);
        while let Some(mut at) = ways.pop() {
            while let Some(instruction) = self.instructions.get(at)
                && seen.len() < MAX_WAY
                && !seen.contains(&at)
            {
                seen.push(at);
                let flow = instruction.flow_control();
                if flow == FlowControl::Call {
                    calls.push(instruction.ip());
                    break;
                }
                let info = infos.info(instruction);
                if info
                    .used_registers()
                    .iter()
                    .any(|used| writes(used.access()) && used.register().full_register() == of)
                {
                    break;
                }
                let target = branch_target(instruction).and_then(|target| self.index_of(target));
                match (flow, target) {
                    (FlowControl::Next, _) => {}
                    (FlowControl::ConditionalBranch, target) => ways.extend(target),
                    (FlowControl::UnconditionalBranch, Some(target)) => {
                        at = target;
                        continue;
                    }
                    _ => break,
                }
                at += 1;
            }
        }
        calls
    }

    fn index_of(&self, address: u64) -> Option<usize> {
        self.instructions.binary_search_by_key(&address, Instruction::ip).ok()
    }
}

/// The x86-64 register of a DWARF number (System V psABI, figure 3.36), of those that carry arguments.
pub(super) fn argument_register(dwarf: u16) -> Option<Register> {
    Some(match dwarf {
        1 => Register::RDX,
        2 => Register::RCX,
        4 => Register::RSI,
        5 => Register::RDI,
        8 => Register::R8,
        9 => Register::R9,
        _ => return None,
    })
}

fn is_emulated(instruction: &Instruction) -> bool {
    let plain = instruction.len();
    match instruction.code() {
        Code::Push_r64 => plain <= 2,
        Code::Nopd => plain == 1,
        Code::Call_rel32_64 | Code::Jmp_rel32_64 => plain == 5,
        Code::Jmp_rel8_64 => plain == 2,
        _ if instruction.is_jcc_short() => plain == 2,
        _ if instruction.is_jcc_near() => plain == 6,
        _ => false,
    }
}

fn branch_target(instruction: &Instruction) -> Option<u64> {
    matches!(instruction.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch)
        .then(|| instruction.near_branch_target())
}

/// `mov r32, constant`, and the ways to write 0.
fn constant_into(instruction: &Instruction, of: Register) -> Option<i64> {
    if instruction.op_count() != 2 || instruction.op0_register().full_register() != of {
        return None;
    }
    match instruction.code() {
        Code::Mov_r32_imm32 => Some(i64::from(instruction.immediate32())),
        Code::Xor_rm32_r32 | Code::Xor_r32_rm32
            if instruction.op1_register() == instruction.op0_register() =>
        {
            Some(0)
        }
        _ => None,
    }
}

fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ncclProfilerRecordProxyStepEventState` of 2.28.9: mov r8, [rip+x]; test r8, r8; jne +2; xor eax, eax; ret.
    const HOOK: &[u8] =
        &[0x4c, 0x8b, 0x05, 0x59, 0xfd, 0x5e, 0x0b, 0x4d, 0x85, 0xc0, 0x75, 0x04, 0x31, 0xc0, 0xc3, 0x90];

    const ARGUMENTS: [Register; 4] = [Register::RDI, Register::RSI, Register::RDX, Register::RCX];

    #[test]
    fn the_first_emulated_instruction_that_keeps_the_arguments() {
        let code = MachineCode::read(HOOK, 0x1000).unwrap();
        assert_eq!(code.emulated_near_entry(&ARGUMENTS), Some(0x100a));
        let with_the_fifth: Vec<Register> = ARGUMENTS.into_iter().chain([Register::R8]).collect();
        assert_eq!(code.emulated_near_entry(&with_the_fifth), None, "r8 is written before");
        // push rbx; ret
        assert_eq!(MachineCode::read(&[0x53, 0xc3], 7).unwrap().emulated_near_entry(&ARGUMENTS), Some(7));
        // xor eax, eax; ret
        assert_eq!(MachineCode::read(&[0x31, 0xc0, 0xc3], 7).unwrap().emulated_near_entry(&ARGUMENTS), None);
        // mov eax, [rsi]; push rbx; jmp to the push: hit more than once a call
        let looped = [0x8b, 0x06, 0x53, 0xeb, 0xfd];
        assert_eq!(MachineCode::read(&looped, 7).unwrap().emulated_near_entry(&ARGUMENTS), None);
        // test ecx, ecx; movsxd rdi, edi; push rbx
        let moved = [0x85, 0xc9, 0x48, 0x63, 0xff, 0x53];
        assert_eq!(MachineCode::read(&moved, 7).unwrap().emulated_near_entry(&ARGUMENTS), None);
        assert!(MachineCode::read(&[0x06], 7).is_none(), "no instruction in 64-bit mode");
    }

    #[test]
    fn calls_and_the_constants_that_reach_them() {
        // 0: mov ecx, 9; 5: jmp 12; 7: mov ecx, 8; 12: mov edi, r14d; 15: call 0x100; 20: mov ecx, 10; 25: call 0x200;
        // 30: mov ecx, [rax]; 32: call 0x100; 37: xor ecx, ecx; 39: je 43; 41: mov edx, eax; 43: call 0x100
        let code = [
            0xb9, 9, 0, 0, 0, 0xeb, 5, 0xb9, 8, 0, 0, 0, 0x44, 0x89, 0xf7, 0xe8, 0xec, 0, 0, 0, 0xb9, 10, 0,
            0, 0, 0xe8, 0xe2, 1, 0, 0, 0x8b, 0x08, 0xe8, 0xdb, 0, 0, 0, 0x31, 0xc9, 0x74, 2, 0x89, 0xc2,
            0xe8, 0xd0, 0, 0, 0,
        ];
        let code = MachineCode::read(&code, 0).unwrap();
        let mut sites = code.calls_of(0x100, Register::RCX);
        for site in &mut sites {
            site.constants.sort_unstable();
        }
        let expected = [(15, vec![8, 9]), (32, vec![]), (43, vec![0])];
        let expected: Vec<CallSite> =
            expected.into_iter().map(|(address, constants)| CallSite { address, constants }).collect();
        assert_eq!(sites, expected);
    }
}
