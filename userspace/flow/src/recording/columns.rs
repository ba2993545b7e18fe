//! Columns: the values that one place has in one record after the other; and the integers of variable length
//! that they consist of: LEB128, and its zigzag form for signed differences (as in Protocol Buffers and
//! DWARF).

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

/// Form of a column of equal values: that value.
const CONSTANT: u8 = 0;
/// Form of a column whose values grow by the same difference each time: first value, difference.
const STEPS: u8 = 1;
/// Form of any column: the difference of each value from the one before it, of the first from 0.
const DIFFERENCES: u8 = 2;
/// Form of a column of at most 256 different values: their number, each as its difference from the one before
/// it, and a byte for each row.
const DICTIONARY: u8 = 3;

/// Different values that a dictionary can have.
const MAX_DICTIONARY: usize = 256;

/// Appends a column of at least one value.
pub(super) fn encode(bytes: &mut Vec<u8>, values: &[u64]) {
    let [first, rest @ ..] = values else { return };
    let step = rest.first().map_or(0, |second| second.wrapping_sub(*first));
    let mut before = *first;
    let is_even = rest.iter().all(|value| {
        let difference = value.wrapping_sub(before);
        before = *value;
        difference == step
    });
    if is_even {
        bytes.push(if step == 0 { CONSTANT } else { STEPS });
        push(bytes, *first);
        if step != 0 {
            push(bytes, zigzag(step));
        }
    } else if let Some(dictionary) = Dictionary::of(values) {
        bytes.push(DICTIONARY);
        push(bytes, dictionary.values.len() as u64);
        push_differences(bytes, &dictionary.values);
        bytes.extend_from_slice(&dictionary.rows);
    } else {
        bytes.push(DIFFERENCES);
        push_differences(bytes, values);
    }
}

/// Reads a column of `rows` values into `values`; `None` if the bytes are no column.
pub(super) fn decode(input: &mut Input<'_>, rows: usize, values: &mut Vec<u64>) -> Option<()> {
    values.clear();
    match input.byte()? {
        CONSTANT => values.resize(rows, input.varint()?),
        STEPS => {
            let (mut value, step) = (input.varint()?, unzigzag(input.varint()?));
            for _ in 0..rows {
                values.push(value);
                value = value.wrapping_add(step);
            }
        }
        DIFFERENCES => read_differences(input, rows, values)?,
        DICTIONARY => {
            let mut known = Vec::new();
            let count = input.count(MAX_DICTIONARY)?;
            read_differences(input, count, &mut known)?;
            for row in input.take(rows)? {
                values.push(*known.get(usize::from(*row))?);
            }
        }
        _ => return None,
    }
    Some(())
}

fn push_differences(bytes: &mut Vec<u8>, values: &[u64]) {
    let mut before = 0u64;
    for value in values {
        push(bytes, zigzag(value.wrapping_sub(before)));
        before = *value;
    }
}

fn read_differences(input: &mut Input<'_>, rows: usize, values: &mut Vec<u64>) -> Option<()> {
    let mut value = 0u64;
    for _ in 0..rows {
        value = value.wrapping_add(unzigzag(input.varint()?));
        values.push(value);
    }
    Some(())
}

/// Slots of the hash table in which a dictionary looks values up: four per value, so that few collide.
const SLOTS: usize = 4 * MAX_DICTIONARY;

/// The different values of a column, in the order in which they come, and for each row the number of its
/// value.
struct Dictionary {
    values: Vec<u64>,
    rows: Vec<u8>,
}

impl Dictionary {
    /// Makes the dictionary of a column; `None` where it has too many values, or a dictionary would not be
    /// smaller.
    fn of(values: &[u64]) -> Option<Self> {
        let most = MAX_DICTIONARY.min(values.len() / 2);
        // Each slot has the number of a value plus 1; 0: the slot is free.
        let mut slots = [0u16; SLOTS];
        let mut dictionary = Self { values: Vec::new(), rows: Vec::with_capacity(values.len()) };
        let mut last: Option<(u64, u8)> = None;
        for &value in values {
            let number = match last {
                Some((same, number)) if same == value => number,
                _ => dictionary.number_of(value, &mut slots, most)?,
            };
            last = Some((value, number));
            dictionary.rows.push(number);
        }
        Some(dictionary)
    }

    fn number_of(&mut self, value: u64, slots: &mut [u16; SLOTS], most: usize) -> Option<u8> {
        // Fibonacci hashing: the high bits of the product depend on all bits of the value.
        let hash = usize::try_from(value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54).ok()?;
        for probe in 0..SLOTS {
            let slot = slots.get_mut((hash + probe) % SLOTS)?;
            match slot.checked_sub(1) {
                None if self.values.len() < most => {
                    *slot = u16::try_from(self.values.len() + 1).ok()?;
                    self.values.push(value);
                    return u8::try_from(*slot - 1).ok();
                }
                None => return None,
                Some(number) if self.values.get(usize::from(number)) == Some(&value) => {
                    return u8::try_from(number).ok();
                }
                Some(_) => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(values: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&mut bytes, values);
        let (mut input, mut decoded) = (Input(&bytes), Vec::new());
        decode(&mut input, values.len(), &mut decoded).unwrap();
        assert_eq!((decoded.as_slice(), input.0.len()), (values, 0));
        bytes
    }

    #[test]
    fn a_column_comes_back_and_takes_the_form_that_suits_it() {
        assert_eq!(encoded(&[7; 1000]), [CONSTANT, 7]);
        assert_eq!(encoded(&[3]), [CONSTANT, 3]);
        assert_eq!(
            encoded(&(0..1000).map(|n| 10 - n * 2).map(i64::cast_unsigned).collect::<Vec<_>>()).len(),
            3
        );
        let some: Vec<u64> = (0..1000).map(|n| u64::MAX - n % 5).collect();
        assert_eq!(encoded(&some).first(), Some(&DICTIONARY));
        let many: Vec<u64> = (0..1000).map(|n: u64| (n * n).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        assert_eq!(encoded(&many).first(), Some(&DIFFERENCES));
        encoded(&[0, u64::MAX, 0, 1]);
    }

    #[test]
    fn bytes_that_are_no_column_are_refused() {
        let mut values = Vec::new();
        for bytes in [
            &[][..],
            &[9, 0],
            &[CONSTANT],
            &[STEPS, 1],
            &[DIFFERENCES, 2, 2],
            &[DICTIONARY, 1, 2, 0, 0],
            &[DICTIONARY, 1, 2, 0, 1, 0],
            &[DICTIONARY, 0x81, 0x02, 0],
        ] {
            assert_eq!(decode(&mut Input(bytes), 3, &mut values), None, "{bytes:?}");
        }
    }

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
