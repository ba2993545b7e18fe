//! What the example `conformance` of `ncclflow-e2e` writes of a library, and `cargo xtask verify conformance` reads:
//! one line of JSON. Both include this file, as xtask must build without the crates that the example needs.

use serde::{Deserialize, Serialize};

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// NCCL's version as the library states it; empty if it states none.
    pub(crate) nccl: String,
    /// Major version of CUDA.
    pub(crate) cuda: Option<u32>,
    /// Processor: `x86-64` or `aarch64`.
    pub(crate) machine: String,
    pub(crate) build_id: String,
    /// Structs whose layouts are known, and the fields of all of them.
    pub(crate) structs: usize,
    pub(crate) fields: usize,
    /// With debugging information, with symbols only, stripped.
    pub(crate) forms: Vec<Form>,
    /// Comparisons of the program that calls the library on a communicator that is made up, with the library
    /// and with its stripped copy; none where it did not run.
    pub(crate) patterns: [Option<u64>; 2],
    /// Comparisons of jobs on the bed, likewise.
    pub(crate) bed: [Option<u64>; 2],
    /// Which witnesses the bed had: `all` or `device`.
    pub(crate) witnesses: Option<String>,
    pub(crate) mismatches: Vec<String>,
}

/// What is found in one form of the library.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Form {
    /// Where the symbols are from.
    pub(crate) rung: String,
    /// Copies of functions.
    pub(crate) functions: usize,
    /// Parameters whose location is known.
    pub(crate) params: usize,
}
