//! A thread of another process that is kept from running, while the others go on.

use std::{
    fs, ptr, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// Until a thread of the name must be there: they begin after a program has said that it goes on.
const PATIENCE: Duration = Duration::from_secs(10);

/// A stopped thread. It goes on when this is dropped.
#[derive(Debug)]
pub struct StoppedThread {
    tid: libc::pid_t,
}

impl StoppedThread {
    /// Stops the thread of this name, once there is one.
    pub fn of_name(pid: u32, name: &str) -> Result<Self> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            for entry in fs::read_dir(format!("/proc/{pid}/task")).context("listing the threads")? {
                let path = entry?.path();
                if fs::read_to_string(path.join("comm")).unwrap_or_default().trim() == name {
                    let tid = path.file_name().and_then(|name| name.to_str()?.parse().ok());
                    return Self::stop(tid.context("a thread has a number")?);
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
        bail!("process {pid} has no thread `{name}`")
    }

    fn stop(tid: libc::pid_t) -> Result<Self> {
        let nothing = ptr::null_mut::<libc::c_void>();
        // SAFETY: these requests touch no memory of ours.
        if unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, nothing, nothing) } != 0 {
            bail!("PTRACE_SEIZE of {tid}: {}", std::io::Error::last_os_error());
        }
        let stopped = Self { tid };
        // SAFETY: as above.
        if unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, tid, nothing, nothing) } != 0 {
            bail!("PTRACE_INTERRUPT of {tid}: {}", std::io::Error::last_os_error());
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        if unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) } != tid {
            bail!("waiting for {tid} to stop: {}", std::io::Error::last_os_error());
        }
        Ok(stopped)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let nothing = ptr::null_mut::<libc::c_void>();
        // SAFETY: touches no memory of ours. If the thread is gone there is nothing to do.
        if unsafe { libc::ptrace(libc::PTRACE_DETACH, self.tid, nothing, nothing) } != 0 {
            // One that has ended stays until its tracer has seen it, and keeps its process from ending.
            // SAFETY: no status is asked for.
            unsafe { libc::waitpid(self.tid, ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
        }
    }
}
