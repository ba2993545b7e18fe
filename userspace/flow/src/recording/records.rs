//! Encodes a block of records by columns.
//!
//! Records that have the same probe, length and process stand in one table; `order` says from which table
//! each comes. Fields of headers are stored for all records together, the rest by table and in words of 8
//! bytes. The number of a hit is stored as its difference from the expected number: that of the hit before on
//! the same probe and CPU, plus 1.

use foldhash::HashMap;
use ncclflow_common::RecordHeader;

use super::columns::{self, Input, push, unzigzag, zigzag};

/// Tables that a block can have. A record that would need one more stands in the block as it is.
const MAX_TABLES: usize = 4096;

/// Bytes of a record at most.
const MAX_RECORD: usize = super::MAX_FRAME as usize;

const HEADER: usize = RecordHeader::SIZE;

/// Properties that the records of a table share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    probe: u16,
    len: u16,
    tgid: u32,
}

/// Appends the records, in their order.
pub fn encode_records<'a>(records: impl IntoIterator<Item = &'a [u8]>, bytes: &mut Vec<u8>) {
    let mut block = Block::default();
    for record in records {
        block.add(record);
    }
    block.write(bytes);
}

#[derive(Default)]
struct Block<'a> {
    numbers: HashMap<Shape, usize>,
    tables: Vec<(Shape, Vec<&'a [u8]>)>,
    /// Number of each record's table plus 1; 0 for a record that stands as it is.
    order: Vec<u64>,
    /// Records whose header does not say their length, or that are shorter than a header.
    odd: Vec<&'a [u8]>,
    headers: Headers,
}

impl<'a> Block<'a> {
    fn add(&mut self, record: &'a [u8]) {
        let table = RecordHeader::from_bytes(record)
            .filter(|header| usize::from(header.len) == record.len())
            .and_then(|header| Some((self.table(&header)?, header)));
        let Some((number, header)) = table else {
            self.order.push(0);
            self.odd.push(record);
            return;
        };
        self.order.push(number as u64 + 1);
        self.headers.add(&header);
        if let Some((_, rows)) = self.tables.get_mut(number) {
            rows.push(record.get(HEADER..).unwrap_or_default());
        }
    }

    fn table(&mut self, header: &RecordHeader) -> Option<usize> {
        let shape = Shape { probe: header.probe, len: header.len, tgid: header.tgid };
        if let Some(number) = self.numbers.get(&shape) {
            return Some(*number);
        }
        let number = self.tables.len();
        if number == MAX_TABLES {
            return None;
        }
        self.numbers.insert(shape, number);
        self.tables.push((shape, Vec::new()));
        Some(number)
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        push(bytes, self.order.len() as u64);
        push(bytes, self.tables.len() as u64);
        for (shape, _) in &self.tables {
            push(bytes, shape.probe.into());
            push(bytes, shape.len.into());
            push(bytes, shape.tgid.into());
        }
        self.order.iter().for_each(|number| push(bytes, *number));
        for record in &self.odd {
            push(bytes, record.len() as u64);
            bytes.extend_from_slice(record);
        }
        self.headers.write(bytes);
        let mut column = Vec::new();
        for (_, rows) in &self.tables {
            let words = rows.first().map_or(0, |row| row.len().div_ceil(8));
            for word in 0..words {
                column.clear();
                column.extend(rows.iter().map(|row| word_at(row, word)));
                columns::encode(bytes, &column);
            }
        }
    }
}

/// Header fields of records in tables, without probe, length and process: a value per record, and in this
/// order in the block.
#[derive(Debug, Default)]
struct Headers {
    /// Nanoseconds since the record before, in zigzag form.
    times: Vec<u64>,
    cpus: Vec<u64>,
    tids: Vec<u64>,
    /// Differences of the hits' numbers from the expected ones, in zigzag form.
    hits: Vec<u64>,
    faults: Vec<u64>,
    lost: Vec<u64>,
    before: u64,
    expected: HashMap<(u16, u32), u64>,
}

impl Headers {
    fn add(&mut self, header: &RecordHeader) {
        self.times.push(zigzag(header.ts_ns.wrapping_sub(self.before)));
        self.before = header.ts_ns;
        self.cpus.push(header.cpu.into());
        self.tids.push(header.tid.into());
        let expected = self.expected.entry((header.probe, header.cpu)).or_insert(0);
        self.hits.push(zigzag(header.hit.wrapping_sub(*expected)));
        *expected = header.hit.wrapping_add(1);
        self.faults.push(header.faults);
        self.lost.push(header.lost);
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        for time in &self.times {
            push(bytes, *time);
        }
        for column in [&self.cpus, &self.tids, &self.hits, &self.faults, &self.lost] {
            columns::encode(bytes, column);
        }
    }

    fn read(input: &mut Input<'_>, rows: usize) -> Option<Self> {
        let mut headers = Self::default();
        for _ in 0..rows {
            headers.times.push(input.varint()?);
        }
        if rows > 0 {
            let Self { cpus, tids, hits, faults, lost, .. } = &mut headers;
            for column in [cpus, tids, hits, faults, lost] {
                columns::decode(input, rows, column)?;
            }
        }
        Some(headers)
    }

    /// Rebuilds the header of the record in this row; rows must be asked for in their order.
    fn header(&mut self, row: usize, shape: Shape) -> Option<RecordHeader> {
        let &Shape { probe, len, tgid } = &shape;
        let cpu = u32::try_from(*self.cpus.get(row)?).ok()?;
        self.before = self.before.wrapping_add(unzigzag(*self.times.get(row)?));
        let expected = self.expected.entry((probe, cpu)).or_insert(0);
        let hit = expected.wrapping_add(unzigzag(*self.hits.get(row)?));
        *expected = hit.wrapping_add(1);
        Some(RecordHeader {
            len,
            probe,
            cpu,
            hit,
            ts_ns: self.before,
            tgid,
            tid: u32::try_from(*self.tids.get(row)?).ok()?,
            faults: *self.faults.get(row)?,
            lost: *self.lost.get(row)?,
        })
    }
}

/// Reads up to 8 bytes of a row, little-endian.
fn word_at(row: &[u8], word: usize) -> u64 {
    let rest = row.get(word * 8..).unwrap_or_default();
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(rest) {
        *to = *from;
    }
    u64::from_le_bytes(bytes)
}

/// Calls `each` with every record of a block that [`encode_records`] made, in the block's order. Nothing is
/// read of bytes that claim more than `limit` bytes of records. `None`: for these, and for bytes that say
/// something that no block says.
pub fn decode_records(bytes: &[u8], limit: usize, mut each: impl FnMut(&[u8])) -> Option<()> {
    let input = &mut Input(bytes);
    // Each record takes a byte of `order`, so their number is bounded by the bytes that are there.
    let records = input.count(input.0.len())?;
    let n_tables = input.count(MAX_TABLES)?;
    // Shape and number of the records of each table.
    let shapes: Option<Vec<_>> = (0..n_tables).map(|_| Some((shape(input)?, 0usize))).collect();
    let mut shapes = shapes?;
    let (mut order, mut odd_records, mut total) = (Vec::with_capacity(records), 0usize, 0usize);
    for _ in 0..records {
        let number = input.count(n_tables)?;
        order.push(number);
        match number.checked_sub(1).and_then(|table| shapes.get_mut(table)) {
            Some((shape, rows)) => {
                *rows += 1;
                total = total.saturating_add(usize::from(shape.len));
            }
            None => odd_records += 1,
        }
    }
    let mut odd = Vec::with_capacity(odd_records);
    for _ in 0..odd_records {
        let record = input.count(MAX_RECORD).and_then(|len| input.take(len))?;
        total = total.saturating_add(record.len());
        odd.push(record);
    }
    if total > limit {
        return None;
    }
    let mut headers = Headers::read(input, records - odd_records)?;
    let mut column = Vec::new();
    let tables = shapes.iter().map(|(shape, rows)| read_table(input, *shape, *rows, &mut column));
    let mut tables = tables.collect::<Option<Vec<_>>>()?;
    let mut rows = Vec::with_capacity(n_tables);
    for ((shape, _), table) in shapes.iter().zip(&mut tables) {
        rows.push((*shape, table.chunks_exact_mut(shape.len.into())));
    }
    let (mut odd, mut in_tables) = (odd.into_iter(), 0);
    for number in order {
        let Some(number) = number.checked_sub(1) else {
            each(odd.next()?);
            continue;
        };
        let (shape, rows) = rows.get_mut(number)?;
        let record = rows.next()?;
        let header = headers.header(in_tables, *shape)?.to_bytes();
        record.get_mut(..HEADER)?.copy_from_slice(&header);
        each(record);
        in_tables += 1;
    }
    Some(())
}

fn shape(input: &mut Input<'_>) -> Option<Shape> {
    let probe = u16::try_from(input.varint()?).ok()?;
    let len = u16::try_from(input.varint()?).ok()?;
    let tgid = u32::try_from(input.varint()?).ok()?;
    (HEADER..=MAX_RECORD).contains(&usize::from(len)).then_some(Shape { probe, len, tgid })
}

/// Reads the records of a table, one after the other, with zeros in the place of each header.
fn read_table(input: &mut Input<'_>, shape: Shape, rows: usize, column: &mut Vec<u64>) -> Option<Vec<u8>> {
    let len = usize::from(shape.len);
    let mut table = vec![0; rows.checked_mul(len)?];
    if rows == 0 {
        return Some(table);
    }
    for word in 0..(len - HEADER).div_ceil(8) {
        columns::decode(input, rows, column)?;
        for (row, value) in table.chunks_exact_mut(len).zip(column.iter()) {
            let place = row.get_mut(HEADER + word * 8..)?;
            for (to, from) in place.iter_mut().zip(value.to_le_bytes()) {
                *to = from;
            }
        }
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes records of two processes and three probes, as a job that repeats itself makes them; and some
    /// bytes that are no records.
    fn records() -> Vec<Vec<u8>> {
        let mut records: Vec<Vec<u8>> = (0..3000u64)
            .map(|n| {
                let probe = u16::try_from(n % 3).unwrap();
                let len = [64u16, 75, 48][usize::from(probe)];
                let header = RecordHeader {
                    len,
                    probe,
                    cpu: u32::try_from(n / 100 % 4).unwrap(),
                    hit: n / 3,
                    ts_ns: (1 << 40) + n * 1000,
                    tgid: 100 + u32::from(n % 7 == 0),
                    tid: 200,
                    faults: u64::from(n == 77) << 63,
                    lost: n / 2000,
                };
                let mut record = header.to_bytes().to_vec();
                record.extend(
                    (0..usize::from(len) - HEADER).map(|at| u8::try_from((n / 9 + at as u64) % 251).unwrap()),
                );
                record
            })
            .collect();
        records.insert(1500, Vec::new());
        records.insert(1600, vec![0xff; 30]);
        records.insert(1700, [&records[0][..], &[1, 2, 3]].concat());
        records
    }

    fn decoded(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut decoded = Vec::new();
        decode_records(bytes, 1 << 20, |record| decoded.push(record.to_vec()))?;
        Some(decoded)
    }

    #[test]
    fn records_of_any_content_come_back_in_their_order() {
        let records = records();
        let mut bytes = Vec::new();
        encode_records(records.iter().map(Vec::as_slice), &mut bytes);
        assert_eq!(decoded(&bytes).unwrap(), records);
        let raw: usize = records.iter().map(Vec::len).sum();
        assert!(bytes.len() * 4 < raw, "{} of {raw}", bytes.len());
        bytes.clear();
        encode_records([], &mut bytes);
        assert_eq!(decoded(&bytes).unwrap(), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn what_is_cut_or_changed_is_refused_or_other_records_but_never_more_than_the_limit() {
        let records = records();
        let mut bytes = Vec::new();
        encode_records(records.iter().map(Vec::as_slice), &mut bytes);
        for cut in (0..bytes.len()).step_by(bytes.len() / 150) {
            assert_eq!(decoded(&bytes[..cut]), None, "cut at {cut}");
        }
        for at in (0..bytes.len()).step_by(bytes.len() / 150) {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            if let Some(records) = decoded(&changed) {
                assert!(records.iter().map(Vec::len).sum::<usize>() <= 1 << 20);
            }
        }
        let limited = decode_records(&bytes, 1000, |_| panic!("more than the limit"));
        assert_eq!(limited, None);
    }
}
