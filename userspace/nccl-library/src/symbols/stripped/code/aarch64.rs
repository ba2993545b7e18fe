//! 64-bit Arm: every instruction has 4 bytes, and an address is made by two, which need not be neighbours.
//!
//! Arm Architecture Reference Manual for A-profile, C4.1.

const REGISTERS: usize = 32;
/// Registers that a call may change: x0 to x18, and the link register.
const LOST_IN_CALLS: [std::ops::Range<usize>; 2] = [0..19, 30..31];

/// Address that each register holds, as far as `adrp` and `add` tell.
#[derive(Debug)]
pub(in super::super) struct Pages([Option<u64>; REGISTERS]);

impl Default for Pages {
    fn default() -> Self {
        Self([None; REGISTERS])
    }
}

impl Pages {
    /// Visits `adr`, and `add` to the result of `adrp`, once or twice: compilers address constants from an
    /// anchor among them (`-fsection-anchors`), so that one address takes two additions.
    pub(super) fn address_loads(&mut self, address: u64, code: &[u8], mut visit: impl FnMut(u64, u64)) {
        for (at, word) in words(address, code) {
            let (target, first) = (register(word, 0), register(word, 5));
            if word & 0x9f00_0000 == 0x9000_0000 {
                // adrp: 21 bits of pages
                self.0[target] = Some((at & !0xfff).wrapping_add_signed(page_distance(word) << 12));
            } else if word & 0x9f00_0000 == 0x1000_0000 {
                let found = at.wrapping_add_signed(page_distance(word));
                visit(at, found);
                self.0[target] = Some(found);
            } else if word & 0xff80_0000 == 0x9100_0000 {
                // add x, x, #imm12, perhaps shifted by 12
                let shift = if word & (1 << 22) == 0 { 0 } else { 12 };
                let sum =
                    self.0[first].map(|known| known.wrapping_add(u64::from((word >> 10) & 0xfff) << shift));
                if let Some(sum) = sum {
                    visit(at, sum);
                }
                self.0[target] = sum;
            } else if is_call(word) || word & 0xffff_fc1f == 0xd63f_0000 {
                LOST_IN_CALLS.into_iter().flatten().for_each(|register| self.0[register] = None);
            } else {
                written(word).into_iter().flatten().for_each(|register| self.0[register] = None);
            }
        }
    }
}

/// Returns the registers that another instruction may write to; more than it does where the difference is not
/// worth telling (vector registers have the same numbers). C4.1, by bits 28 to 25.
fn written(word: u32) -> [Option<usize>; 3] {
    let (target, base, second) = (register(word, 0), register(word, 5), register(word, 10));
    let bit = |number: u32| word & (1 << number) != 0;
    match (word >> 25) & 0xf {
        // Branches write none, of system instructions `mrs` does.
        0b1010 | 0b1011 => [(word & 0xfff0_0000 == 0xd530_0000).then_some(target), None, None],
        // Loads and stores of two registers, and of one. Some move their base.
        0b0100 | 0b0110 | 0b1100 | 0b1110 => match word & 0x3a00_0000 {
            0x2800_0000 => {
                let is_load = bit(22);
                [is_load.then_some(target), is_load.then_some(second), bit(23).then_some(base)]
            }
            0x3800_0000 => {
                let is_load = word & (0b11 << 22) != 0;
                let moves = !bit(24) && !bit(21) && bit(10);
                [is_load.then_some(target), moves.then_some(base), None]
            }
            // Exclusive ones write a status too.
            _ => [Some(target), Some(second), Some(register(word, 16))],
        },
        _ => [Some(target), None, None],
    }
}

/// Finds the jumps `b`, `b.cond`, `cbz`, `cbnz`, `tbz` and `tbnz`: their addresses and targets.
pub(super) fn jumps(address: u64, code: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    words(address, code).filter_map(|(at, word)| {
        let distance = if word & 0xfc00_0000 == 0x1400_0000 {
            signed(word, 0, 26)
        } else if word & 0xff00_0010 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 {
            signed(word, 5, 19)
        } else if word & 0x7e00_0000 == 0x3600_0000 {
            signed(word, 5, 14)
        } else {
            return None;
        };
        Some((at, at.wrapping_add_signed(distance * 4)))
    })
}

/// Finds the targets of `bl`.
pub(super) fn calls(address: u64, code: &[u8]) -> impl Iterator<Item = u64> {
    words(address, code)
        .filter(|(_, word)| is_call(*word))
        .map(|(at, word)| at.wrapping_add_signed(signed(word, 0, 26) * 4))
}

fn is_call(word: u32) -> bool {
    word & 0xfc00_0000 == 0x9400_0000
}

/// Splits code into instructions and their addresses. Code begins at a multiple of 4, and so do the pieces
/// that it is read in.
fn words(address: u64, code: &[u8]) -> impl Iterator<Item = (u64, u32)> {
    (0..)
        .zip(code.as_chunks::<4>().0)
        .map(move |(index, bytes): (u64, _)| (address.wrapping_add(index * 4), u32::from_le_bytes(*bytes)))
}

fn register(word: u32, shift: u32) -> usize {
    usize::try_from((word >> shift) & 31).unwrap_or(0)
}

/// Extracts the signed number of `width` bits at `shift`.
fn signed(word: u32, shift: u32, width: u32) -> i64 {
    let unused = 32 - width;
    i64::from(((word >> shift) << unused).cast_signed() >> unused)
}

/// Extracts the distance of `adr` and `adrp`, whose low two bits stand apart.
fn page_distance(word: u32) -> i64 {
    (signed(word, 5, 19) << 2) | i64::from((word >> 29) & 3)
}

#[cfg(test)]
mod tests {
    use super::{Pages, calls, jumps};

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn loads(address: u64, words: &[u32]) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        Pages::default().address_loads(address, &code(words), |from, target| found.push((from, target)));
        found
    }

    #[test]
    fn two_instructions_make_an_address() {
        // adrp x1, +2 pages; nop; add x0, x1, #0x123
        assert_eq!(loads(0x5010, &[0xd000_0001, 0xd503_201f, 0x9104_8c20]), [(0x5018, 0x7123)]);
        // adrp x1, -1 page; add x1, x1, #8; add x1, x1, #8: the first may be an anchor
        assert_eq!(
            loads(0x5010, &[0xf0ff_ffe1, 0x9100_2021, 0x9100_2021]),
            [(0x5014, 0x4008), (0x5018, 0x4010)]
        );
        // adrp x0, 0; add x0, x0, #1, lsl #12
        assert_eq!(loads(0, &[0x9000_0000, 0x9140_0400]), [(4, 0x1000)]);
        // adrp x1, 0; what follows writes x1, or not; add x0, x1, #8. Read by llvm-mc.
        let writes = |word: u32| loads(0, &[0x9000_0001, word, 0x9100_2020]).is_empty();
        for (word, expected) in [
            (0xaa02_03e1, true),  // mov x1, x2
            (0xf940_0041, true),  // ldr x1, [x2]
            (0xf900_0041, false), // str x1, [x2]
            (0xf840_8422, true),  // ldr x2, [x1], #8
            (0xf800_8c22, true),  // str x2, [x1, #8]!
            (0xa940_0440, true),  // ldp x0, x1, [x2]
            (0xa900_0440, false), // stp x0, x1, [x2]
            (0xa8c1_0c22, true),  // ldp x2, x3, [x1], #16
            (0x5800_0041, true),  // ldr x1, +8
            (0xd53b_d041, true),  // mrs x1, tpidr_el0
            (0x5400_0041, false), // b.ne +8
            (0xb400_0041, false), // cbz x1, +8
            (0xeb01_005f, false), // cmp x2, x1
        ] {
            assert_eq!(writes(word), expected, "{word:#x}");
        }
        // adrp x1; bl; add: the call may have changed x1. adrp x19; bl; add: not x19
        assert_eq!(loads(0, &[0xd000_0001, 0x9400_0000, 0x9100_2021]), []);
        assert_eq!(loads(0, &[0xd000_0013, 0x9400_0000, 0x9100_2260]), [(8, 0x2008)]);
        // adr x0, +4
        assert_eq!(loads(0x100, &[0x1000_0020]), [(0x100, 0x104)]);
        assert_eq!(loads(0, &[0x9100_2021]), []);
    }

    #[test]
    fn jumps_and_calls() {
        // b +8; b.lt -4; cbz x0, +4; tbnz w4, #31, +208; bl -8
        let words = code(&[0x1400_0002, 0x54ff_ffeb, 0xb400_0020, 0x37f8_0684, 0x97ff_fffe]);
        let found: Vec<_> = jumps(0x1000, &words).collect();
        assert_eq!(found, [(0x1000, 0x1008), (0x1004, 0x1000), (0x1008, 0x100c), (0x100c, 0x10dc)]);
        assert_eq!(calls(0x1000, &words).collect::<Vec<_>>(), [0x1008]);
    }
}
