//! Which capabilities the threads of a recording hold, as the kernel says: those that parse, write or serve
//! hold none.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _};

use ncclflow_e2e::harness::{bed::Bed, programs, progress, recorder::Recorder};
use test_support::root;

const VERSION: &str = "2.27.5-cu12";

/// Bits of `CapEff`, by include/uapi/linux/capability.h.
const DAC_READ_SEARCH: u64 = 1 << 2;
const SYS_PTRACE: u64 = 1 << 19;
const BPF: u64 = 1 << 39;

/// By name of the thread. Of several with one name those that hold the most.
fn capabilities(pid: u32) -> BTreeMap<String, u64> {
    let mut held = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim();
        let effective = u64::from_str_radix(field("CapEff:"), 16).unwrap();
        assert_eq!(field("CapPrm:"), field("CapEff:"), "what is not effective is not permitted");
        let known: &mut u64 = held.entry(field("Name:").to_owned()).or_default();
        *known |= effective;
    }
    held
}

#[test]
fn threads_that_parse_write_or_serve_hold_no_capability() {
    let (Some(ncclflow), Some(bed), Some(library), true) =
        (programs::ncclflow(), programs::bed(), programs::nccl(VERSION), root())
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let job = ["--ranks", "2", "--iters", "20000", "--interval-ms", "5", "--channels", "1"];
    let bed = Bed::start(&bed, &library, folder.path(), &job).unwrap();
    let out = folder.path().join("out");
    let more = ["--metrics", "127.0.0.1:0"];
    let recorder = Recorder::start_all(&ncclflow, &out, &more).unwrap();
    bed.go().unwrap();
    progress::wait_for_blocks(&out, 1);
    let held = capabilities(recorder.pid());
    for thread in
        ["ncclflow", "ncclflow-drain", "ncclflow-keep", "ncclflow-rows", "ncclflow-metric", "ncclflow-detach"]
    {
        assert_eq!(held.get(thread), Some(&0), "{thread}: {held:x?}");
    }
    assert_eq!(held.get("ncclflow-who"), Some(&(SYS_PTRACE | DAC_READ_SEARCH)), "{held:x?}");
    let attaches = held.values().filter(|held| **held & BPF != 0).count();
    assert_eq!(attaches, 1, "one thread attaches: {held:x?}");
    // What they do they can do without.
    let said = recorder.interrupt().unwrap();
    assert!(said.contains("lost: 0 records, 0 lines"), "{said}");
}

/// In a folder that is another user's, who writes needs one capability, and still writes.
#[test]
fn a_folder_of_another_user_can_be_written_to() {
    let (Some(ncclflow), Some(bed), Some(library), true) =
        (programs::ncclflow(), programs::bed(), programs::nccl(VERSION), root())
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::set_permissions(&out, fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&out, Some(65534), Some(65534)).unwrap();
    let job = ["--ranks", "2", "--iters", "50", "--channels", "1"];
    let mut bed = Bed::start(&bed, &library, folder.path(), &job).unwrap();
    let recorder = Recorder::start(&ncclflow, &bed.pid_list(), &out, &[]).unwrap();
    bed.go().unwrap();
    assert!(bed.finish().unwrap().1.ok);
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success() && said.contains("lost: 0 records, 0 lines"), "{said}");
}
