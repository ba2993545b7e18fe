//! What the kernel says of a process (proc(5)), and of what is on a disk.

use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt as _, path::Path};

/// A line of `/proc/PID/status`, without its name; nothing if the process is gone.
pub fn status_field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// Bytes of memory that it has, of its own and of files; 0 if it is gone.
pub fn resident_bytes(pid: u32) -> u64 {
    bytes(pid, "VmRSS")
}

/// Bytes of memory that are the process's own, and no pages of files (`RssAnon` of proc_pid_status(5)).
pub fn anonymous_bytes(pid: u32) -> u64 {
    bytes(pid, "RssAnon")
}

fn bytes(pid: u32, field: &str) -> u64 {
    let kib = status_field(pid, field).and_then(|field| field.split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// The children of all of its threads.
pub fn children_of(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect()
}

/// Bytes that `du` shows of a folder: blocks of files, each once, and of folders. What is last in the order of names is
/// looked at first, such as the latest windows: what is removed, or compressed, between two looks is then counted once at
/// most, and what grows meanwhile not at all.
pub fn on_disk(path: &Path) -> u64 {
    fn add(path: &Path, seen: &mut BTreeSet<u64>, sum: &mut u64) {
        let Ok(metadata) = fs::symlink_metadata(path) else { return };
        if seen.insert(metadata.ino()) {
            *sum += metadata.blocks() * 512;
        }
        let inside = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let paths: BTreeSet<_> = inside.collect();
        paths.iter().rev().for_each(|path| add(path, seen, sum));
    }
    let mut sum = 0;
    add(path, &mut BTreeSet::new(), &mut sum);
    sum
}
