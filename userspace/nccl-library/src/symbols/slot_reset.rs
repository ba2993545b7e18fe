//! The instruction by which the proxy gives a send's slot back: it writes -1 over the size in the slot, once
//! the network has taken the message, and then reports the send. Until then the size stands there.
//!
//! NCCL 2.16 to 2.19 (src/transport/net.cc, sendProxyProgress): `sizesFifo[buffSlot] = -1`, and then
//! `ncclProfilingRecord`. A send that the network refuses, which the proxy repeats at the rate of its poll
//! loop, does not reach it.

use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory, OpKind, Register};

use super::{
    machine_code::MachineCode,
    probe_point::{ARGUMENTS, branch_target, can_be_skipped, x86_register},
};
use crate::parameter::ParamLocation;

/// Most instructions between one that puts an address somewhere and the one that takes it from there.
const MAX_BETWEEN: usize = 8;

/// A store of -1 over a number of 32 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotReset {
    pub address: u64,
    /// Location, when the instruction is reached, of the address that the store counts from: a register, or a
    /// place in the frame, counted from the stack pointer.
    pub holder: ParamLocation,
    /// Bytes from that address to the number that is overwritten.
    pub displacement: i64,
}

impl MachineCode {
    /// Finds the only store of -1 that leads to the call at `call` with no other call in between, if the
    /// store is known to be over an element of the array of 32-bit numbers that lies `array_at` bytes from
    /// the start of a struct.
    pub fn slot_reset_before(&self, call: u64, array_at: u64) -> Result<SlotReset, &'static str> {
        let stores = self.instructions.iter().enumerate().filter(|(at, instruction)| {
            is_store_of_minus_one(instruction) && self.calls_reached(*at, None).contains(&call)
        });
        let [(at, store)] = stores.collect::<Vec<_>>()[..] else {
            return Err("it is not one instruction there that gives a slot's size up");
        };
        let base = store.memory_base();
        let frame_place = self.loaded_from_frame(at, base);
        let (holder, known) = match frame_place {
            Some((load, place)) if self.spills(array_at).any(|spilled| spilled == place) => {
                (ParamLocation::EntryStack { sp_offset: place }, !self.is_entered_between(load, at))
            }
            _ => {
                let number = (0..16).find(|number| x86_register(*number) == Some(base));
                let holder = number.filter(|_| ARGUMENTS.contains(&base)).map(ParamLocation::Register);
                let holder =
                    holder.ok_or("the address of a slot's size is in no register that can be read")?;
                (holder, self.elements(array_at).any(|(_, register)| register == base))
            }
        };
        if !known {
            return Err("what is given up there is not known to be a slot's size");
        }
        let displacement = store.memory_displacement64().cast_signed();
        Ok(SlotReset { address: store.ip(), holder, displacement })
    }

    /// Finds the instruction that loads the register from the frame, shortly before `at`, and the place that
    /// it loads from.
    fn loaded_from_frame(&self, at: usize, register: Register) -> Option<(usize, i64)> {
        let mut infos = InstructionInfoFactory::new();
        for before in (at.saturating_sub(MAX_BETWEEN)..at).rev() {
            let instruction = self.instructions.get(before)?;
            let is_load = instruction.code() == Code::Mov_r64_rm64
                && instruction.op0_register() == register
                && in_frame(instruction);
            if is_load {
                return Some((before, instruction.memory_displacement64().cast_signed()));
            }
            if !can_be_skipped(instruction, &[register], &mut infos) {
                return None;
            }
        }
        None
    }

    /// Tells whether instruction `to` can be reached by a jump to a place between `from` and it; true also if
    /// a computed jump makes that unknown.
    fn is_entered_between(&self, from: usize, to: usize) -> bool {
        let ip = |at: usize| self.instructions.get(at).map_or(u64::MAX, Instruction::ip);
        let (from, to) = (ip(from), ip(to));
        self.instructions.iter().any(|instruction| {
            instruction.flow_control() == FlowControl::IndirectBranch
                || branch_target(instruction).is_some_and(|target| from < target && target <= to)
        })
    }

    /// Returns the instructions that compute the address of an element of the array, each with the register
    /// that receives it.
    fn elements(&self, array_at: u64) -> impl Iterator<Item = (usize, Register)> {
        let is_element = move |instruction: &Instruction| {
            instruction.code() == Code::Lea_r64_m
                && instruction.memory_index() != Register::None
                && instruction.memory_index_scale() == 4
                && instruction.memory_displacement64() == array_at
        };
        let elements = self.instructions.iter().enumerate();
        elements
            .filter(move |(_, instruction)| is_element(instruction))
            .map(|(at, instruction)| (at, instruction.op0_register()))
    }

    /// Returns the places in the frame to which the address of an element of the array is spilled.
    fn spills(&self, array_at: u64) -> impl Iterator<Item = i64> {
        self.elements(array_at).filter_map(|(at, register)| {
            let after = self.instructions.iter().skip(at + 1).take(MAX_BETWEEN);
            let mut until_changed = after.take_while(|instruction| {
                instruction.flow_control() == FlowControl::Next
                    && !(instruction.op0_kind() == OpKind::Register
                        && instruction.op0_register().full_register() == register)
            });
            until_changed
                .find(|instruction| {
                    instruction.code() == Code::Mov_rm64_r64
                        && instruction.op1_register() == register
                        && in_frame(instruction)
                })
                .map(|spill| spill.memory_displacement64().cast_signed())
        })
    }
}

fn is_store_of_minus_one(instruction: &Instruction) -> bool {
    instruction.code() == Code::Mov_rm32_imm32
        && instruction.op0_kind() == OpKind::Memory
        && instruction.immediate32() == u32::MAX
        && instruction.memory_index() == Register::None
        && !matches!(instruction.memory_base(), Register::None | Register::RIP | Register::RSP)
}

/// Tells whether the instruction's memory operand is `displacement(%rsp)`.
fn in_frame(instruction: &Instruction) -> bool {
    instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code of 2.19.3, shortened: 0: lea 0x80(%r9,%r11,4),%r13; 8: mov %r13,0x20(%rsp); 13: call *0x50(%rax);
    /// 16: cmpq $0,0x58(%rbx,%r11,8); 22: jne 26; 24: jmp 69; 26: mov 0x20(%rsp),%rax; 31: movl $-1,(%rax);
    /// 37: mfence; 40: mov 0x40(%rbx),%r13; 44: cmp %rax,%r13; 47: jae 69; 49: mov %r13d,%edx; 52: mov
    /// $2,%ecx; 57: call 0x100; 62: jmp 49 (a loop of the slices); 64: nop …; 69: ret
    const SEND: [u8; 70] = [
        0x4f, 0x8d, 0xac, 0x99, 0x80, 0, 0, 0, 0x4c, 0x89, 0x6c, 0x24, 0x20, 0xff, 0x50, 0x50, 0x4a, 0x83,
        0x7c, 0xdb, 0x58, 0, 0x75, 2, 0xeb, 43, 0x48, 0x8b, 0x44, 0x24, 0x20, 0xc7, 0, 0xff, 0xff, 0xff,
        0xff, 0x0f, 0xae, 0xf0, 0x4c, 0x8b, 0x6b, 0x40, 0x49, 0x39, 0xc5, 0x73, 20, 0x44, 0x89, 0xea, 0xb9,
        2, 0, 0, 0, 0xe8, 0xc2, 0, 0, 0, 0xeb, 0xf1, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3,
    ];

    fn reset_in(code: &[u8], array_at: u64) -> Result<SlotReset, &'static str> {
        let code = MachineCode::read(code, 0).unwrap();
        let site = code.calls_of(0x100, Register::RCX).pop().unwrap();
        code.slot_reset_before(site.address, array_at)
    }

    #[test]
    fn the_store_whose_address_is_in_the_frame() {
        let holder = ParamLocation::EntryStack { sp_offset: 0x20 };
        assert_eq!(reset_in(&SEND, 0x80), Ok(SlotReset { address: 31, holder, displacement: 0 }));
    }

    #[test]
    fn what_is_not_known_to_be_the_size_is_not_taken_for_it() {
        assert!(reset_in(&SEND, 0x100).is_err(), "another array");
        let changed = |changes: &[(usize, u8)]| {
            let mut code = SEND;
            for (at, byte) in changes {
                code[*at] = *byte;
            }
            reset_in(&code, 0x80)
        };
        assert!(changed(&[(33, 0xfe)]).is_err(), "another number");
        assert!(changed(&[(30, 0x28)]).is_err(), "from another place in the frame");
        assert!(changed(&[(23, 7)]).is_err(), "the jump passes the load");
        assert!(changed(&[(24, 0xff), (25, 0xe0)]).is_err(), "a jump that can go anywhere");
        // movl $-1,(%rax) once more, in the place of mov and cmp
        let twice = [0xc7, 0, 0xff, 0xff, 0xff, 0xff, 0x90].iter().enumerate();
        let twice: Vec<(usize, u8)> = twice.map(|(at, byte)| (40 + at, *byte)).collect();
        assert!(changed(&twice).is_err(), "two of them");
    }

    #[test]
    fn an_address_in_a_register() {
        // 0: lea 0x80(%r9,%r11,4),%rsi; 8: movl $-1,(%rsi); 14: mov $2,%ecx; 19: call 0x100
        let mut code = vec![0x4b, 0x8d, 0xb4, 0x99, 0x80, 0, 0, 0, 0xc7, 0x06, 0xff, 0xff, 0xff, 0xff];
        code.extend([0xb9, 2, 0, 0, 0, 0xe8, 0xe8, 0, 0, 0]);
        let holder = ParamLocation::Register(4);
        assert_eq!(reset_in(&code, 0x80), Ok(SlotReset { address: 8, holder, displacement: 0 }));
        // In rbx no plan can read it.
        (code[2], code[9]) = (0x9c, 0x03);
        assert!(reset_in(&code, 0x80).is_err());
    }
}
