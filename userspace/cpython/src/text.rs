//! Python's strings and bytes.

use crate::{Offsets, Unknown, memory::Reader};

/// Most characters of a file's or a function's name; a longer one is not read.
const MAX_CHARACTERS: u64 = 4096;
/// Most bytes of a line table; a module of 100,000 lines has fewer.
const MAX_BYTES: u64 = 1 << 20;

/// Flags of `state` behind `kind`, which is the characters' size.
const COMPACT: u32 = 1 << 3;
const ASCII: u32 = 1 << 4;

/// Reads the string object at `address`. Lone surrogates, which no encoding knows, become U+FFFD.
pub(crate) fn string(reader: &Reader<'_>, offsets: &Offsets, address: u64) -> Result<String, Unknown> {
    let text = &offsets.text;
    let head = reader.fields(address, &[text.length, text.state])?;
    let length = head.u64(text.length);
    if length > MAX_CHARACTERS {
        return Err(Unknown::TooMuch("a name is longer than 4,096 characters"));
    }
    let state = head.i32(text.state).cast_unsigned() >> offsets.text_kind_shift();
    let width = match state & 0b111 {
        width @ (1 | 2 | 4) => u64::from(width),
        _ => return Err(Unknown::Contradiction("a name is no string")),
    };
    let data = if state & COMPACT == 0 {
        // A string of a subclass: a pointer to its characters follows.
        reader.u64(address, text.compact_data)?
    } else {
        let offset = if state & ASCII == 0 { text.compact_data } else { text.ascii_data };
        crate::memory::add(address, offset)?
    };
    let bytes = reader.bytes(data, usize::try_from(length * width).unwrap_or(0))?;
    Ok(match width {
        1 => bytes.iter().map(|byte| char::from(*byte)).collect(),
        2 => {
            let units = bytes.as_chunks::<2>().0.iter();
            characters(units.map(|unit| u32::from(u16::from_le_bytes(*unit))))
        }
        _ => characters(bytes.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit))),
    })
}

fn characters(units: impl Iterator<Item = u32>) -> String {
    units.map(|unit| char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// Reads the contents of the bytes object at `address`.
pub(crate) fn bytes(reader: &Reader<'_>, offsets: &Offsets, address: u64) -> Result<Vec<u8>, Unknown> {
    let length = reader.u64(address, offsets.bytes.length)?;
    if length > MAX_BYTES {
        return Err(Unknown::TooMuch("a line table is longer than 1 MiB"));
    }
    reader.bytes(crate::memory::add(address, offsets.bytes.data)?, usize::try_from(length).unwrap_or(0))
}
