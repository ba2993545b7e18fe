//! Shipped tables of offsets, for versions that do not state their layouts themselves (3.8 to 3.12).
//!
//! `cargo xtask make python-offsets` makes them: a C program that prints `offsetof` of every field, compiled
//! against an interpreter's own headers. Patch releases of one minor version have the same layouts.

use serde::{Deserialize, Serialize};

use crate::{Offsets, Version};

const TABLE: &str = include_str!("shipped/offsets.jsonl");

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShippedRow {
    /// Release whose headers the line was made from, like `3.8.18`.
    pub made_from: String,
    #[serde(flatten)]
    pub offsets: Offsets,
}

/// Returns all lines of the table; those of another format are left out, which a test would see.
pub fn shipped_rows() -> Vec<ShippedRow> {
    TABLE.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the offsets of a version, if the table has it.
pub fn shipped(version: Version) -> Option<Offsets> {
    shipped_rows().into_iter().map(|row| row.offsets).find(|offsets| offsets.version == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_read_and_every_version_without_its_own_offsets_is_there() {
        let rows = shipped_rows();
        assert_eq!(rows.len(), TABLE.lines().count());
        let versions: Vec<Version> = rows.iter().map(|row| row.offsets.version).collect();
        assert_eq!(versions, [8, 9, 10, 11, 12].map(|minor| Version::new(3, minor)));
        for row in rows {
            assert!(row.made_from.starts_with(&format!("{}.", row.offsets.version)), "{row:?}");
        }
        assert_eq!(shipped(Version::new(3, 7)), None);
    }
}
