//! x86-64: instructions found by their bytes.
//!
//! Instructions have no fixed length, so a pattern may match in the middle of one. A match counts only if its
//! 32-bit displacement leads to one of few addresses, which chance does not do often; and if it does, there
//! are two answers instead of one, and none is used.

/// Finds `lea reg, [rip + disp32]`: the addresses of the instruction and of what it refers to.
pub(super) fn address_loads(address: u64, code: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    memchr::memchr_iter(0x8d, code).filter_map(move |at| {
        // REX.W with or without REX.R; mod 00, r/m 101.
        let rex = *code.get(at.checked_sub(1)?)?;
        let modrm = *code.get(at + 1)?;
        if rex & 0xfb != 0x48 || modrm & 0xc7 != 0x05 {
            return None;
        }
        let target = relative(address, code, at + 2)?;
        Some((address.wrapping_add(at as u64).wrapping_sub(1), target))
    })
}

/// Finds `jmp rel32` and `jcc rel32`: the addresses of the displacement and of the target.
pub(super) fn jumps(address: u64, code: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    memchr::memchr2_iter(0xe9, 0x0f, code).filter_map(move |at| {
        let displacement = match *code.get(at)? {
            0xe9 => at + 1,
            0x0f if code.get(at + 1)? & 0xf0 == 0x80 => at + 2,
            _ => return None,
        };
        Some((address.wrapping_add(displacement as u64), relative(address, code, displacement)?))
    })
}

/// Finds the targets of `call rel32`.
pub(super) fn calls(address: u64, code: &[u8]) -> impl Iterator<Item = u64> {
    memchr::memchr_iter(0xe8, code).filter_map(move |at| relative(address, code, at + 1))
}

/// Returns the target of the 32-bit displacement at `at`, which is counted from the byte after it.
fn relative(address: u64, code: &[u8], at: usize) -> Option<u64> {
    let bytes = code.get(at..at.checked_add(4)?)?;
    let displacement = i32::from_le_bytes(bytes.try_into().ok()?);
    let next = address.wrapping_add(at as u64).wrapping_add(4);
    Some(next.wrapping_add_signed(i64::from(displacement)))
}

#[cfg(test)]
mod tests {
    use super::{address_loads, calls, jumps};

    #[test]
    fn patterns() {
        // lea rsi, [rip+0x10]; lea r9, [rip-8]; lea eax, [rip+0] (no REX.W); lea rax, [rbx]
        let code = [
            0x48, 0x8d, 0x35, 0x10, 0, 0, 0, 0x4c, 0x8d, 0x0d, 0xf8, 0xff, 0xff, 0xff, 0x8d, 0x05, 0, 0, 0,
            0, 0x48, 0x8d, 0x03,
        ];
        let found: Vec<_> = address_loads(0x1000, &code).collect();
        assert_eq!(found, [(0x1000, 0x1017), (0x1007, 0x1006)]);
        let code = [0xe8, 0xfb, 0xff, 0xff, 0xff, 0x0f, 0x88, 1, 0, 0, 0, 0xe9, 0, 0, 0, 0x80, 0xe9, 0];
        assert_eq!(calls(0, &code).collect::<Vec<_>>(), [0]);
        let found: Vec<_> = jumps(0, &code).collect();
        assert_eq!(found, [(7, 12), (12, 16u64.wrapping_sub(1 << 31))]);
    }
}
