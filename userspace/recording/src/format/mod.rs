//! The recording: the kernel's records on disk, with all that is needed to read them on another machine.
//!
//! A recording is a folder of segments ([`SEGMENT_MAGIC`], then blocks as [`flow::recording`] describes
//! them). Each segment can be read alone: it begins with the session, and all bindings come before its first
//! records. A segment is only appended to, so it can be read while it is written. docs/RECORDING.md is the
//! description for others who want to read it.

mod carried_records;
mod facts;
mod open_block;
mod reader;
mod segments;
mod writer;

pub use facts::{Facts, LatestFacts, WhoFacts};
pub use reader::{Damage, Item, Progress, RecordingReader, Selection};
pub use writer::{BLOCK_TIME, RecordingWriter};

/// Name of the recording's folder in the folder of a session or a window.
pub const FOLDER: &str = "recording";

/// Version of the format. Another major version cannot be read; everything known of a newer minor version is
/// read, and the rest is counted.
const MAJOR: u16 = 1;
const MINOR: u16 = 8;

/// First bytes of a segment; its version follows, major and minor, 2 bytes little-endian each.
const SEGMENT_MAGIC: &[u8; 12] = b"ncclflow rec";

/// Bytes of magic and version.
const PREAMBLE: usize = 16;

/// Returns the first bytes of a segment, with the version that is written.
fn preamble() -> Vec<u8> {
    [SEGMENT_MAGIC.as_slice(), &MAJOR.to_le_bytes(), &MINOR.to_le_bytes()].concat()
}

#[cfg(test)]
mod tests;
