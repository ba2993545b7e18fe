//! Parquet tables, read by DuckDB and compared with the lines of the same recording
//! (`tests/parquet/compare.py`).

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use test_support::need;

use super::ran::{ncclflow_of, run};

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
    ncclflow_of("export -f parquet -o", &[&[tables], recordings].concat()).ok().stdout
}

/// Compares every row and what the shipped queries give. Gives how many rows each has.
#[must_use]
pub fn compare(tables: &Path, lines: &[&Path], arguments: &[&str]) -> Value {
    let script: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "parquet", "compare.py"].iter().collect();
    run(Command::new("python3").arg(script).arg(tables).args(lines).args(arguments)).ok().json()
}
