//! Description of a process from `/proc`: user, command line, control group, container, namespaces and start.

use flow::identity::{CgroupHolder, Container, SessionUser, cgroup_path};
use std::{collections::HashMap, fs, os::unix::fs::MetadataExt as _, path::Path};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::proc_text::{read_text, real_uid};

use super::{
    cgroup::{self, Cgroupfs},
    printable,
    running::Process,
};

/// Most characters of a command line that are kept.
const MAX_COMMAND: usize = 4096;

/// A process, described.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// The command line, without control characters.
    pub command: String,
    pub uid: u32,
    /// Name in our `/etc/passwd`, or the number where that has none for it.
    pub user: String,
    /// Whole seconds since the process was started.
    pub age_seconds: Option<u64>,
    /// Path of the process's control group.
    pub cgroup: Option<String>,
    pub container: Option<Container>,
    /// User in whose session the process is, if that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_user: Option<SessionUser>,
    /// Set if the process sees other mounts than we do.
    pub own_mounts: bool,
    /// Set if the process is in another PID namespace than we are.
    pub own_pids: bool,
}

/// Names of users, read once.
#[derive(Debug, Default)]
pub struct Users(HashMap<u32, String>);

impl Users {
    /// Reads the users of `/etc/passwd`. Directory services are not asked: that can take seconds, and needs a
    /// C library at run time.
    pub fn read() -> Self {
        Self::parse(&read_text("/etc/passwd").unwrap_or_default())
    }

    /// Tells whether a user has this name.
    pub fn has_name(&self, name: &str) -> bool {
        self.0.values().any(|known| known == name)
    }

    fn parse(text: &str) -> Self {
        let mut names = HashMap::new();
        for line in text.lines() {
            let mut fields = line.split(':');
            if let (Some(name), Some(_), Some(Ok(uid))) =
                (fields.next(), fields.next(), fields.next().map(str::parse))
            {
                names.entry(uid).or_insert_with(|| printable(name));
            }
        }
        Self(names)
    }

    /// Returns the user's name, or the number.
    pub fn name(&self, uid: u32) -> String {
        self.0.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }
}

impl Description {
    /// Reads what `/proc` says of the process. Values that it does not give are left empty.
    /// `command`: its command line, as /proc/PID/cmdline has it.
    pub fn read(process: &Process, users: &Users, command: &[u8]) -> Self {
        let proc = process.proc_path();
        let real = read_text(proc.join("status")).ok().and_then(|status| real_uid(&status));
        let uid = fs::metadata(&proc).map_or(u32::MAX, |metadata| real.unwrap_or(metadata.uid()));
        let cgroups = read_text(proc.join("cgroup")).unwrap_or_default();
        let (container, session_user) = holder(&cgroups, uid, users);
        let command = String::from_utf8_lossy(command);
        let command = command.trim_end_matches('\0').replace('\0', " ");
        Self {
            command: printable(&command.chars().take(MAX_COMMAND).collect::<String>()),
            uid,
            user: users.name(uid),
            age_seconds: process.started().and_then(age_seconds),
            cgroup: cgroup_path(&cgroups).map(printable),
            container,
            session_user,
            own_mounts: is_other_namespace(&proc, "mnt"),
            own_pids: process.own_pid() != process.pid() || is_other_namespace(&proc, "pid"),
        }
    }
}

/// Returns the container of a process of this user, or another user in whose session it is, by the text of its
/// `/proc/PID/cgroup`.
pub(super) fn holder(cgroups: &str, uid: u32, users: &Users) -> (Option<Container>, Option<SessionUser>) {
    match cgroup::holder(cgroups, &Cgroupfs::default()) {
        Some(CgroupHolder::Container(container)) => (Some(container), None),
        Some(CgroupHolder::User(of)) if of != uid => {
            (None, Some(SessionUser { uid: of, user: users.name(of) }))
        }
        Some(CgroupHolder::User(_)) | None => (None, None),
    }
}

/// Returns whole seconds since `started`, which is in clock ticks after the start of the system.
pub fn age_seconds(started: u64) -> Option<u64> {
    let now = u64::try_from(clock_gettime(ClockId::Boottime).tv_sec).ok()?;
    Some(now.saturating_sub(started.checked_div(rustix::param::clock_ticks_per_second())?))
}

fn is_other_namespace(proc: &Path, kind: &str) -> bool {
    let of = |proc: &Path| fs::read_link(proc.join("ns").join(kind)).ok();
    matches!((of(proc), of(Path::new("/proc/self"))), (Some(theirs), Some(ours)) if theirs != ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_described() {
        let process = Process::open(std::process::id()).unwrap();
        let command = fs::read("/proc/self/cmdline").unwrap();
        let description = Description::read(&process, &Users::read(), &command);
        assert_eq!(description.uid, rustix::process::getuid().as_raw());
        assert!(!description.own_mounts && !description.own_pids);
        assert!(description.command.contains(&std::env::args().next().unwrap()), "{}", description.command);
        assert!(description.age_seconds.unwrap() < 24 * 3600);
    }

    #[test]
    fn users_have_names_or_numbers() {
        let users =
            Users::parse("root:x:0:0:root:/root:/bin/sh\nother:x:0:0::/:\nbroken\nann:x:1000:1000::/:\n");
        assert_eq!(
            (users.name(0), users.name(1000), users.name(7)),
            ("root".into(), "ann".into(), "7".into())
        );
    }
}
