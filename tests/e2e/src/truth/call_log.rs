//! What the test bed itself says it called, with which result, and when.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use crate::json_lines;

/// A call. Nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Call {
    /// As exported: `ncclAllReduce`.
    pub function: String,
    pub pid: u32,
    pub tid: u32,
    pub begin_ns: u64,
    pub end_ns: u64,
    /// `ncclResult_t`
    pub code: i32,
}

/// Now, by the clock of the calls.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Every call of every process, from the files `<prefix>.<pid>`, in the order of their begin.
pub fn read(prefix: &Path) -> Result<Vec<Call>> {
    let folder = prefix.parent().context("a prefix without a folder")?;
    let name = format!("{}.", prefix.file_name().unwrap_or_default().to_string_lossy());
    let mut calls: Vec<Call> = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("listing `{}`", folder.display()))? {
        let path = entry?.path();
        if path.file_name().unwrap_or_default().to_string_lossy().starts_with(&name) {
            calls.extend(json_lines::read::<Call>(&path)?);
        }
    }
    calls.sort_by_key(|call| call.begin_ns);
    Ok(calls)
}
