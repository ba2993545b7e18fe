//! Size of a table of abbreviations, in the file and in memory, computed before it is parsed.
//!
//! Tables state no length, and those of a hostile file may overlap: then every byte is the beginning of a
//! table, and each table is held. An abbreviation of five bytes becomes a structure of more than a hundred,
//! so a file of a megabyte can stand for gigabytes.

use gimli::{Abbreviation, AttributeSpecification, EndianSlice, LittleEndian, Reader as _, constants as dw};

use super::limits;

/// Specifications that an abbreviation holds without memory of its own: gimli's `MAX_ATTRIBUTES_INLINE`
/// (src/read/abbrev.rs of 0.34).
const INLINE: usize = 5;
/// Memory of a collection that grew, in multiples of its contents: a vector has twice as much at most, a
/// tree less.
const GROWN: usize = 2;

/// Size of a table that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableSize {
    /// Bytes in the file.
    pub(super) bytes: usize,
    /// Most bytes of memory once the table is parsed.
    pub(super) memory: usize,
}

/// Returns the size of the table that begins here.
///
/// # Errors
/// If the table does not end before the bytes do, or is larger than [`limits::ABBREVIATION_BYTES`].
pub(super) fn size(bytes: &[u8]) -> gimli::Result<TableSize> {
    let all = bytes.get(..limits::ABBREVIATION_BYTES).unwrap_or(bytes);
    let mut rest = EndianSlice::new(all, LittleEndian);
    let mut memory = 0_usize;
    loop {
        // The last table of a section need not say that it ends.
        let is_at_end = rest.is_empty() && all.len() == bytes.len();
        if is_at_end || rest.read_uleb128()? == 0 {
            break;
        }
        let (_tag, _has_children) = (rest.read_uleb128()?, rest.read_u8()?);
        let mut specifications = 0_usize;
        loop {
            let (name, form) = (rest.read_uleb128()?, rest.read_uleb128()?);
            if (name, form) == (0, 0) {
                break;
            }
            if form == u64::from(dw::DW_FORM_implicit_const.0) {
                rest.read_sleb128()?;
            }
            specifications += 1;
        }
        let of_its_own = if specifications > INLINE { specifications } else { 0 };
        let taken = size_of::<Abbreviation>() + of_its_own * size_of::<AttributeSpecification>();
        memory = memory.saturating_add(GROWN * taken);
    }
    Ok(TableSize { bytes: all.len() - rest.len(), memory })
}

#[cfg(test)]
mod tests {
    use gimli::{DebugAbbrev, DebugAbbrevOffset};

    use super::*;

    /// Table of two abbreviations, the second with an implicit constant, and bytes that are no part of it.
    const TABLE: [u8; 18] = [1, 0x11, 1, 0x03, 0x08, 0, 0, 2, 0x34, 0, 0x1c, 0x21, 0x7f, 0, 0, 0, 0xff, 0xff];

    #[test]
    fn it_is_as_long_as_its_parser_finds_it() {
        let size = super::size(&TABLE).unwrap();
        assert_eq!(size.bytes, 16);
        assert!(size.memory >= 2 * size_of::<Abbreviation>());
        let parsed = |length: usize| {
            DebugAbbrev::new(&TABLE[..length], LittleEndian).abbreviations(DebugAbbrevOffset(0))
        };
        assert!(parsed(size.bytes).is_ok() && parsed(size.bytes - 2).is_err());
    }

    #[test]
    fn one_that_does_not_end_is_none() {
        // A table may end with its section after no abbreviation, after one, and after both.
        for length in 0..16 {
            let may_end = [0, 7, 15].contains(&length);
            assert_eq!(super::size(&TABLE[..length]).is_ok(), may_end, "{length}");
        }
        assert!(super::size(&vec![1; 2 * limits::ABBREVIATION_BYTES]).is_err());
    }

    #[test]
    fn many_specifications_are_counted() {
        let many: Vec<u8> = [&[1, 0x11, 0][..], &[0x03, 0x08].repeat(1000), &[0, 0, 0]].concat();
        assert!(super::size(&many).unwrap().memory >= 1000 * size_of::<AttributeSpecification>());
    }
}
