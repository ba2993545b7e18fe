//! Raw records in a file, with all that is needed to decode them again: *live = replay*.
//!
//! A capture is a line of JSON (what the records mean), then the records as the kernel sent them, each after
//! its length (and marks where some could not be kept), then the session's report. It is read with the same
//! distrust as any file: it can come from anywhere.

mod reader;
mod writer;

pub use reader::{CaptureReader, Item};
pub use writer::CaptureWriter;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{kernel::stream::MAX_FRAME, sinks::ApiOutputOptions};
use flow::{decode::Decoder, model::Sampling, schema::HostInfo, wire::ProbeKind};

/// First bytes of a capture; the number is the format's version.
const MAGIC: &[u8; 16] = b"ncclflow capt 1\n";

/// Length that stands for "no record: the report follows".
const END: u32 = u32::MAX;

/// Longest record, in bytes.
const MAX_RECORD: u32 = MAX_FRAME;

/// Longest header or report, in bytes.
const MAX_JSON: u64 = 64 << 20;

/// What the records of a capture mean.
#[derive(Debug, Serialize, Deserialize)]
pub struct CaptureHeader {
    /// [`ncclflow_common::WIRE_VERSION`] of the records.
    pub wire_version: u32,
    /// By cookie.
    pub bindings: Vec<Binding>,
    /// `session.json` as it was when the recording began.
    pub report: String,
    /// How API calls are written.
    #[serde(default)]
    pub api: ApiOutputOptions,
    /// Of which ops messages are measured.
    #[serde(default)]
    pub sampling: Sampling,
}

/// What the records of one cookie mean, and whose they are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Binding {
    pub kind: ProbeKind,
    /// That of its library.
    pub decoder: Arc<Decoder>,
    /// Nothing of parts of a walk, which serve all processes of a library, and of probes that several
    /// processes share.
    pub host: Option<HostInfo>,
}
