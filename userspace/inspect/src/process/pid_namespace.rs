//! Our own PID namespace: tells whether process numbers here are the kernel's own.

use std::{fs, io, os::unix::fs::MetadataExt as _};

/// Inode of `/proc/PID/ns/pid` in the first PID namespace: `PROC_PID_INIT_INO` (include/linux/proc_ns.h,
/// since 3.8).
const FIRST: u64 = 0xEFFF_FFFC;

/// Tells whether process numbers here are those that the kernel side sees.
///
/// # Errors
/// Without `/proc`.
pub fn in_first_pid_namespace() -> io::Result<bool> {
    Ok(fs::metadata("/proc/self/ns/pid")?.ino() == FIRST)
}
