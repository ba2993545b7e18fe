//! A record as bytes: its header checked, its parts found.

use std::fmt;

use ncclflow_common::RecordHeader;

use super::{bytes_of, signed, unsigned};
use crate::probe::Span;

/// Why a record's bytes are not what its probe sends. Counted and reported, never ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Fewer bytes than the header states.
    Short { have: usize, want: usize },
    /// A cookie that this session gave to no probe.
    UnknownProbe(u16),
    /// A number that is no member of the library's enum, or out of its range.
    UnknownValue { what: &'static str, value: i64 },
    /// Something could not be read from the target's memory that the event makes no sense without.
    Unreadable(&'static str),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { have, want } => write!(f, "a record of {have} bytes that should have {want}"),
            Self::UnknownProbe(cookie) => {
                write!(f, "a record of probe {cookie}, which this session does not have")
            }
            Self::UnknownValue { what, value } => {
                write!(f, "a {what} that the library's debug information does not know: {value}")
            }
            Self::Unreadable(what) => write!(f, "the target's memory could not be read for {what}"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// A record with a sound header.
#[derive(Clone, Copy, Debug)]
pub struct RecordView<'a> {
    pub header: RecordHeader,
    bytes: &'a [u8],
}

impl<'a> RecordView<'a> {
    /// Checks the header of the bytes of one ring buffer item.
    pub fn new(item: &'a [u8]) -> Result<Self, DecodeError> {
        let header_len = size_of::<RecordHeader>();
        let short = |want| DecodeError::Short { have: item.len(), want };
        let word = |at: usize, len: usize| item.get(at..at + len).and_then(unsigned).ok_or(short(header_len));
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let header = RecordHeader {
            len: u16::try_from(word(0, 2)?).unwrap_or(u16::MAX),
            probe: u16::try_from(word(2, 2)?).unwrap_or(u16::MAX),
            cpu: narrow(word(4, 4)?),
            hit: word(8, 8)?,
            ts_ns: word(16, 8)?,
            tgid: narrow(word(24, 4)?),
            tid: narrow(word(28, 4)?),
            faults: word(32, 8)?,
        };
        let want = usize::from(header.len).max(header_len);
        let bytes = item.get(..want).ok_or(short(want))?;
        Ok(Self { header, bytes })
    }

    /// The bytes that a plan put at `span`, unless a read that they rest on failed.
    pub fn bytes(&self, span: &Span) -> Result<&'a [u8], DecodeError> {
        if self.header.faults & span.rests_on != 0 {
            return Err(DecodeError::Unreadable("a value"));
        }
        bytes_of(self.bytes, *span).ok_or(DecodeError::Short {
            have: self.bytes.len(),
            want: usize::from(span.at) + usize::from(span.len),
        })
    }

    /// The whole of `span` as an unsigned integer.
    pub fn unsigned(&self, span: &Span) -> Result<u64, DecodeError> {
        let bytes = self.bytes(span)?;
        unsigned(bytes).ok_or(DecodeError::Short { have: bytes.len(), want: 8 })
    }

    /// The whole of `span` as a signed integer.
    pub fn signed(&self, span: &Span) -> Result<i64, DecodeError> {
        let bytes = self.bytes(span)?;
        signed(bytes).ok_or(DecodeError::Short { have: bytes.len(), want: 8 })
    }

    /// The low 32 bits of `span` as a signed integer: an `int` that was loaded into a word.
    pub fn int(&self, span: &Span) -> Result<i32, DecodeError> {
        #[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
        Ok((self.unsigned(span)? as u32).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_field_by_field_and_short_ones_are_refused() {
        let mut item = vec![0u8; 56];
        item[0..2].copy_from_slice(&48u16.to_le_bytes());
        item[2..4].copy_from_slice(&7u16.to_le_bytes());
        item[4..8].copy_from_slice(&3u32.to_le_bytes());
        item[8..16].copy_from_slice(&11u64.to_le_bytes());
        item[16..24].copy_from_slice(&99u64.to_le_bytes());
        item[24..28].copy_from_slice(&100u32.to_le_bytes());
        item[28..32].copy_from_slice(&101u32.to_le_bytes());
        item[32..40].copy_from_slice(&5u64.to_le_bytes());
        item[40..48].copy_from_slice(&(-1i64).to_le_bytes());
        let view = RecordView::new(&item).unwrap();
        assert_eq!(
            view.header,
            RecordHeader { len: 48, probe: 7, cpu: 3, hit: 11, ts_ns: 99, tgid: 100, tid: 101, faults: 5 }
        );
        assert_eq!(view.signed(&Span { at: 40, len: 8, rests_on: 0b10 }), Ok(-1));
        assert!(view.bytes(&Span { at: 44, len: 8, rests_on: 0 }).is_err(), "past the record's own length");
        // Steps 0 and 2 could not read (faults: 5).
        assert!(matches!(
            view.signed(&Span { at: 40, len: 8, rests_on: 0b100 }),
            Err(DecodeError::Unreadable(_))
        ));
        assert!(RecordView::new(&item[..39]).is_err());
        assert!(RecordView::new(&item[..47]).is_err());
    }
}
