//! Memory is that of the window, and not that of the file.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use serde_json::Value;

use crate::run::{has_python, json, kineto, python};

const KERNEL: [&str; 2] = ["--kernel-name", "ncclDevKernel_AllReduce%"];

/// The most memory that `ncclflow stacks` has resident while it reads, in KiB: looked at all the time, as what wait4 says is also that
/// of the process before its exec.
fn most_memory(trace: &Path, arguments: &[&str]) -> u64 {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ncclflow"))
        .arg("stacks")
        .arg(trace)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut most = 0;
    loop {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix(" kB"));
        most = peak.map_or(most, |peak| peak.trim().parse().unwrap());
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success() && most > 0);
            return most;
        }
        sleep(Duration::from_millis(1));
    }
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
