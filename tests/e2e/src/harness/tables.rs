//! Parquet tables, read by DuckDB and compared with the lines of the same recording
//! (`tests/parquet/compare.py`).

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "part of tests, which fail by panicking")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use test_support::need;

use super::programs;

/// Whether DuckDB is there.
#[must_use]
pub fn can_read() -> bool {
    let found = Command::new("python3").args(["-c", "import duckdb"]).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    need("duckdb", found, "run `python3 -m pip install duckdb`")
}

/// Exports the recordings into the folder `tables`. Gives what was said.
#[must_use]
pub fn export(recordings: &[&Path], tables: &Path) -> String {
    let mut export = Command::new(programs::ncclflow().unwrap());
    export.arg("export").args(recordings).args(["-f", "parquet", "-o"]).arg(tables);
    let output = export.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Compares every row and what the shipped queries give. Gives how many rows each has.
#[must_use]
pub fn compare(tables: &Path, lines: &[&Path], arguments: &[&str]) -> Value {
    let script: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "parquet", "compare.py"].iter().collect();
    let output =
        Command::new("python3").arg(script).arg(tables).args(lines).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
