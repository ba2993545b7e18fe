//! The shipped table of offsets.
//!
//! `cargo xtask make torch-offsets` makes it. Patch releases of one minor version have the same layouts, and
//! so do builds for CUDA 12 and 13: no field depends on CUDA.

use serde::{Deserialize, Serialize};

use crate::{Offsets, Version};

const TABLE: &str = include_str!("shipped/offsets.jsonl");

/// Extent to which a line of the table was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Tried {
    /// This torch was run on GPUs, and what was read is what it states itself (tests/gpu/history.sh).
    Run,
    /// Only its headers were compiled.
    Headers,
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShippedRow {
    /// Releases whose wheels have these layouts, as PyPI has them for x86-64: `2.4.0+cu121`.
    pub made_from: Vec<String>,
    pub tried: Tried,
    #[serde(flatten)]
    pub offsets: Offsets,
}

/// Returns all lines of the table; those of another format are left out, which a test would see.
pub fn shipped_rows() -> Vec<ShippedRow> {
    TABLE.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the line of a version, if the table has it.
pub fn shipped(version: Version) -> Option<ShippedRow> {
    shipped_rows().into_iter().find(|row| row.offsets.version == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_read_and_every_version_is_there() {
        let rows = shipped_rows();
        assert_eq!(rows.len(), TABLE.lines().count());
        let versions: Vec<Version> = rows.iter().map(|row| row.offsets.version).collect();
        assert_eq!(versions, [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|minor| Version::new(2, minor)));
        for row in rows {
            assert!(!row.made_from.is_empty());
            for release in &row.made_from {
                assert_eq!(Version::from_release(release), Some(row.offsets.version), "{row:?}");
            }
        }
        assert_eq!(shipped(Version::new(2, 3)), None);
        assert_eq!(shipped(Version::new(2, 16)), None);
    }
}
