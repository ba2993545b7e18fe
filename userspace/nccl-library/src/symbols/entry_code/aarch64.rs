//! 64-bit Arm: `tbnz w, #31`, or `cmp w, #0` and a branch if less.
//!
//! Arm Architecture Reference Manual for A-profile, C4.1: only the encodings that compilers use at the
//! beginning of a function.

/// Most instructions before the test; more are no beginning of a function.
const MAX_INSTRUCTIONS: usize = 32;
/// Number of argument registers: x0 to x7.
const ARGUMENTS: usize = 8;
const REGISTERS: usize = 32;

pub(super) fn first_sign_test(code: &[u8]) -> Option<usize> {
    // The parameter that each register holds, and the one that the flags were set by.
    let mut origin: [Option<usize>; REGISTERS] =
        std::array::from_fn(|register| (register < ARGUMENTS).then_some(register));
    let mut flags = None;
    for word in code.as_chunks().0.iter().take(MAX_INSTRUCTIONS) {
        match Effect::of(u32::from_le_bytes(*word))? {
            Effect::None => {}
            Effect::SignTest(register) => return origin[register],
            Effect::Compare(register) => flags = origin[register],
            Effect::Flags => flags = None,
            Effect::BranchIfLess => return flags,
            Effect::Write(register) => origin[register] = None,
            Effect::Copy { from, to } => origin[to] = origin[from],
        }
    }
    None
}

/// Effect of an instruction, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    None,
    /// Branch by bit 31.
    SignTest(usize),
    /// Comparison with 0, 32 bits.
    Compare(usize),
    /// Flags set by something else.
    Flags,
    BranchIfLess,
    Write(usize),
    Copy {
        from: usize,
        to: usize,
    },
}

impl Effect {
    fn of(word: u32) -> Option<Self> {
        let register = |shift: u32| usize::try_from((word >> shift) & 31).unwrap_or(0);
        let (target, first, second) = (register(0), register(5), register(16));
        let is = |mask: u32, value: u32| word & mask == value;
        Some(if is(0xfef8_0000, 0x36f8_0000) {
            // tbz and tbnz of bit 31
            Self::SignTest(target)
        } else if is(0x7e00_0000, 0x3600_0000) {
            // Of another bit: the way on is followed.
            Self::None
        } else if is(0xffff_fc1f, 0x7100_001f) {
            // cmp w, #0
            Self::Compare(first)
        } else if is(0x7f00_001f, 0x7100_001f) || is(0x7f20_001f, 0x6b00_001f) {
            // another cmp
            Self::Flags
        } else if is(0xff00_0010, 0x5400_0000) {
            match word & 15 {
                // mi, pl, ge, lt
                4 | 5 | 10 | 11 => Self::BranchIfLess,
                _ => Self::None,
            }
        } else if is(0x7e00_0000, 0x3400_0000) {
            // cbz, cbnz
            Self::None
        } else if is(0xffff_fc00, 0x9100_0000) {
            // mov to or from sp
            Self::Copy { from: first, to: target }
        } else if is(0x1f00_0000, 0x1100_0000) && !is(0x2000_0000, 0x2000_0000) {
            // add, sub with an immediate
            Self::Write(target)
        } else if is(0x7fe0_ffe0, 0x2a00_03e0) {
            // mov
            Self::Copy { from: second, to: target }
        } else if is(0xffff_fc00, 0x9340_7c00) {
            // sxtw, which keeps the sign
            Self::Copy { from: first, to: target }
        } else if is(0x1f00_0000, 0x1000_0000) || is(0x1f80_0000, 0x1280_0000) {
            // adr, adrp; movz, movn, movk
            Self::Write(target)
        } else if is(0x7e40_0000, 0x2c00_0000) || is(0x7e40_0000, 0x2800_0000) {
            // stp, with any addressing
            Self::None
        } else if is(0x3a40_0000, 0x2840_0000) {
            return None;
        } else if is(0x3f40_0000, 0x3d00_0000) || is(0x3fc0_0000, 0x3900_0000) {
            // str with an unsigned offset
            Self::None
        } else if is(0x3fc0_0000, 0x3940_0000) || is(0x3fe0_0c00, 0x3860_0800) {
            // ldr with an unsigned offset or a register
            Self::Write(target)
        } else if is(0x3fe0_0000, 0x3800_0000) {
            // str with a signed offset, before or after
            Self::None
        } else if word == 0xd503_233f || word == 0xd503_201f || is(0xffff_ff3f, 0xd503_241f) {
            // paciasp, nop, bti
            Self::None
        } else {
            return None;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::first_sign_test;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn official_library() {
        // 2.28.9: sub sp, sp, #48; stp x29, x30, [sp, #16]; add x29, sp, #16; str x19, [sp, #32]; tbnz w4,
        // #31
        let words = [0xd100_c3ff, 0xa901_7bfd, 0x9100_43fd, 0xf900_13f3, 0x37f8_0684];
        assert_eq!(first_sign_test(&code(&words)), Some(4));
    }

    #[test]
    fn copies_are_followed_and_overwritten_registers_forgotten() {
        // mov w9, w3; tbnz w9, #31
        assert_eq!(first_sign_test(&code(&[0x2a03_03e9, 0x37f8_0009])), Some(3));
        // sxtw x9, w2; cmp w9, #0; b.lt
        assert_eq!(first_sign_test(&code(&[0x9340_7c49, 0x7100_013f, 0x5400_000b])), Some(2));
        // ldr w3, [x0]; tbnz w3, #31
        assert_eq!(first_sign_test(&code(&[0xb940_0003, 0x37f8_0003])), None);
        // cmp w3, #0; cmp w4, #1; b.lt
        assert_eq!(first_sign_test(&code(&[0x7100_007f, 0x7100_049f, 0x5400_000b])), None);
    }

    #[test]
    fn what_is_not_understood_is_not_known() {
        // ret; bl; tbnz x3, #63; nothing; no test at all
        for words in
            [&[0xd65f_03c0][..], &[0x9400_0000, 0x37f8_0003], &[0xb7f8_0003], &[], &[0xd503_201f; 100]]
        {
            assert_eq!(first_sign_test(&code(words)), None, "{words:x?}");
        }
    }
}
