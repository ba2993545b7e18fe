//! The shipped table against structs that were written down once more by hand and compiled
//! (`tests/torch-double`). `cargo xtask make torch-offsets --check` compares the table with torch's own
//! headers.

mod support;

use serde_json::json;
use support::Subject;
use torch::{Offsets, ShippedRow, shipped_rows};

#[test]
fn layouts_are_those_of_the_structs_of_every_version() {
    for ShippedRow { offsets, .. } in shipped_rows() {
        let minor = u32::from(offsets.version.minor);
        let Some(mut subject) = Subject::start(minor, "libtorch_cuda.so", &[]) else { return };
        let compiled: Offsets = serde_json::from_value(subject.ask(&json!(["layouts"]))).unwrap();
        assert_eq!(compiled, offsets, "torch 2.{minor}");
    }
}
