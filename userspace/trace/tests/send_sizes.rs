//! Where the sizes of sends are taken in official libraries that forget them (2.16 to 2.19), with and without
//! symbols.
//!
//! The places were read from the libraries with objdump. `NCCLFLOW_LONG=1` checks all of them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use flow::{session::StepDetail, wire::ProbeKind};
use nccl_library::elf::Image;
use nccl_library::symbols::{Code, nccl_request, resolve};
use tempfile::TempDir;
use test_support::{is_long, nccl, tool};
use trace::kernel::probe::{self, ProbeSet};

/// Library, offset in the file of the instruction `movl $0xffffffff,(%rax)` of net.cc's sendProxyProgress,
/// and where the frame has the address that is loaded before it.
const PLACES: [(&str, u64, i64); 12] = [
    ("2.16.2-cu11", 0x7_babb, 0x18),
    ("2.16.2-cu12", 0x7_b92b, 0x18),
    ("2.16.5-cu11", 0x7_ba8b, 0x18),
    ("2.16.5-cu12", 0x7_b8fb, 0x18),
    ("2.17.1-cu12", 0x8_49fb, 0x18),
    ("2.18.1-cu12", 0x9_0ea7, 0x20),
    ("2.18.3-cu11", 0x8_9d07, 0x20),
    ("2.18.3-cu12", 0x9_1807, 0x20),
    ("2.19.3-cu11", 0x9_84a7, 0x20),
    ("2.19.3-cu12", 0xa_1307, 0x20),
    ("2.20.5-cu12", 0, 0),
    ("2.21.5-cu12", 0, 0),
];

fn check(name: &str, library: &Path, file_offset: u64, in_frame: i64) {
    let image = Image::open(library).unwrap();
    let resolution = resolve(&image, &nccl_request()).unwrap();
    let mut set = ProbeSet::default();
    probe::add_steps(&mut set, &resolution, Some(&Code::read(&image, &resolution)), StepDetail::Waits);
    assert!(set.missing.is_empty(), "{name}: {:?}", set.missing);
    let sizes: Vec<_> =
        set.probes.iter().filter(|probe| matches!(probe.kind, ProbeKind::SendSize(_))).collect();
    if file_offset == 0 {
        assert!(sizes.is_empty(), "{name}: the sizes stand in the slots");
        return;
    }
    let [probe] = sizes[..] else { panic!("{name}: {sizes:?}") };
    assert_eq!(probe.file_offset.0, file_offset, "{name}");
    assert_eq!(probe.function, "sendProxyProgress", "{name}");
    // Loads an address from the frame, and copies four bytes from it.
    let [load, copy, ..] = probe.plan.steps;
    assert_eq!((probe.plan.n_steps, load.imm, copy.imm, copy.len), (2, in_frame, 0, 4), "{name}");
    let bytes = fs::read(library).unwrap();
    let at = usize::try_from(file_offset).unwrap();
    assert_eq!(bytes[at..at + 6], [0xc7, 0x00, 0xff, 0xff, 0xff, 0xff], "{name}");
}

/// As it comes, and stripped.
fn check_both(name: &str, library: &Path, file_offset: u64, in_frame: i64) {
    check(name, library, file_offset, in_frame);
    let directory = TempDir::new().unwrap();
    let copy = directory.path().join("libnccl.so.2");
    let Some(mut strip) = tool("binutils", "STRIP", "strip") else { return };
    assert!(strip.arg("--strip-all").arg("-o").arg(&copy).arg(library).status().unwrap().success());
    check(&format!("{name}, stripped"), &copy, file_offset, in_frame);
}

/// What `cargo xtask test` fetches of the table: one library of each frame, and one that keeps the sizes.
const FETCHED: [&str; 3] = ["2.17.1-cu12", "2.19.3-cu12", "2.21.5-cu12"];

#[test]
fn sizes_are_taken_where_they_are_given_up() {
    for (name, file_offset, in_frame) in PLACES {
        if !FETCHED.contains(&name) && !is_long() {
            continue;
        }
        if let Some(library) = nccl(name) {
            check_both(name, &library, file_offset, in_frame);
        }
    }
}
