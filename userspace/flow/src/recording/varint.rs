//! Integers of variable length: LEB128, and its zigzag form for signed differences (as in Protocol Buffers
//! and DWARF).

/// Appends an integer in 1 to 10 bytes.
pub(super) fn push(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        #[expect(clippy::cast_possible_truncation, reason = "the low seven bits are what is stored")]
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    #[expect(clippy::cast_possible_truncation, reason = "less than 128")]
    bytes.push(value as u8);
}

/// Turns a wrapping difference into an integer that is small if the difference is, whatever its sign.
pub(super) fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ (difference.cast_signed() >> 63).cast_unsigned()
}

/// Returns the difference that [`zigzag`] was given.
pub(super) fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

/// Bytes that are read from their beginning. Every read says whether there were enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    /// Takes the next `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// Takes the next byte.
    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    /// Reads an integer as [`push`] stores it.
    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// Reads an integer as a length or a count; `None` if it is larger than `limit`.
    pub(super) fn count(&mut self, limit: usize) -> Option<usize> {
        usize::try_from(self.varint()?).ok().filter(|count| *count <= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_length_come_back() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                push(&mut bytes, value);
                assert_eq!(bytes.len(), (64 - value.leading_zeros() as usize).div_ceil(7).max(1));
                let mut input = Input(&bytes);
                assert_eq!((input.varint(), input.0.len()), (Some(value), 0));
                assert_eq!(Input(&bytes[..bytes.len() - 1]).varint(), None);
                assert_eq!(unzigzag(zigzag(value)), value);
            }
        }
        assert_eq!([0, 1, 1u64.wrapping_neg(), 2].map(zigzag), [0, 2, 1, 4]);
        assert_eq!(Input(&[0xff; 11]).varint(), None);
    }
}
