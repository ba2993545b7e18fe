//! A running process, held by a pidfd, so that another process with the same PID is not mistaken for it.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{
    printable,
    proc_text::{read_text, status_field},
};

/// A process that is traced. PIDs are those of our own PID namespace unless a name says otherwise.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    pidfd: OwnedFd,
    /// PIDs in every PID namespace from ours inwards; the last is the one that the process itself sees.
    namespace_pids: Vec<u32>,
    /// The kernel's short name of the process.
    name: String,
}

/// Reason for which a process cannot be a target.
#[derive(Debug)]
pub enum ProcessError {
    /// No process has this number (or it is that of a thread).
    Missing(u32),
    /// The process exists, but the kernel does not let us look at it.
    Denied(u32, io::Error),
    Other(u32, io::Error),
}

impl fmt::Display for ProcessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(pid) => write!(
                f,
                "there is no process {pid}: it has exited, or never was (`nvidia-smi` has the PIDs of GPU jobs)"
            ),
            Self::Denied(pid, error) => write!(
                f,
                "process {pid} cannot be inspected ({error}): run as root, in the host's PID namespace"
            ),
            Self::Other(pid, error) => write!(f, "process {pid} cannot be inspected: {error}"),
        }
    }
}

impl std::error::Error for ProcessError {}

impl ProcessError {
    fn new(pid: u32, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing(pid),
            io::ErrorKind::PermissionDenied => Self::Denied(pid, error),
            _ if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Self::Missing(pid),
            _ => Self::Other(pid, error),
        }
    }
}

impl Process {
    /// Takes hold of the process `pid`.
    pub fn open(pid: u32) -> Result<Self, ProcessError> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(ProcessError::Missing(pid))?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).map_err(|errno| match errno {
            // A thread that leads no process.
            rustix::io::Errno::INVAL => ProcessError::Missing(pid),
            errno => ProcessError::new(pid, errno.into()),
        })?;
        let status =
            read_text(proc_path(pid).join("status")).map_err(|error| ProcessError::new(pid, error))?;
        let namespace_pids = status_field(&status, "NSpid")
            .map(|pids| pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
            .unwrap_or_default();
        let name = printable(status_field(&status, "Name").unwrap_or_default());
        Ok(Self { pid, pidfd, namespace_pids, name })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number that the process sees of itself; it differs from [`Process::pid`] in a container.
    pub fn own_pid(&self) -> u32 {
        self.namespace_pids.last().copied().unwrap_or(self.pid)
    }

    /// Returns a descriptor that is readable once the process has exited.
    pub fn exit_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Tells whether the process has exited.
    pub fn has_exited(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Returns when the process was started, in clock ticks since boot: field 22 of /proc/PID/stat (proc(5)).
    /// PID and start together identify a process.
    pub fn started(&self) -> Option<u64> {
        started(self.pid)
    }

    /// Returns `/proc/PID`.
    pub fn proc_path(&self) -> PathBuf {
        proc_path(self.pid)
    }
}

/// Returns [`Process::started`] of whichever process has the number now.
pub fn started(pid: u32) -> Option<u64> {
    try_started(pid).ok().flatten()
}

/// Returns the start as [`started`] does; an error says why it is not known.
pub fn try_started(pid: u32) -> io::Result<Option<u64>> {
    stat_field(pid, 22)
}

/// Tells whether the error says that no process has the number.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Tells whether a process is a kernel thread, which has no memory of its own. Any user may read this
/// (proc(5), field 9; `PF_KTHREAD` in include/linux/sched.h).
pub(crate) fn is_kernel_thread(pid: u32) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    stat_field(pid, 9).is_ok_and(|flags| flags.is_some_and(|flags| flags & PF_KTHREAD != 0))
}

/// Returns a number of /proc/PID/stat, by proc(5)'s count; it must stand behind the name.
fn stat_field(pid: u32, field: usize) -> io::Result<Option<u64>> {
    let text = read_text(proc_path(pid).join("stat"))?;
    // The name stands in parentheses and may hold anything. The third field follows.
    let fields = text.rsplit_once(')').map(|(_, fields)| fields);
    let value = fields.and_then(|fields| fields.split_ascii_whitespace().nth(field.checked_sub(3)?));
    Ok(value.and_then(|value| value.parse().ok()))
}

fn proc_path(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn we_are_a_process_and_still_run() {
        let process = Process::open(std::process::id()).unwrap();
        assert_eq!(process.pid(), std::process::id());
        assert!(!process.name().is_empty());
        assert!(!process.has_exited());
        assert!(process.started().is_some() && !is_kernel_thread(std::process::id()));
    }

    /// `ps` shows kernel threads in brackets, as they have no command line.
    #[test]
    fn kernel_threads_are_told_by_their_flag() {
        for name in fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name()) {
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if is_kernel_thread(pid) {
                let command = fs::read(proc_path(pid).join("cmdline")).unwrap_or_default();
                assert!(command.is_empty(), "{pid}");
            }
        }
    }

    #[test]
    fn a_child_that_ended_is_seen_to_have_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(!process.has_exited());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.has_exited());
    }

    #[test]
    fn a_number_that_no_process_can_have_is_missing() {
        assert!(matches!(Process::open(u32::MAX), Err(ProcessError::Missing(_))));
        assert!(matches!(Process::open(i32::MAX as u32), Err(ProcessError::Missing(_))));
    }
}
