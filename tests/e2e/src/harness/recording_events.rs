//! The events in a recording, as docs/RECORDING.md describes its form.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "part of tests, which fail by panicking")]

use std::{fs, io::Read as _, path::Path};

use flate2::read::DeflateDecoder;
use serde_json::Value;

/// All that are in this folder, as far as it is written.
pub fn events(recording: &Path) -> Vec<Value> {
    let mut events = Vec::new();
    for segment in fs::read_dir(recording).unwrap().map(Result::unwrap) {
        let bytes = fs::read(segment.path()).unwrap();
        let mut rest = bytes.get(16..).unwrap_or_default();
        while let Some((header, behind)) = rest.split_at_checked(48) {
            let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap()) as usize;
            let (index, body) = (number(8), number(12));
            let Some((block, behind)) = behind.split_at_checked(index + body) else { break };
            if header[4] == 4 {
                let mut text = String::new();
                DeflateDecoder::new(&block[index..]).read_to_string(&mut text).unwrap();
                events.push(serde_json::from_str(&text).unwrap());
            }
            rest = behind;
        }
    }
    events
}
