//! A running process, held by a pidfd, so that another process with the same PID is not mistaken for it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use thiserror::Error;

use super::printable;
use crate::proc_text::{has_ended, read_text, stat_field, status_field};

/// A process that is traced. PIDs are those of our own PID namespace unless a name says otherwise.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    /// Number of a thread that has not ended.
    live_thread: u32,
    pidfd: OwnedFd,
    /// PIDs in every PID namespace from ours inwards; the last is the one that the process itself sees.
    namespace_pids: Vec<u32>,
    /// The kernel's short name of the process.
    name: String,
}

/// Reason for which a process cannot be a target.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// No process has this number (or it is that of a thread).
    #[error("there is no process {0}: it has exited, or never was (`nvidia-smi` has the PIDs of GPU jobs)")]
    Missing(u32),
    /// The process exists, but the kernel does not let us look at it.
    #[error("process {0} cannot be inspected ({1}): run as root, in the host's PID namespace")]
    Denied(u32, io::Error),
    #[error("process {0} cannot be inspected: {1}")]
    Other(u32, io::Error),
}

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
        let live_thread = if has_ended(&status) { other_thread(pid).unwrap_or(pid) } else { pid };
        Ok(Self { pid, live_thread, pidfd, namespace_pids, name })
    }

    /// Tells whether the first thread has ended since the process was opened, and the process lives on.
    pub fn needs_another_thread(&self) -> bool {
        let has_ended =
            || read_text(proc_path(self.pid).join("status")).is_ok_and(|status| has_ended(&status));
        !self.has_lost_its_first_thread() && !self.has_exited() && has_ended()
    }

    /// Takes the process by a thread that lives.
    #[must_use]
    pub fn by_live_thread(mut self) -> Self {
        if self.needs_another_thread() {
            self.live_thread = other_thread(self.pid).unwrap_or(self.pid);
        }
        self
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the number under which the kernel has the process's memory: the PID; once the first thread has
    /// ended and others go on, the number of one of them. Whoever reads by it has to check [`Self::is_live`]
    /// after.
    pub fn live_thread(&self) -> u32 {
        self.live_thread
    }

    /// Tells whether the first thread had ended, and the process lived on.
    pub fn has_lost_its_first_thread(&self) -> bool {
        self.live_thread != self.pid
    }

    /// Tells whether the process has not exited, and [`Self::live_thread`] is one of its threads: so the
    /// number was given to nobody else.
    pub fn is_live(&self) -> bool {
        let is_thread = || task_folder(&proc_path(self.pid), self.live_thread).exists();
        !self.has_exited() && (!self.has_lost_its_first_thread() || is_thread())
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

    /// Tells whether the process has exited, or has given its memory back and is about to.
    pub fn is_ending(&self) -> bool {
        let status = || read_text(self.proc_path().join("status"));
        // All programs have a size, kernel threads and what exits have none.
        self.has_exited() || status().is_ok_and(|status| status_field(&status, "VmSize").is_none())
    }

    /// Returns when the process was started, in clock ticks since boot: field 22 of /proc/PID/stat (proc(5)).
    /// PID and start together identify a process.
    pub fn started(&self) -> Option<u64> {
        started(self.pid)
    }

    /// Returns `/proc/PID`, with the number of a thread that has not ended.
    pub fn proc_path(&self) -> PathBuf {
        proc_path(self.live_thread)
    }

    /// Returns the numbers of the threads, in the order in which the kernel lists them; of a process that has
    /// exited none.
    pub fn thread_ids(&self) -> impl Iterator<Item = u32> + use<> {
        thread_ids(&self.proc_path())
    }

    /// Returns `/proc/PID/task/TID`.
    pub fn task_path(&self, tid: u32) -> PathBuf {
        task_folder(&self.proc_path(), tid)
    }

    /// Returns the number that the process sees of one of its threads; it differs from `tid` in a container.
    pub fn own_thread_id(&self, tid: u32) -> Option<u32> {
        if self.namespace_pids.len() == 1 {
            return Some(tid);
        }
        let status = read_text(self.task_path(tid).join("status")).ok()?;
        status_field(&status, "NSpid")?.split_whitespace().last()?.parse().ok()
    }
}

fn thread_ids(process: &Path) -> impl Iterator<Item = u32> + use<> {
    let entries = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn task_folder(process: &Path, tid: u32) -> PathBuf {
    process.join("task").join(tid.to_string())
}

/// Returns a thread of the process that has not ended; of the first [`MAX_THREADS`].
fn other_thread(pid: u32) -> Option<u32> {
    /// Maximum number of threads that are looked at.
    const MAX_THREADS: usize = 4096;
    let folder = proc_path(pid);
    let is_live = |tid: &u32| {
        read_text(task_folder(&folder, *tid).join("status")).is_ok_and(|status| !has_ended(&status))
    };
    thread_ids(&folder).take(MAX_THREADS).find(is_live)
}

/// Returns [`Process::started`] of whichever process has the number now.
pub fn started(pid: u32) -> Option<u64> {
    try_started(pid).ok().flatten()
}

/// Returns the start as [`started`] does; an error says why it is not known.
pub fn try_started(pid: u32) -> io::Result<Option<u64>> {
    stat_number(pid, 22)
}

/// Tells whether the error says that no process has the number.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Tells whether a process is a kernel thread, which has no memory of its own. Any user may read this
/// (proc(5), field 9; `PF_KTHREAD` in include/linux/sched.h).
pub(crate) fn is_kernel_thread(pid: u32) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    stat_number(pid, 9).is_ok_and(|flags| flags.is_some_and(|flags| flags & PF_KTHREAD != 0))
}

/// Returns a number of /proc/PID/stat, see [`stat_field`].
fn stat_number(pid: u32, field: usize) -> io::Result<Option<u64>> {
    let text = read_text(proc_path(pid).join("stat"))?;
    Ok(stat_field(&text, field).and_then(|value| value.parse().ok()))
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

    /// A program whose first thread ends alone, as by pthread_exit(3).
    #[test]
    fn a_process_whose_first_thread_has_ended_is_read_by_another() {
        const SCRIPT: &str = "import ctypes, threading, time\n\
            threading.Thread(target=time.sleep, args=(60,)).start()\n\
            ctypes.CDLL(None).pthread_exit(None)";
        let child = std::process::Command::new("python3").args(["-c", SCRIPT]).spawn();
        if !test_support::need("python3", child.is_ok(), "install python3") {
            return;
        }
        let mut child = child.unwrap();
        test_support::wait_until("its first thread has ended", std::time::Duration::from_secs(20), || {
            fs::read_to_string(proc_path(child.id()).join("status")).is_ok_and(|status| has_ended(&status))
        });
        let process = Process::open(child.id()).unwrap();
        assert!(process.has_lost_its_first_thread() && process.is_live() && !process.has_exited());
        // What `maps` of the first thread does not have any more.
        assert!(!fs::read(process.proc_path().join("maps")).unwrap().is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_live());
    }

    #[test]
    fn a_number_that_no_process_can_have_is_missing() {
        assert!(matches!(Process::open(u32::MAX), Err(ProcessError::Missing(_))));
        assert!(matches!(Process::open(i32::MAX as u32), Err(ProcessError::Missing(_))));
    }
}
