//! Calls that a function makes, and the constants that it passes: from x86-64 machine code. A call is an
//! instruction at which a uprobe is cheap (`probe_point`).

use std::collections::BTreeSet;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpKind, Register,
};

use super::{
    Code as KeptCode, Function,
    probe_point::{branch_target, reads, written},
};
use crate::elf::{Budget, ElfVaddr, Image};

/// Longest function that is read. The longest that matters in NCCL has 5,200 bytes.
const MAX_CODE: u64 = 64 << 10;

/// Most instructions over which a constant is followed on its way to a call.
const MAX_WAY: usize = 256;

/// A function's instructions, in the order of their addresses.
#[derive(Debug)]
pub struct MachineCode {
    pub(super) instructions: Vec<Instruction>,
}

/// A call of one function by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSite {
    pub address: u64,
    /// Constants that the register can hold there; none if they are not known.
    pub constants: Vec<i64>,
}

impl MachineCode {
    /// Reads a function of `size` bytes at `address`. `None` if it is too long, is not in the file, or is no
    /// code.
    pub fn of_function(image: &Image, address: ElfVaddr, size: u64, budget: &mut Budget) -> Option<Self> {
        if size == 0 || size > MAX_CODE {
            return None;
        }
        Self::read(&image.loaded_bytes(address, size, budget).ok()?, address.0)
    }

    /// Reads a function whose code was kept, as [`MachineCode::of_function`].
    pub fn of_kept(code: &KeptCode, function: &Function) -> Option<Self> {
        if function.size == 0 || function.size > MAX_CODE {
            return None;
        }
        let bytes = code.at(function.file_offset, function.size)?;
        (bytes.len() as u64 == function.size).then(|| Self::read(bytes, function.vaddr.0))?
    }

    /// Reads the code at `address`. `None` if something in it is no instruction.
    pub(super) fn read(code: &[u8], address: u64) -> Option<Self> {
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

    /// Returns the functions that are called by their addresses.
    pub fn callees(&self) -> BTreeSet<u64> {
        let calls = self.instructions.iter().filter(|instruction| {
            instruction.flow_control() == FlowControl::Call && instruction.op0_kind() == OpKind::NearBranch64
        });
        calls.map(Instruction::near_branch_target).collect()
    }

    /// Returns the offsets in tables of functions at which the code calls, or jumps to, a function through a
    /// pointer: `call *0x18(%rax)`.
    pub fn called_from_tables(&self) -> BTreeSet<u64> {
        let through = |instruction: &&Instruction| {
            matches!(instruction.flow_control(), FlowControl::IndirectCall | FlowControl::IndirectBranch)
                && instruction.op0_kind() == OpKind::Memory
                && instruction.memory_base() != Register::None
                && instruction.memory_base() != Register::RIP
                && instruction.memory_index() == Register::None
        };
        self.instructions.iter().filter(through).map(Instruction::memory_displacement64).collect()
    }

    /// Tells whether the register's value at the entry is used: the first instruction, in the order of
    /// addresses, that has to do with the register reads it.
    pub fn takes(&self, register: Register) -> bool {
        let mut infos = InstructionInfoFactory::new();
        for instruction in &self.instructions {
            // `xor` of a register with itself reads it, but its value does not matter.
            if constant_into(instruction, register).is_some() {
                return false;
            }
            let mut used = infos.info(instruction).used_registers().iter();
            if used.any(|used| used.register().full_register() == register && reads(used.access())) {
                return true;
            }
            if written(instruction, &mut infos).any(|written| written == register) {
                return false;
            }
        }
        false
    }

    /// Returns the calls of the function at `callee`, with the constants that the register `of` can hold
    /// there.
    pub fn calls_of(&self, callee: u64, of: Register) -> Vec<CallSite> {
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
            for call in self.calls_reached(at, Some(of)) {
                for site in sites.iter_mut().filter(|site| site.address == call) {
                    if !site.constants.contains(&constant) {
                        site.constants.push(constant);
                    }
                }
            }
        }
        sites
    }

    /// Returns the addresses of the first calls on the ways from instruction `at`; if `of` is given, only on
    /// ways on which this register keeps its value.
    pub(super) fn calls_reached(&self, at: usize, of: Option<Register>) -> Vec<u64> {
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
                if written(instruction, &mut infos).any(|register| Some(register) == of) {
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

/// Returns the constant that the instruction writes into the register: `mov r32, constant`, and the ways to
/// write 0.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_the_constants_that_reach_them() {
        // 0: mov ecx, 9; 5: jmp 12; 7: mov ecx, 8; 12: mov edi, r14d; 15: call 0x100; 20: mov ecx, 10;
        // 25: call 0x200; 30: mov ecx, [rax]; 32: call 0x100; 37: xor ecx, ecx; 39: je 43; 41: mov
        // edx, eax; 43: call 0x100
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
