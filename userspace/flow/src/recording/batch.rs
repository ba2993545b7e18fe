//! Batches of records on their way out of the kernel.

use ncclflow_common::{LOSS_MARK, RecordHeader};

/// Longest record, in bytes.
pub const MAX_FRAME: u32 = 4096;

/// Bytes at which a batch is passed on.
const FULL: usize = 256 * 1024;

/// Records one after the other, each after its length (4 bytes, little-endian): as the kernel sent them, byte
/// for byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    bytes: Vec<u8>,
    records: usize,
}

impl Batch {
    /// Adds a mark: `lost` records of a process are missing in this place.
    pub fn push_mark(&mut self, tgid: u32, lost: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "48")]
        let len = size_of::<RecordHeader>() as u16;
        let mark = RecordHeader { len, probe: LOSS_MARK, tgid, lost, ..RecordHeader::default() };
        self.push(&mark.to_bytes());
        self.records -= 1; // a mark is no record
    }

    /// Adds a record. Bytes of `item` behind the record's own length are left out: a ring buffer's items have
    /// a constant size.
    pub fn push(&mut self, item: &[u8]) {
        let record = item
            .first_chunk()
            .map(|len| usize::from(u16::from_le_bytes(*len)))
            .filter(|len| *len >= size_of::<RecordHeader>())
            .and_then(|len| item.get(..len))
            .unwrap_or(item);
        // Only the beginning is kept of a record that is longer than any can be: decoding refuses it, and
        // counts it.
        let record = record.get(..MAX_FRAME as usize).unwrap_or(record);
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_FRAME")]
        let len = record.len() as u32;
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.extend_from_slice(record);
        self.records += 1;
    }

    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.bytes.as_slice();
        std::iter::from_fn(move || {
            let (len, after) = rest.split_first_chunk()?;
            let (record, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = after;
            Some(record)
        })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the number of records, without marks.
    pub fn len(&self) -> usize {
        self.records
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.bytes.len() >= FULL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_as_they_went_in_without_what_is_behind_them() {
        let mut batch = Batch::default();
        let mut record = vec![7u8; 100];
        record[..2].copy_from_slice(&60u16.to_le_bytes());
        batch.push(&record);
        batch.push(b"odd"); // no header: kept as it is, to be counted as not understood
        batch.push(&[0xff; 50]); // states more than there is
        batch.push(&vec![0; 10_000]);
        let lens: Vec<usize> = batch.records().map(<[u8]>::len).collect();
        assert_eq!(lens, [60, 3, 50, 4096]);
        assert_eq!(batch.records().next(), Some(&record[..60]));
        assert_eq!(batch.len(), 4);
    }
}
