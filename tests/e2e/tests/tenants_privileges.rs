//! Which capabilities the threads of a recording hold, as the kernel says: those that parse, write or serve
//! hold none.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt as _;

use ncclflow_e2e::harness::{prelude::*, watcher::Watcher};

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
    let workload = "--ranks 2 --iters 20000 --interval-ms 5 --channels 1";
    let Some(world) = World::start(VERSION, workload) else { return };
    let out = world.out();
    let recorder = Recorder::of_node(&out, "--metrics 127.0.0.1:0").unwrap();
    world.bed.go().unwrap();
    progress::wait_for_blocks(&out, 1);
    let held = capabilities(recorder.pid());
    for thread in [
        "ncclflow",
        "ncclflow-drain",
        "ncclflow-keep",
        "ncclflow-rows",
        "ncclflow-metric",
        "ncclflow-detach",
        "ncclflow-launch",
    ] {
        assert_eq!(held.get(thread), Some(&0), "{thread}: {held:x?}");
    }
    assert_eq!(held.get("ncclflow-who"), Some(&(SYS_PTRACE | DAC_READ_SEARCH)), "{held:x?}");
    let attaches = held.values().filter(|held| **held & BPF != 0).count();
    assert_eq!(attaches, 1, "one thread attaches: {held:x?}");
    // What they do they can do without.
    let said = recorder.interrupt().unwrap();
    assert!(said.contains("lost: 0 records, 0 lines"), "{said}");
}

#[test]
fn threads_of_a_watch_read_processes_or_hold_no_capability() {
    let Some(world) = World::start(VERSION, "--mode processes --ranks 2 --iters 20000 --interval-ms 5")
    else {
        return;
    };
    world.bed.go().unwrap();
    let words = format!("-p {} --metrics 0", world.bed.pid_list());
    let watcher = Watcher::start(&world.ncclflow, &words).unwrap();
    let reads = "ncclflow-read";
    wait_until("it reads", Duration::from_mins(1), || capabilities(watcher.pid()).contains_key(reads));
    let held = capabilities(watcher.pid());
    for thread in ["ncclflow", "ncclflow-out", "ncclflow-ports", "ncclflow-metric"] {
        assert_eq!(held.get(thread), Some(&0), "{thread}: {held:x?}");
    }
    for (thread, held) in &held {
        assert!(*held & BPF == 0 && held.count_ones() <= 6, "{thread}: {held:x}");
    }
}

/// In a folder that is another user's, who writes needs one capability, and still writes.
#[test]
fn a_folder_of_another_user_can_be_written_to() {
    let Some(mut world) = World::start(VERSION, "--ranks 2 --iters 50 --channels 1") else { return };
    let out = world.out();
    fs::create_dir(&out).unwrap();
    fs::set_permissions(&out, fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&out, Some(65534), Some(65534)).unwrap();
    let said = world.record_all("");
    assert!(said.contains("lost: 0 records, 0 lines"), "{said}");
}
