//! A place in a record.

/// Place in the record where a plan puts something: byte offset from the start of the header, and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Span {
    pub at: u16,
    pub len: u16,
    /// Steps of the plan that the bytes rest on: bits as in [`ncclflow_common::RecordHeader::faults`]. If one
    /// of them failed, the bytes are worthless.
    pub rests_on: u64,
}

impl Span {
    /// Returns the place of `len` of the bytes, from `offset` on.
    #[must_use]
    pub fn part(self, offset: u16, len: u16) -> Self {
        Self { at: self.at.saturating_add(offset), len, rests_on: self.rests_on }
    }
}
