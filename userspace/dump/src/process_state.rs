//! State of a process, as the kernel has it: whether it can go on at all.

use std::path::Path;

use serde::{Deserialize, Serialize};

use inspect::process::{Process, cgroup_folder, has_ended, printable, read_text, stat_field, status_field};

/// Flag of a task that is exiting (`PF_EXITING`, include/linux/sched.h).
const EXITING: u64 = 0x4;

/// State of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessState {
    Running,
    /// Stopped by a signal or by a debugger: state T of /proc/PID/status.
    Stopped,
    /// Held by the freezer of its cgroup.
    Frozen,
    /// Writing its core, or exiting in the kernel: it holds its memory and its sockets, and runs no code of
    /// its own any more.
    Dying,
    /// Ready to run at all readings, without a processor: seen in the activity between readings.
    Starved,
    Exited,
    #[default]
    #[serde(other)]
    Unknown,
}

impl ProcessState {
    /// Reads the state of a process.
    pub(super) fn read(process: &Process) -> Self {
        if process.has_exited() {
            return Self::Exited;
        }
        let folder = process.proc_path();
        let status = read_text(folder.join("status")).unwrap_or_default();
        let letter = status_field(&status, "State").and_then(|state| state.bytes().next());
        match letter {
            None => return Self::Unknown,
            Some(b'Z' | b'X') => return Self::Exited,
            Some(_) => {}
        }
        let is_exiting = || read_text(folder.join("stat")).is_ok_and(|stat| is_exiting(&stat));
        if status_field(&status, "CoreDumping") == Some("1") || is_exiting() {
            return Self::Dying;
        }
        let cgroups = read_text(folder.join("cgroup")).unwrap_or_default();
        if is_frozen(&cgroups, Path::new("/sys/fs/cgroup")) {
            return Self::Frozen;
        }
        if matches!(letter, Some(b'T' | b't')) { Self::Stopped } else { Self::Running }
    }

    /// Tells whether the process runs no code of its own now.
    pub(super) fn is_halted(self) -> bool {
        self.reason().is_some()
    }

    /// Returns what holds the process: two words for lists, and a clause.
    pub(super) fn reason(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::Stopped => ("is stopped", "is in state T (SIGSTOP or a debugger)"),
            Self::Frozen => ("is stopped", "is held by the freezer of its cgroup"),
            Self::Dying => ("is dying", "writes its core or exits, and runs no code of its own any more"),
            Self::Starved => (
                "gets no processor",
                "is ready to run and got no processor: the CPU quota of its cgroup is used up, or other programs \
                 have the processors",
            ),
            Self::Running | Self::Exited | Self::Unknown => return None,
        })
    }
}

/// Tells whether the flags of a task in /proc/PID/stat say that it is exiting.
fn is_exiting(stat: &str) -> bool {
    let flags = stat_field(stat, 9).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0)
}

/// Tells whether one of the cgroups of /proc/PID/cgroup is frozen, by itself or by one above it. `mounts` is
/// the folder of the cgroup file systems, as systemd mounts them.
fn is_frozen(cgroups: &str, mounts: &Path) -> bool {
    let is_frozen = |mount: &str, path: &str, file: &str, says: fn(&str) -> bool| {
        let folder = cgroup_folder(&mounts.join(mount), path);
        folder.is_some_and(|folder| read_text(folder.join(file)).is_ok_and(|text| says(&text)))
    };
    cgroups.lines().any(|line| {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            return false;
        };
        match controllers {
            "" => ["", "unified"].iter().any(|mount| {
                is_frozen(mount, path, "cgroup.events", |text| text.lines().any(|line| line == "frozen 1"))
            }),
            "freezer" => is_frozen("freezer", path, "freezer.state", |text| text.trim() != "THAWED"),
            _ => false,
        }
    })
}

/// Returns the names of the threads of a process that have not ended.
pub(super) fn live_threads(process: &Process) -> Vec<String> {
    /// Maximum number of threads that are looked at.
    const MAX_THREADS: usize = 256;
    let name = |tid: u32| {
        let status = read_text(process.task_path(tid).join("status")).ok()?;
        status_field(&status, "Name").filter(|_| !has_ended(&status)).map(printable)
    };
    process.thread_ids().take(MAX_THREADS).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_task_that_exits_is_known_whatever_its_name() {
        let stat = |name: &str, flags: u64| format!("7 ({name}) D 1 7 7 0 -1 {flags} 0 0");
        assert!(is_exiting(&stat("a", 0x40_0044)));
        assert!(is_exiting(&stat(") S 1 1 1 1 1 0", 0x4)));
        assert!(!is_exiting(&stat(") S 1 1 1 1 1 4", 0x40_0040)));
        assert!(!is_exiting("") && !is_exiting("7 (a"));
    }

    #[test]
    fn a_frozen_cgroup_is_known_in_both_versions_and_no_way_leads_out() {
        let folder = tempfile::tempdir().unwrap();
        let place = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        place("job/cgroup.events", "populated 1\nfrozen 1\n");
        place("other/cgroup.events", "populated 1\nfrozen 0\n");
        place("freezer/old/freezer.state", "FREEZING\n");
        place("freezer/new/freezer.state", "THAWED\n");
        let is = |cgroups: &str| is_frozen(cgroups, folder.path());
        assert!(is("0::/job\n") && is("4:memory:/x\n3:freezer:/old\n"));
        assert!(!is("0::/other\n") && !is("3:freezer:/new\n") && !is("0::/\n") && !is("") && !is("job"));
        assert!(!is("0::/other/../job\n"));
    }

    #[test]
    fn we_run() {
        assert_eq!(ProcessState::read(&Process::open(std::process::id()).unwrap()), ProcessState::Running);
    }
}
