//! A cgroup for one process: what its kernel can do to the process from outside.

use std::{fs, io, path::PathBuf};

use test_support::skip_always;

/// A cgroup that a process is in until this is dropped; then it runs freely again.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
    pid: u32,
    /// File and text with which the process runs again.
    release: (&'static str, &'static str),
}

/// Where systemd, or the kernel's own names of the first version, mount a controller: the folder, the file and text that hold
/// a process, and those that release it.
type Controller = (&'static str, (&'static str, &'static str), (&'static str, &'static str));

const FREEZERS: [Controller; 3] = [
    ("/sys/fs/cgroup/freezer", ("freezer.state", "FROZEN"), ("freezer.state", "THAWED")),
    ("/sys/fs/cgroup", ("cgroup.freeze", "1"), ("cgroup.freeze", "0")),
    ("/sys/fs/cgroup/unified", ("cgroup.freeze", "1"), ("cgroup.freeze", "0")),
];
const QUOTAS: [Controller; 2] = [
    ("/sys/fs/cgroup/cpu", ("cpu.cfs_quota_us", "1000"), ("cpu.cfs_quota_us", "-1")),
    ("/sys/fs/cgroup", ("cpu.max", "1000 1000000"), ("cpu.max", "max 1000000")),
];

impl Cgroup {
    /// Freezes a process; `None`, as a skip, where no cgroup can be made.
    pub fn freeze(pid: u32) -> Option<Self> {
        Self::of("freezer", &FREEZERS, pid)
    }

    /// Takes a process nearly all of its processor time.
    pub fn starve(pid: u32) -> Option<Self> {
        Self::of("quota", &QUOTAS, pid)
    }

    fn of(what: &str, controllers: &[Controller], pid: u32) -> Option<Self> {
        let made = controllers.iter().find_map(|controller| Self::make(controller, pid).ok());
        if made.is_none() {
            // Root of a container may not make any, whatever is required.
            skip_always(&format!("a cgroup with a {what}"), "run as root where cgroups can be made");
        }
        made
    }

    fn make((mount, hold, release): &Controller, pid: u32) -> io::Result<Self> {
        let folder = PathBuf::from(mount).join(format!("ncclflow-{pid}"));
        fs::create_dir(&folder)?;
        let made = Self { folder, pid, release: *release };
        if fs::exists(made.folder.join("cpu.cfs_period_us"))? {
            fs::write(made.folder.join("cpu.cfs_period_us"), "1000000")?;
        }
        if !fs::exists(made.folder.join(hold.0))? {
            return Err(io::ErrorKind::Unsupported.into());
        }
        fs::write(made.folder.join("cgroup.procs"), pid.to_string())?;
        fs::write(made.folder.join(hold.0), hold.1)?;
        Ok(made)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.folder.join(self.release.0), self.release.1);
        if let Some(parent) = self.folder.parent() {
            let _ = fs::write(parent.join("cgroup.procs"), self.pid.to_string());
        }
        let _ = fs::remove_dir(&self.folder);
    }
}
