//! How often the threads of a process went to sleep.

use std::{collections::HashMap, ffi::OsString, fs, io};

/// Of each thread, which is how often it was woken: `voluntary_ctxt_switches` (proc(5)). One that ends while it is looked at
/// is left out.
pub fn thread_sleeps(pid: u32) -> io::Result<HashMap<OsString, u64>> {
    let of_task = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("status")).ok()?;
        let count = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        Some((task.file_name(), count.trim().parse().ok()?))
    };
    Ok(fs::read_dir(format!("/proc/{pid}/task"))?.flatten().filter_map(of_task).collect())
}
