//! Access to a record's bytes: checks the header, finds the parts.

use std::{fmt, result};

use ncclflow_common::RecordHeader;

use super::Origin;
use crate::wire::Span;
use nccl_library::fields::{signed, unsigned};

/// Reason why a record's bytes are not what its probe sends. Counted and reported, never ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Fewer bytes than the header states.
    Short { have: usize, want: usize },
    /// Cookie that this session gave to no probe.
    UnknownProbe(u16),
    /// Number that is no member of the library's enum, or out of its range.
    UnknownValue { what: &'static str, value: i64 },
    /// Value without which the event makes no sense, and that could not be read from the target's memory.
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

/// Result of decoding.
pub type Result<T, E = DecodeError> = result::Result<T, E>;

/// A record with a sound header.
#[derive(Clone, Copy, Debug)]
pub struct RecordView<'a> {
    pub header: RecordHeader,
    bytes: &'a [u8],
    /// Identity of the call stack that the kernel side sent for the same hit.
    pub stack: Option<u64>,
}

impl<'a> RecordView<'a> {
    /// Checks the header of the bytes of one ring buffer item.
    #[inline]
    pub fn new(item: &'a [u8]) -> Result<Self> {
        let header_len = size_of::<RecordHeader>();
        let short = |want| DecodeError::Short { have: item.len(), want };
        let header = RecordHeader::from_bytes(item).ok_or(short(header_len))?;
        let want = usize::from(header.len).max(header_len);
        let bytes = item.get(..want).ok_or(short(want))?;
        Ok(Self { header, bytes, stack: None })
    }

    /// Returns when and where the record was made.
    pub fn origin(&self) -> Origin {
        let RecordHeader { ts_ns, tgid, tid, lost, .. } = self.header;
        Origin { ts_ns, tgid, tid, lost, stack: self.stack }
    }

    /// Returns the bytes behind the header.
    pub(super) fn content(&self) -> &'a [u8] {
        self.bytes.get(RecordHeader::SIZE..).unwrap_or_default()
    }

    /// Returns the bytes that a plan put at `span`, unless a read that they rest on failed.
    pub fn bytes(&self, span: &Span) -> Result<&'a [u8]> {
        if self.header.faults & span.rests_on != 0 {
            return Err(DecodeError::Unreadable("a value"));
        }
        let (at, want) = (usize::from(span.at), usize::from(span.at) + usize::from(span.len));
        self.bytes.get(at..want).ok_or(DecodeError::Short { have: self.bytes.len(), want })
    }

    /// Reads the whole of `span` as an unsigned integer.
    pub fn unsigned(&self, span: &Span) -> Result<u64> {
        let bytes = self.bytes(span)?;
        unsigned(bytes).ok_or(DecodeError::Short { have: bytes.len(), want: 8 })
    }

    /// Reads the whole of `span` as an unsigned integer, if there is such a span.
    pub fn optional(&self, span: Option<&Span>) -> Result<Option<u64>> {
        span.map(|span| self.unsigned(span)).transpose()
    }

    /// Reads an `int` of `span`, if there is such a span.
    pub fn optional_int(&self, span: Option<&Span>) -> Result<Option<i32>> {
        span.map(|span| self.int(span)).transpose()
    }

    /// Reads the whole of `span` as a signed integer.
    pub fn signed(&self, span: &Span) -> Result<i64> {
        let bytes = self.bytes(span)?;
        signed(bytes).ok_or(DecodeError::Short { have: bytes.len(), want: 8 })
    }

    /// Reads the low 32 bits of `span` as a signed integer: an `int` that was loaded into a word.
    pub fn int(&self, span: &Span) -> Result<i32> {
        #[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
        Ok((self.unsigned(span)? as u32).cast_signed())
    }

    /// Reads `span` as an array of `int`.
    pub fn ints<const N: usize>(&self, span: &Span) -> Result<[i32; N]> {
        let bytes = self.bytes(span)?;
        let mut ints = [0; N];
        for (at, int) in ints.iter_mut().enumerate() {
            let bytes = bytes.get(at * 4..).and_then(|rest| rest.first_chunk());
            let short = DecodeError::Short { have: usize::from(span.len), want: N * 4 };
            *int = bytes.map(|bytes| i32::from_le_bytes(*bytes)).ok_or(short)?;
        }
        Ok(ints)
    }
}

/// Checks the number of a channel, which is an `int` in NCCL and not negative.
pub(super) fn channel(number: u64) -> Result<u32> {
    in_range::<i32>("channel", number.cast_signed()).and_then(|channel| in_range("channel", channel.into()))
}

/// Returns what was read; `None` if the target's memory could not be read.
pub(super) fn if_readable<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Err(DecodeError::Unreadable(_)) => Ok(None),
        read => read.map(Some),
    }
}

/// Turns a number into the type that it must fit.
pub(super) fn in_range<T: TryFrom<i64>>(what: &'static str, value: i64) -> Result<T> {
    T::try_from(value).map_err(|_| DecodeError::UnknownValue { what, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_field_by_field_and_short_ones_are_refused() {
        let header = RecordHeader {
            len: 56,
            probe: 7,
            cpu: 3,
            hit: 11,
            ts_ns: 99,
            tgid: 100,
            tid: 101,
            faults: 5,
            lost: 12,
        };
        let mut item = header.to_bytes().to_vec();
        assert_eq!(item.len(), size_of::<RecordHeader>());
        // The kernel side writes the header in C layout.
        assert_eq!(item[std::mem::offset_of!(RecordHeader, tgid)], 100);
        assert_eq!(item[std::mem::offset_of!(RecordHeader, lost)], 12);
        item.extend_from_slice(&(-1i64).to_le_bytes());
        item.extend_from_slice(&[0; 8]);
        let view = RecordView::new(&item).unwrap();
        assert_eq!(view.header, header);
        assert_eq!(view.signed(&Span { at: 48, len: 8, rests_on: 0b10 }), Ok(-1));
        assert!(view.bytes(&Span { at: 52, len: 8, rests_on: 0 }).is_err(), "past the record's own length");
        // Steps 0 and 2 could not read (faults: 5).
        assert!(matches!(
            view.signed(&Span { at: 48, len: 8, rests_on: 0b100 }),
            Err(DecodeError::Unreadable(_))
        ));
        assert!(RecordView::new(&item[..47]).is_err());
        assert!(RecordView::new(&item[..55]).is_err());
    }
}
