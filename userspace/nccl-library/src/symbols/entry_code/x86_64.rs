//! x86-64: `test r, r; js`.

/// More instructions than this before the test are no beginning of a function.
const MAX_INSTRUCTIONS: usize = 32;

/// Argument registers in their order, by the numbers of the instruction encoding: rdi rsi rdx rcx r8 r9.
const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];

/// The parameter whose sign is tested first.
pub(super) fn first_sign_test(code: &[u8]) -> Option<usize> {
    let tested = tested_register(code)?;
    ARGUMENTS.iter().position(|register| *register == tested)
}

fn tested_register(code: &[u8]) -> Option<u8> {
    let mut code = code;
    let mut state =
        State { origin: std::array::from_fn(|register| u8::try_from(register).ok()), tested: None };
    for _ in 0..MAX_INSTRUCTIONS {
        let instruction = Instruction::read(code)?;
        code = code.get(instruction.length..)?;
        match instruction.effect {
            Effect::JumpIfNegative => return state.tested,
            Effect::None => {}
            Effect::Test(register) => state.tested = state.of(register),
            Effect::Flags => state.tested = None,
            Effect::Write(register) => state.set(register, None),
            Effect::WriteAndFlags(register) => {
                state.set(register, None);
                state.tested = None;
            }
            Effect::Copy { from, to } => state.set(to, state.of(from)),
        }
    }
    None
}

/// What each register holds of what was there at the entry, and which of that the flags are of.
struct State {
    origin: [Option<u8>; 16],
    tested: Option<u8>,
}

impl State {
    fn of(&self, register: u8) -> Option<u8> {
        self.origin.get(usize::from(register)).copied().flatten()
    }

    fn set(&mut self, register: u8, value: Option<u8>) {
        if let Some(origin) = self.origin.get_mut(usize::from(register)) {
            *origin = value;
        }
    }
}

/// What an instruction does, as far as it matters here. Registers that are 16 or more are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    None,
    Flags,
    Write(u8),
    WriteAndFlags(u8),
    Copy { from: u8, to: u8 },
    Test(u8),
    JumpIfNegative,
}

/// Memory, or a register that does not matter.
const NO_REGISTER: u8 = 16;

#[derive(Clone, Copy, Debug)]
struct Instruction {
    length: usize,
    effect: Effect,
}

impl Instruction {
    /// Intel SDM volume 2, appendix A: the opcodes that compilers use at the beginning of a function.
    fn read(code: &[u8]) -> Option<Self> {
        let mut at = 0;
        let (mut narrow, mut repeat) = (false, false);
        while let Some(prefix @ (0x66 | 0xf2 | 0xf3)) = code.get(at).copied() {
            narrow |= prefix == 0x66;
            repeat |= prefix != 0x66;
            at += 1;
            if at > 4 {
                return None;
            }
        }
        let rex = code.get(at).copied().filter(|byte| byte & 0xf0 == 0x40).unwrap_or(0);
        at += usize::from(rex != 0);
        let wide = rex & 8 != 0;
        let opcode = *code.get(at)?;
        at += 1;
        if opcode == 0x0f {
            return Self::read_two_byte(code, at, rex, repeat);
        }
        if repeat {
            return None;
        }
        let low = (opcode & 7) | (rex & 1) << 3;
        // Everything from here on that has no operand byte.
        let (size, effect) = match opcode {
            0x50..=0x57 => (0, Effect::None),
            0x90 if rex == 0 => (0, Effect::None),
            0xb8..=0xbf if wide => (8, Effect::Write(low)),
            0xb8..=0xbf if !narrow => (4, Effect::Write(low)),
            0x78 => (1, Effect::JumpIfNegative),
            // Another condition: the way on is the one that is looked at.
            0x70..=0x7f => (1, Effect::None),
            _ => {
                let operand = Operand::read(code, at, rex)?;
                let (immediate, effect) = operand.effect(opcode, narrow, wide)?;
                return Some(Self { length: operand.end.checked_add(immediate)?, effect });
            }
        };
        Some(Self { length: at + size, effect })
    }

    fn read_two_byte(code: &[u8], at: usize, rex: u8, repeat: bool) -> Option<Self> {
        let opcode = *code.get(at)?;
        let at = at + 1;
        match opcode {
            0x88 => return Some(Self { length: at + 4, effect: Effect::JumpIfNegative }),
            0x80..=0x8f => return Some(Self { length: at + 4, effect: Effect::None }),
            _ => {}
        }
        let operand = Operand::read(code, at, rex)?;
        let effect = match opcode {
            0x7e if !repeat => Effect::Write(operand.memory_or_register),
            // `endbr64` and long forms of `nop`; moves between vector registers and memory, and clearing one.
            0x1e
            | 0x1f
            | 0x10..=0x13
            | 0x16
            | 0x17
            | 0x28
            | 0x29
            | 0x57
            | 0x6e
            | 0x6f
            | 0x7e
            | 0x7f
            | 0xd6
            | 0xef => Effect::None,
            0x40..=0x4f | 0xb6 | 0xb7 | 0xbe | 0xbf => Effect::Write(operand.register),
            0xaf => Effect::WriteAndFlags(operand.register),
            _ => return None,
        };
        Some(Self { length: operand.end, effect })
    }
}

/// The two operands that a ModRM byte names.
#[derive(Clone, Copy, Debug)]
struct Operand {
    /// The field that extends the opcode of some instructions.
    extension: u8,
    register: u8,
    /// [`NO_REGISTER`] for memory.
    memory_or_register: u8,
    /// Where the instruction goes on, or ends.
    end: usize,
}

impl Operand {
    fn read(code: &[u8], at: usize, rex: u8) -> Option<Self> {
        let modrm = *code.get(at)?;
        let (mode, extension, low) = (modrm >> 6, (modrm >> 3) & 7, modrm & 7);
        let mut end = at + 1;
        let mut base = low;
        if mode != 3 && low == 4 {
            base = code.get(end)? & 7;
            end += 1;
        }
        end += match mode {
            0 if base == 5 => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        };
        let memory_or_register = if mode == 3 { low | (rex & 1) << 3 } else { NO_REGISTER };
        Some(Self { extension, register: extension | (rex & 4) << 1, memory_or_register, end })
    }

    /// The bytes of the immediate operand that follows, and what the instruction does.
    fn effect(self, opcode: u8, narrow: bool, wide: bool) -> Option<(usize, Effect)> {
        let Self { extension, register, memory_or_register: other, end: _ } = self;
        let immediate = if narrow { 2 } else { 4 };
        let in_memory = other == NO_REGISTER;
        let between_registers = !in_memory && !narrow;
        Some(match (opcode, extension) {
            // test, cmp, and arithmetic with a byte in memory
            (0x85, _) if register == other && !narrow && !wide => (0, Effect::Test(register)),
            (0x38..=0x3b | 0x84 | 0x85, _) => (0, Effect::Flags),
            (0x80 | 0x83, 7) | (0xf6, 0) => (1, Effect::Flags),
            (0x80, _) if in_memory => (1, Effect::Flags),
            (0x81, 7) | (0xf7, 0) => (immediate, Effect::Flags),
            // add or and sub xor imul and shifts
            (0x01 | 0x09 | 0x21 | 0x29 | 0x31, _) => (0, Effect::WriteAndFlags(other)),
            (0x03 | 0x0b | 0x23 | 0x2b | 0x33, _) => (0, Effect::WriteAndFlags(register)),
            (0x83 | 0xc1, _) => (1, Effect::WriteAndFlags(other)),
            (0x81, _) => (immediate, Effect::WriteAndFlags(other)),
            (0x69, _) => (immediate, Effect::WriteAndFlags(register)),
            (0x6b, _) => (1, Effect::WriteAndFlags(register)),
            // mov, movsxd (which keeps the sign), lea
            (0x63 | 0x8b, _) if between_registers => (0, Effect::Copy { from: other, to: register }),
            (0x89, _) if between_registers => (0, Effect::Copy { from: register, to: other }),
            (0x63 | 0x8b | 0x8d, _) => (0, Effect::Write(register)),
            (0x89, _) => (0, Effect::Write(other)),
            (0xc7, 0) => (immediate, Effect::Write(other)),
            // Bytes: in memory only, as the second byte of a register would have the number of another
            // register.
            (0x88, _) if in_memory => (0, Effect::None),
            (0xc6, 0) if in_memory => (1, Effect::None),
            _ => return None,
        })
    }
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
