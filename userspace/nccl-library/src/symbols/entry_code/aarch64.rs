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
        let word = u32::from_le_bytes(*word);
        let register = |shift: u32| usize::try_from((word >> shift) & 31).unwrap_or(0);
        let target = register(0);
        match EFFECTS.iter().find(|(mask, bits, _)| word & mask == *bits)?.2 {
            Effect::None => {}
            Effect::SignTest => return origin[target],
            Effect::Compare => flags = origin[register(5)],
            Effect::Flags => flags = None,
            Effect::BranchIfLess => return flags,
            Effect::Write => origin[target] = None,
            Effect::Copy(from) => origin[target] = origin[register(from)],
            Effect::Unknown => return None,
        }
    }
    None
}

/// Effect of an instruction, as far as it matters here.
#[derive(Clone, Copy)]
enum Effect {
    None,
    /// Branch by bit 31 of the target register.
    SignTest,
    /// Comparison of the first operand with 0, 32 bits.
    Compare,
    /// Flags set by something else.
    Flags,
    BranchIfLess,
    /// Something new in the target register.
    Write,
    /// Copy into the target register from the one whose number begins at that bit.
    Copy(u32),
    Unknown,
}

/// Instructions that are understood: bits that are looked at, their values, the effect. The first that fits
/// counts.
const EFFECTS: [(u32, u32, Effect); 26] = [
    // tbz and tbnz of bit 31; of another bit: the way on is followed.
    (0xfef8_0000, 0x36f8_0000, Effect::SignTest),
    (0x7e00_0000, 0x3600_0000, Effect::None),
    // cmp w, #0; another cmp
    (0xffff_fc1f, 0x7100_001f, Effect::Compare),
    (0x7f00_001f, 0x7100_001f, Effect::Flags),
    (0x7f20_001f, 0x6b00_001f, Effect::Flags),
    // b.mi and b.pl; b.ge and b.lt; b.cond
    (0xff00_001e, 0x5400_0004, Effect::BranchIfLess),
    (0xff00_001e, 0x5400_000a, Effect::BranchIfLess),
    (0xff00_0010, 0x5400_0000, Effect::None),
    // cbz, cbnz
    (0x7e00_0000, 0x3400_0000, Effect::None),
    // mov to or from sp; add, sub with an immediate
    (0xffff_fc00, 0x9100_0000, Effect::Copy(5)),
    (0x3f00_0000, 0x1100_0000, Effect::Write),
    // mov; sxtw, which keeps the sign
    (0x7fe0_ffe0, 0x2a00_03e0, Effect::Copy(16)),
    (0xffff_fc00, 0x9340_7c00, Effect::Copy(5)),
    // adr, adrp; movz, movn, movk
    (0x1f00_0000, 0x1000_0000, Effect::Write),
    (0x1f80_0000, 0x1280_0000, Effect::Write),
    // stp, with any addressing; ldp
    (0x7e40_0000, 0x2c00_0000, Effect::None),
    (0x7e40_0000, 0x2800_0000, Effect::None),
    (0x3a40_0000, 0x2840_0000, Effect::Unknown),
    // str with an unsigned offset
    (0x3f40_0000, 0x3d00_0000, Effect::None),
    (0x3fc0_0000, 0x3900_0000, Effect::None),
    // ldr with an unsigned offset or a register
    (0x3fc0_0000, 0x3940_0000, Effect::Write),
    (0x3fe0_0c00, 0x3860_0800, Effect::Write),
    // str with a signed offset, before or after
    (0x3fe0_0000, 0x3800_0000, Effect::None),
    // paciasp, nop, bti
    (0xffff_ffff, 0xd503_233f, Effect::None),
    (0xffff_ffff, 0xd503_201f, Effect::None),
    (0xffff_ff3f, 0xd503_241f, Effect::None),
];

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
