//! The filter in front of a library's exported symbols, `.gnu.hash`: whether a name can be among them, in two
//! small reads.
//!
//! Format: the dynamic linker's (glibc, elf/dl-lookup.c); no document of a standard has it.

use object::elf;

use super::{Budget, Error, Image};

/// Bytes of the header: number of buckets, first symbol, words of the filter, shift.
const HEADER: u64 = 16;

/// Tells whether the library can export `name`: false is certain, true has to be looked up in its symbol
/// table. True as well where there is no filter.
pub fn may_export(image: &Image, name: &str, budget: &mut Budget) -> Result<bool, Error> {
    let Some(section) = image.sections().iter().find(|section| section.kind == elf::SHT_GNU_HASH) else {
        return Ok(true);
    };
    if section.size < HEADER {
        return Ok(true);
    }
    let header = image.section_range(section, 0, HEADER, budget)?;
    let [_, _, words, shift] = [0, 1, 2, 3].map(|index| number(&header, 4 * index));
    let hash = elf::gnu_hash(name.as_bytes());
    let Some(index) = (hash / u64::BITS).checked_rem(words) else { return Ok(true) };
    let Some(second) = hash.checked_shr(shift) else { return Ok(true) };
    let word = image.section_range(section, HEADER + 8 * u64::from(index), 8, budget)?;
    let word = u64::from(number(&word, 0)) | u64::from(number(&word, 4)) << 32;
    Ok([hash, second].iter().all(|hash| word >> (hash % u64::BITS) & 1 == 1))
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
