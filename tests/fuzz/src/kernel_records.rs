//! What is done with items that came out of the kernel's buffers: they are taken apart, and decoded by the bindings of a
//! real session.
//!
//! An input is items, one after the other: length (2 bytes), and as many bytes.

use std::{fs::File, io::Read as _, path::Path, sync::LazyLock};

use flate2::read::GzDecoder;
use ncclflow::{
    capture::CaptureReader,
    kernel::stream::{Batch, records_of},
};

/// A capture whose bindings are used.
const CAPTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/traces/net_steps.cap.gz");

/// The capture up to its first record.
static BEGINNING: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut whole = Vec::new();
    if let Ok(file) = File::open(Path::new(CAPTURE)) {
        let _ = GzDecoder::new(file).read_to_end(&mut whole);
    }
    let mut rest = &*whole;
    let _ = CaptureReader::new(&mut rest);
    let length = whole.len() - rest.len();
    whole.truncate(length);
    whole
});

/// Decodes them and all that follows. Errors are fine; the fuzzer looks for panics, time and memory.
///
/// # Panics
/// If it takes too long, or the capture that has the bindings is not there.
pub fn use_items(mut input: &[u8]) {
    assert!(!BEGINNING.is_empty(), "{CAPTURE} is no capture");
    let mut batch = Batch::default();
    while let Some((length, rest)) = input.split_first_chunk::<2>() {
        let (item, rest) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length))));
        records_of(item).for_each(|record| batch.push(record));
        input = rest;
    }
    super::capture::use_capture(&[&**BEGINNING, batch.bytes()].concat());
}
