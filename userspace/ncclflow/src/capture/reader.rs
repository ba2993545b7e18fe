//! Reads a capture.

use std::io::{self, BufRead, Read as _};

use anyhow::{Context as _, Result, bail};
use ncclflow_common::WIRE_VERSION;

use super::{CaptureHeader, END, MAGIC, MAX_JSON, MAX_RECORD};

#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    Record(&'a [u8]),
    /// The end, with the session's report. The capture is whole.
    Report(String),
    /// The end, without a report: the recording was killed, or its disk was full.
    Cut,
}

#[derive(Debug)]
pub struct CaptureReader<R> {
    input: R,
    record: Vec<u8>,
}

impl<R: BufRead> CaptureReader<R> {
    /// Reads the header. The errors here and below say why a file is no capture that we can read.
    pub fn new(mut input: R) -> Result<(Self, CaptureHeader)> {
        let mut magic = [0; MAGIC.len()];
        if input.read_exact(&mut magic).is_err() || &magic != MAGIC {
            bail!("not an ncclflow capture (`record --capture` makes them)");
        }
        let mut line = Vec::new();
        input.by_ref().take(MAX_JSON).read_until(b'\n', &mut line)?;
        let header: CaptureHeader =
            serde_json::from_slice(&line).context("the capture's header cannot be read")?;
        if header.wire_version != WIRE_VERSION {
            bail!("a capture of record format {}; this ncclflow reads {WIRE_VERSION}", header.wire_version);
        }
        Ok((Self { input, record: Vec::new() }, header))
    }

    pub fn next_item(&mut self) -> Result<Item<'_>> {
        let mut len = [0; 4];
        if !read_whole(&mut self.input, &mut len)? {
            return Ok(Item::Cut);
        }
        let len = u32::from_le_bytes(len);
        if len == END {
            let mut report = String::new();
            if self.input.by_ref().take(MAX_JSON).read_to_string(&mut report).is_err() {
                // It is longer than any, or no text.
                bail!("the capture's report cannot be read");
            }
            return Ok(Item::Report(report));
        }
        if len > MAX_RECORD {
            bail!("a record of {len} bytes: the capture is damaged");
        }
        self.record.resize(usize::try_from(len).unwrap_or(0), 0);
        Ok(if read_whole(&mut self.input, &mut self.record)? {
            Item::Record(&self.record)
        } else {
            Item::Cut
        })
    }
}

fn read_whole(input: &mut impl io::Read, bytes: &mut [u8]) -> io::Result<bool> {
    match input.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{capture::CaptureWriter, kernel::stream::Batch, sinks::ApiOutputOptions};
    use flow::model::Sampling;

    fn header() -> CaptureHeader {
        CaptureHeader {
            wire_version: WIRE_VERSION,
            bindings: Vec::new(),
            report: "{}".to_owned(),
            api: ApiOutputOptions::default(),
            sampling: Sampling::default(),
        }
    }

    /// A capture of two records, as bytes.
    fn capture() -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("capture");
        let mut writer = CaptureWriter::create(&path, &header()).unwrap();
        let mut batch = Batch::default();
        batch.push(b"first");
        batch.push(b"");
        writer.push(&batch).unwrap();
        writer.finish("{\"state\":\"complete\"}").unwrap();
        assert!(CaptureWriter::create(&path, &header()).is_err(), "a file that exists is not written over");
        std::fs::read(path).unwrap()
    }

    fn items(bytes: &[u8]) -> Result<Vec<Item<'static>>> {
        let (mut reader, _) = CaptureReader::new(bytes)?;
        let mut items = Vec::new();
        loop {
            let item = match reader.next_item()? {
                Item::Record(record) => Item::Record(Box::leak(record.to_vec().into_boxed_slice())),
                Item::Report(report) => Item::Report(report),
                Item::Cut => Item::Cut,
            };
            let is_end = !matches!(item, Item::Record(_));
            items.push(item);
            if is_end {
                return Ok(items);
            }
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let expected =
            [Item::Record(b"first"), Item::Record(b""), Item::Report("{\"state\":\"complete\"}".to_owned())];
        assert_eq!(items(&capture()).unwrap(), expected);
    }

    #[test]
    fn a_capture_that_is_cut_anywhere_yields_its_whole_records() {
        let whole = capture();
        let body = whole.windows(5).position(|window| window == b"first").unwrap();
        for len in 0..whole.len() {
            match items(&whole[..len]) {
                Ok(items) => {
                    let records = items.iter().filter(|item| matches!(item, Item::Record(_))).count();
                    assert_eq!(records, usize::from(len >= body + 5) + usize::from(len >= body + 9));
                }
                Err(error) => assert!(len < body, "{len}: {error}"),
            }
        }
    }

    #[test]
    fn foreign_and_damaged_files_are_refused() {
        let foreign = items(b"no capture, but long enough").unwrap_err().to_string();
        assert!(foreign.contains("not an ncclflow capture"), "{foreign}");
        let mut damaged = capture();
        let body = damaged.windows(5).position(|window| window == b"first").unwrap();
        damaged[body - 4..body].copy_from_slice(&5000u32.to_le_bytes());
        let error = items(&damaged).unwrap_err().to_string();
        assert!(error.contains("a record of 5000 bytes"), "{error}");
    }
}
