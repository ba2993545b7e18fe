//! x86-64: `test r, r; js`.

use std::collections::HashMap;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpKind, Register,
};

use crate::symbols::probe_point::{ARGUMENTS, written};

/// Most instructions before the test; more are no beginning of a function.
const MAX_INSTRUCTIONS: usize = 32;

pub(super) fn first_sign_test(code: &[u8]) -> Option<usize> {
    // The parameter that each register holds, and the one that the flags were set by.
    let mut held: HashMap<Register, usize> = ARGUMENTS.into_iter().zip(0..).collect();
    let mut tested = None;
    let mut infos = InstructionInfoFactory::new();
    for instruction in Decoder::new(64, code, DecoderOptions::NONE).into_iter().take(MAX_INSTRUCTIONS) {
        match instruction.flow_control() {
            FlowControl::ConditionalBranch if is_js(&instruction) => return tested,
            // After another condition the way on is followed.
            FlowControl::Next | FlowControl::ConditionalBranch => {}
            _ => return None,
        }
        let copied = copied_from(&instruction).and_then(|from| held.get(&from).copied());
        if instruction.code() == Code::Test_rm32_r32
            && instruction.op0_register() == instruction.op1_register()
        {
            tested = held.get(&instruction.op0_register().full_register()).copied();
        } else if instruction.rflags_modified() != 0 {
            tested = None;
        }
        for register in written(&instruction, &mut infos) {
            held.remove(&register);
        }
        held.extend(copied.map(|parameter| (instruction.op0_register().full_register(), parameter)));
    }
    None
}

fn is_js(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::Js_rel8_64 | Code::Js_rel32_64)
}

/// Returns the register whose low 32 bits, with their sign, another register has after the instruction.
fn copied_from(instruction: &Instruction) -> Option<Register> {
    let is_copy = matches!(
        instruction.code(),
        Code::Mov_r32_rm32
            | Code::Mov_rm32_r32
            | Code::Mov_r64_rm64
            | Code::Mov_rm64_r64
            | Code::Movsxd_r32_rm32
            | Code::Movsxd_r64_rm32
    );
    let between_registers =
        instruction.op0_kind() == OpKind::Register && instruction.op1_kind() == OpKind::Register;
    (is_copy && between_registers).then(|| instruction.op1_register().full_register())
}

#[cfg(test)]
mod tests {
    use super::first_sign_test;

    const RDX: usize = 2;
    const RCX: usize = 3;
    const R8: usize = 4;

    #[test]
    fn official_libraries() {
        // 2.17.1: push rbx; test ecx, ecx; js
        assert_eq!(first_sign_test(&[0x53, 0x85, 0xc9, 0x78, 0x4c]), Some(RCX));
        // 2.27.5: push rbx; test r8d, r8d; js
        assert_eq!(first_sign_test(&[0x53, 0x45, 0x85, 0xc0, 0x78, 0x44]), Some(R8));
        // 2.32.3: push r14, r13, r12, rbp, rbx; sub rsp, 16; test r8d, r8d; js rel32
        let code = [
            0x41, 0x56, 0x41, 0x55, 0x41, 0x54, 0x55, 0x53, 0x48, 0x83, 0xec, 0x10, 0x45, 0x85, 0xc0, 0x0f,
            0x88, 0xc7, 0, 0, 0,
        ];
        assert_eq!(first_sign_test(&code), Some(R8));
    }

    #[test]
    fn copies_are_followed_and_overwritten_registers_forgotten() {
        // endbr64; mov r12d, ecx; xor ecx, ecx; test r12d, r12d; mov rax, [rsp+8]; js
        let code = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0x89, 0xcc, 0x31, 0xc9, 0x45, 0x85, 0xe4, 0x48, 0x8b, 0x44, 0x24,
            0x08, 0x78, 0,
        ];
        assert_eq!(first_sign_test(&code), Some(RCX));
        // mov ecx, [rdi]; test ecx, ecx; js
        assert_eq!(first_sign_test(&[0x8b, 0x0f, 0x85, 0xc9, 0x78, 0]), None);
        // movsxd rbx, edx; test ebx, ebx; js
        assert_eq!(first_sign_test(&[0x48, 0x63, 0xda, 0x85, 0xdb, 0x78, 0]), Some(RDX));
        // test ecx, ecx; cmp eax, 1; js
        assert_eq!(first_sign_test(&[0x85, 0xc9, 0x83, 0xf8, 0x01, 0x78, 0]), None);
    }

    #[test]
    fn what_is_not_understood_is_not_known() {
        // ret; call; an unknown opcode; the end of the code; a 64-bit test; no test at all
        for code in [
            &[0xc3][..],
            &[0xe8, 0, 0, 0, 0, 0x85, 0xc9, 0x78, 0],
            &[0x0f, 0x05],
            &[],
            &[0x53],
            &[0x48, 0x85, 0xc9, 0x78, 0],
            &[0x78, 0],
            &[0x90; 100],
            &[0x66; 100],
        ] {
            assert_eq!(first_sign_test(code), None, "{code:x?}");
        }
    }
}
