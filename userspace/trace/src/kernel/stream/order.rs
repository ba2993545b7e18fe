//! Order of the records of several buffers.
//!
//! A round looks at the clock and then reads every buffer. Records made before that look are given out, by
//! time; the rest waits for the next round. Two records of which the second's maker waited for that of the
//! first thus keep their order, whatever buffers they are in: the first was in its buffer before the second
//! was made, so where the second is old enough to be given out, the first has been read.

/// Bytes of `ts_ns` in a record's header.
pub(super) const TS_NS: std::ops::Range<usize> = std::mem::offset_of!(ncclflow_common::RecordHeader, ts_ns)
    ..std::mem::offset_of!(ncclflow_common::RecordHeader, ts_ns) + 8;

/// Returns the time at which the (first) record of an item of a buffer was made, or 0 if the item is too
/// short for one.
pub(super) fn made_at(item: &[u8]) -> u64 {
    item.get(TS_NS).and_then(|ts| ts.try_into().ok()).map_or(0, u64::from_le_bytes)
}
