//! Integers in bytes that were copied from NCCL's memory. Every processor that NCCL runs on is little-endian.

use serde::{Deserialize, Serialize};

use crate::layouts::Field;

/// Reads an unsigned integer of up to 8 bytes.
#[inline]
pub fn unsigned(bytes: &[u8]) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(word))
}

/// Reads a signed integer of 1 to 8 bytes.
pub fn signed(bytes: &[u8]) -> Option<i64> {
    let unused = 64u32.checked_sub(u32::try_from(bytes.len()).ok()?.checked_mul(8)?)?;
    let value = unsigned(bytes)?;
    if unused == 64 { None } else { Some((value << unused).cast_signed() >> unused) }
}

/// An integer or a pointer in a struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntField {
    at: usize,
    /// Bytes: 1, 2, 4 or 8.
    size: usize,
}

impl IntField {
    /// Returns the integer at a field; `None` if the field is no such integer.
    pub fn of(field: &Field) -> Option<Self> {
        Self::new(field.offset, field.size)
    }

    /// Describes `size` bytes that begin `offset` bytes behind the beginning of the struct.
    pub fn new(offset: u64, size: u64) -> Option<Self> {
        let size = usize::try_from(size).ok().filter(|size| matches!(size, 1 | 2 | 4 | 8))?;
        Some(Self { at: usize::try_from(offset).ok()?, size })
    }

    /// Returns the bytes from the beginning of the struct.
    pub fn offset(self) -> u64 {
        self.at as u64
    }

    pub fn size(self) -> usize {
        self.size
    }

    /// Reads the value in a copy of the struct.
    pub fn unsigned(self, copy: &[u8]) -> Option<u64> {
        copy.get(self.at..self.at.checked_add(self.size)?).and_then(unsigned)
    }

    /// Reads the value in a copy of the struct as a signed integer.
    pub fn signed(self, copy: &[u8]) -> Option<i64> {
        copy.get(self.at..self.at.checked_add(self.size)?).and_then(signed)
    }
}

/// A number in a struct, which may be a bit field.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct BitField {
    at: usize,
    size: usize,
    shift: u32,
    /// Bits of the field; 64: all of the number.
    width: u32,
}

impl BitField {
    /// Returns the number at a field. `base`: where the struct begins in the bytes that it is read from.
    pub fn at(field: &Field, base: u64) -> Option<Self> {
        let (shift, width) = field.bits.map_or((0, 64), |bits| (bits.shift, bits.width));
        Some(Self {
            at: usize::try_from(field.offset.checked_add(base)?).ok()?,
            size: usize::try_from(field.size).ok()?,
            shift,
            width,
        })
    }

    /// Returns the number's place in a copy of the struct that begins at byte `first` of the struct.
    pub fn in_copy_from(self, first: u64) -> Option<Self> {
        Some(Self { at: self.at.checked_sub(usize::try_from(first).ok()?)?, ..self })
    }

    /// Reads the value in a copy of the struct.
    pub fn of(self, copy: &[u8]) -> Option<u64> {
        let word = unsigned(copy.get(self.at..self.at.checked_add(self.size)?)?)?;
        let value = word.checked_shr(self.shift)?;
        Some(if self.width >= 64 { value } else { value & ((1 << self.width) - 1) })
    }

    /// Writes a value into a copy of the struct, and leaves the bits beside it as they are: for records that
    /// are made. `None` if the copy does not have the field.
    pub fn put(self, copy: &mut [u8], value: u64) -> Option<()> {
        let bytes = copy.get_mut(self.at..self.at.checked_add(self.size)?)?;
        let mask = if self.width >= 64 { u64::MAX } else { (1 << self.width) - 1 }.checked_shl(self.shift)?;
        let word = unsigned(bytes)? & !mask | value.checked_shl(self.shift)? & mask;
        bytes.iter_mut().zip(word.to_le_bytes()).for_each(|(to, from)| *to = from);
        Some(())
    }

    /// Reads the value as an `int`.
    #[expect(clippy::cast_possible_truncation, reason = "an `int` has these 32 bits")]
    pub fn int_of(self, copy: &[u8]) -> Option<i32> {
        Some((self.of(copy)? as u32).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_read_and_what_is_beside_it_stays() {
        let field = BitField { at: 1, size: 2, shift: 3, width: 5 };
        let mut copy = [0xff; 4];
        assert_eq!(field.put(&mut copy, 0b0_1010), Some(()));
        assert_eq!((field.of(&copy), copy), (Some(0b0_1010), [0xff, 0b0101_0111, 0xff, 0xff]));
        let whole = BitField { at: 0, size: 4, shift: 0, width: 64 };
        assert_eq!(whole.put(&mut copy, 7), Some(()));
        assert_eq!((whole.of(&copy), field.put(&mut copy[..2], 1)), (Some(7), None));
    }

    #[test]
    fn integers_of_every_size_keep_their_sign() {
        assert_eq!(signed(&[0xff]), Some(-1));
        assert_eq!(signed(&[0xff, 0xff, 0xff, 0xff]), Some(-1));
        assert_eq!(signed(&[0x7f, 0, 0, 0, 0, 0, 0, 0x80]), Some(i64::MIN + 0x7f));
        assert_eq!(unsigned(&[0xff, 0xff]), Some(0xffff));
        assert_eq!(signed(&[]), None);
        assert_eq!(unsigned(&[0; 9]), None);
    }
}
