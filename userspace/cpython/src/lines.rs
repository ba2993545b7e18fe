//! Line tables: the line of an instruction. CPython has changed the table three times:
//! Objects/lnotab_notes.txt (3.8 to 3.10), Objects/locations.md (3.11 and later).

/// Kind of a code object's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineTable {
    /// 3.8 and 3.9, `co_lnotab`: pairs of bytes, how far the address and the line go on.
    Lnotab,
    /// 3.10, `co_linetable`: pairs of bytes, how long a range is and how far the line goes on before it
    /// (PEP 626).
    Lines,
    /// 3.11 and later, `co_linetable`: ranges with lines and columns (PEP 657).
    Locations,
}

/// Returns the line of the instruction at `offset` bytes from the first one, as CPython's `PyCode_Addr2Line`
/// finds it; `None` if the table says that the instruction has none, or does not reach so far. Right before
/// the first instruction, where a frame is that has not begun, it is the first line.
pub fn line_at(kind: LineTable, table: &[u8], first_line: u32, offset: i64) -> Option<u32> {
    /// Offset in a frame that has not begun: `f_lasti` and `prev_instr` are one instruction before the first.
    const NOT_BEGUN: i64 = -2;
    let Ok(offset) = u64::try_from(offset) else { return (offset >= NOT_BEGUN).then_some(first_line) };
    let line = match kind {
        LineTable::Lnotab => Some(lnotab(table, first_line, offset)),
        LineTable::Lines => lines(table, first_line, offset),
        LineTable::Locations => locations(table, first_line, offset),
    }?;
    u32::try_from(line).ok()
}

fn lnotab(table: &[u8], first_line: u32, offset: u64) -> i64 {
    let (mut address, mut line) = (0u64, i64::from(first_line));
    for [bytes, lines] in table.as_chunks::<2>().0 {
        address += u64::from(*bytes);
        if address > offset {
            break;
        }
        line += i64::from(lines.cast_signed());
    }
    line
}

fn lines(table: &[u8], first_line: u32, offset: u64) -> Option<i64> {
    /// Value in place of a distance: these instructions have no line.
    const NO_LINE: i8 = -128;
    let (mut end, mut line) = (0u64, i64::from(first_line));
    for [bytes, lines] in table.as_chunks::<2>().0 {
        end += u64::from(*bytes);
        let distance = lines.cast_signed();
        if distance != NO_LINE {
            line += i64::from(distance);
        }
        if offset < end {
            return (distance != NO_LINE).then_some(line);
        }
    }
    None
}

fn locations(table: &[u8], first_line: u32, offset: u64) -> Option<i64> {
    // Only the first byte of an entry has this bit.
    const FIRST: u8 = 0x80;
    let (mut end, mut line) = (0u64, i64::from(first_line));
    let mut rest = table;
    while let Some((first, tail)) = rest.split_first() {
        // The length counts instructions of two bytes.
        end += 2 * (u64::from(first & 7) + 1);
        let form = (first >> 3) & 15;
        let distance = match form {
            // No columns, and the long form: the distance is the first of the numbers that follow.
            13 | 14 => signed_number(tail),
            10..=12 => i64::from(form - 10),
            _ => 0,
        };
        line = line.saturating_add(distance);
        if offset < end {
            return (form != 15).then_some(line);
        }
        let next = tail.iter().position(|byte| byte & FIRST != 0).unwrap_or(tail.len());
        rest = tail.get(next..).unwrap_or_default();
    }
    None
}

/// Decodes a signed number: six bits to a byte, the lowest first; the seventh says that more follow. The
/// lowest bit of the number is its sign.
fn signed_number(bytes: &[u8]) -> i64 {
    let mut number = 0u64;
    // More than 32 bits is no line.
    for (place, byte) in bytes.iter().take(6).enumerate() {
        number |= u64::from(byte & 63) << (6 * place);
        if byte & 64 == 0 {
            break;
        }
    }
    let magnitude = (number >> 1).cast_signed();
    if number & 1 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Objects/lnotab_notes.txt: bytecode offsets 0, 6, 50, 350, 361 at lines 1, 2, 7, 207,
    /// 208.
    #[test]
    fn lnotab_as_in_cpythons_own_notes() {
        let table = [0, 1, 6, 1, 44, 5, 255, 0, 45, 127, 0, 73, 11, 1].map(|byte: u8| byte);
        let at = |offset| line_at(LineTable::Lnotab, &table, 0, offset).unwrap();
        for (offset, line) in
            [(0, 1), (5, 1), (6, 2), (49, 2), (50, 7), (349, 7), (350, 207), (361, 208), (9999, 208)]
        {
            assert_eq!(at(offset), line, "{offset}");
        }
        // A line that goes back, as in a call over several lines.
        assert_eq!(line_at(LineTable::Lnotab, &[4, 3, 4, 0xfe], 10, 8), Some(11));
        assert_eq!(line_at(LineTable::Lnotab, &[4, 3], 10, -1), Some(10));
        assert_eq!(
            line_at(LineTable::Lnotab, &[4, 0x80, 4], 10, 8),
            None,
            "before the first line there is none"
        );
    }

    /// From Objects/lnotab_notes.txt of 3.10: ranges of 6 bytes at line 1, 44 at 2, and some without a line.
    #[test]
    fn the_table_of_3_10_has_ranges_without_a_line() {
        let table = [6, 1, 44, 1, 2, 0x80, 254, 0, 46, 5];
        let at = |offset| line_at(LineTable::Lines, &table, 0, offset);
        for (offset, line) in
            [(0, Some(1)), (5, Some(1)), (6, Some(2)), (49, Some(2)), (50, None), (52, Some(2))]
        {
            assert_eq!(at(offset), line, "{offset}");
        }
        assert_eq!(at(306), Some(7));
        assert_eq!(at(352), None, "the table ends");
    }

    /// Forms by Objects/locations.md: short form (one more byte), one-line forms, no columns, long form,
    /// none.
    #[test]
    fn locations_of_every_form_are_read() {
        let table = [
            0x80,
            0x23, // short form 0, 1 instruction, the same line
            0x80 | (11 << 3) | 1,
            4,
            9, // one line on, 2 instructions
            0x80 | (13 << 3),
            0b100_0001,
            0b000_0001, // no columns: number 65, which is -32
            0x80 | (14 << 3) | 2,
            20,
            0,
            1,
            1,                // long form: 10 lines on, 3 instructions
            0x80 | (15 << 3), // no line
            0x80 | (12 << 3),
            1,
            2, // two lines on
        ];
        let at = |offset| line_at(LineTable::Locations, &table, 100, offset);
        let lines: Vec<Option<u32>> = (0..9).map(|instruction| at(2 * instruction)).collect();
        let (a, b, c) = (Some(101), Some(69), Some(79));
        assert_eq!(lines, [Some(100), a, a, b, c, c, c, None, Some(81)]);
        assert_eq!(at(18), None);
        assert_eq!(at(-2), Some(100));
        assert_eq!(at(-4), None, "an address of other code");
    }

    #[test]
    fn no_bytes_are_too_strange_for_it() {
        for kind in [LineTable::Lnotab, LineTable::Lines, LineTable::Locations] {
            for byte in 0..=255 {
                let _ = line_at(kind, &[byte; 7], u32::MAX, i64::MAX);
                let _ = line_at(kind, &[byte; 64], 0, 31);
            }
        }
    }
}
