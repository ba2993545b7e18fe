//! Memory is that of the window, and not that of the file.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::pipe::fcntl_getpipe_size;
use serde_json::Value;
use test_support::wait_until;

use crate::run::{has_python, json, kineto, python};

const KERNEL: [&str; 2] = ["--kernel-name", "ncclDevKernel_AllReduce%"];

/// The most memory that `ncclflow stacks` has resident while it reads, in KiB: looked at before it ends, as
/// what wait4 says is also that of the process before its exec.
fn most_memory(trace: &Path, arguments: &[&str]) -> u64 {
    let written = trace.with_extension("txt");
    // A full pipe: when all is written, it wants to say so, and waits.
    let (mut told, mut full) = io::pipe().unwrap();
    full.write_all(&vec![b'.'; fcntl_getpipe_size(&full).unwrap()]).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_ncclflow"))
        .arg("stacks")
        .arg(trace)
        .args(arguments)
        .arg("--output")
        .arg(&written)
        .stdout(Stdio::null())
        .stderr(full)
        .spawn()
        .unwrap();
    wait_until("it has written what it found", Duration::from_mins(2), || written.exists());
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let mut said = String::new();
    told.read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    fs::remove_file(&written).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix(" kB"));
    peak.unwrap().trim().parse().unwrap()
}

#[test]
fn a_long_trace_takes_no_more_memory_than_a_short_one() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = kineto("ddp");
    let repeated = |name: &str, bytes: usize| {
        let path = folder.path().join(name);
        let arguments = [source.to_str().unwrap(), path.to_str().unwrap(), &bytes.to_string()];
        let repetitions: u64 = python("repeat.py", &arguments).trim().parse().unwrap();
        assert!(fs::metadata(&path).unwrap().len() > bytes as u64);
        (path, repetitions)
    };
    let (short, _) = repeated("short.json", 1 << 20);
    let (long, repetitions) = repeated("long.json", 24 << 20);
    assert!(repetitions > 20);
    // The second call of `evaluate`, by its times.
    let window = [&KERNEL[..], &["--start-ts", "4502092773262560", "--duration", "1193987"]].concat();
    // It maps those pages of its program that are in memory already: the first run has less.
    most_memory(&short, &window);
    let (of_short, of_long) = (most_memory(&short, &window), most_memory(&long, &window));
    assert!(of_long < of_short + 1024, "{of_short} KiB and {of_long} KiB");
    // The window of the long trace says what that of the short one does, and the whole all of it.
    assert_eq!(json(&long, &window), json(&short, &window));
    let counts = |trace: &Path| -> Vec<u64> {
        let stacks = json(trace, &KERNEL)["stacks"].as_array().unwrap().clone();
        stacks.iter().map(|stack: &Value| stack["count"].as_u64().unwrap()).collect()
    };
    assert_eq!(counts(&long), counts(&source).iter().map(|count| count * repetitions).collect::<Vec<_>>());
}
