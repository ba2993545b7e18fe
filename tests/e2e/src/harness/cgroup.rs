//! A cgroup for one process: what its kernel can do to the process from outside, and whose it is.

use std::{fs, io, os::unix::fs::chown, path::PathBuf, time::Duration};

use test_support::skip_always;

/// A cgroup that a process is in until this is dropped; then it runs freely again.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
    pid: u32,
    /// File and text with which the process runs again.
    release: (&'static str, &'static str),
}

/// Where systemd, or the kernel's own names of the first version, mount a controller: the folder, the files and texts
/// that hold a process, in their order, and those that release it.
type Controller<'a> = (&'a str, Vec<(&'a str, String)>, (&'static str, &'static str));

impl Cgroup {
    /// Freezes a process; `None`, as a skip, where no cgroup can be made.
    pub fn freeze(pid: u32) -> Option<Self> {
        let frozen = || vec![("cgroup.freeze", "1".to_owned())];
        let controllers = [
            (
                "/sys/fs/cgroup/freezer",
                vec![("freezer.state", "FROZEN".to_owned())],
                ("freezer.state", "THAWED"),
            ),
            ("/sys/fs/cgroup", frozen(), ("cgroup.freeze", "0")),
            ("/sys/fs/cgroup/unified", frozen(), ("cgroup.freeze", "0")),
        ];
        Self::of("freezer", &controllers, pid)
    }

    /// Takes a process nearly all of its processor time.
    pub fn starve(pid: u32) -> Option<Self> {
        Self::limit(pid, Duration::from_millis(1), Duration::from_secs(1))
    }

    /// Gives a process so much processor time in each period.
    pub fn limit(pid: u32, time: Duration, period: Duration) -> Option<Self> {
        let (time, period) = (time.as_micros().to_string(), period.as_micros().to_string());
        let both = format!("{time} {period}");
        let controllers = [
            (
                "/sys/fs/cgroup/cpu",
                vec![("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", time)],
                ("cpu.cfs_quota_us", "-1"),
            ),
            ("/sys/fs/cgroup", vec![("cpu.max", both)], ("cpu.max", "max 1000000")),
        ];
        Self::of("quota", &controllers, pid)
    }

    fn of(what: &str, controllers: &[Controller<'_>], pid: u32) -> Option<Self> {
        let made = controllers.iter().find_map(|controller| Self::make(controller, pid).ok());
        if made.is_none() {
            // Root of a container may not make any, whatever is required.
            skip_always(&format!("a cgroup with a {what}"), "run as root where cgroups can be made");
        }
        made
    }

    fn make((mount, hold, release): &Controller<'_>, pid: u32) -> io::Result<Self> {
        let folder = PathBuf::from(mount).join(format!("ncclflow-{pid}"));
        fs::create_dir(&folder)?;
        let made = Self { folder, pid, release: *release };
        for (file, _) in hold {
            if !fs::exists(made.folder.join(file))? {
                return Err(io::ErrorKind::Unsupported.into());
            }
        }
        fs::write(made.folder.join("cgroup.procs"), pid.to_string())?;
        for (file, text) in hold {
            fs::write(made.folder.join(file), text)?;
        }
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

/// Cgroups with names of a test's choice, which are removed when this is dropped, once their processes have ended or
/// have been moved out.
#[derive(Debug)]
pub struct Groups {
    mount: PathBuf,
    /// Folders that were made, in their order.
    made: Vec<PathBuf>,
    pids: Vec<u32>,
}

impl Groups {
    /// `None`, as a skip, where no cgroup can be made.
    pub fn new() -> Option<Self> {
        let mounts = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
        let probe = format!("ncclflow-groups-{}", std::process::id());
        let mount = mounts.into_iter().map(PathBuf::from).find(|mount| {
            let folder = mount.join(&probe);
            let is_one = fs::create_dir(&folder).is_ok() && folder.join("cgroup.procs").exists();
            let _ = fs::remove_dir(folder);
            is_one
        });
        if mount.is_none() {
            skip_always("cgroups", "run as root where cgroups can be made");
        }
        mount.map(|mount| Self { mount, made: Vec::new(), pids: Vec::new() })
    }

    /// Makes a cgroup, and those above it that are not there; what is made is the user's.
    pub fn make(&mut self, path: &str, uid: u32) -> io::Result<PathBuf> {
        let mut folder = self.mount.clone();
        for name in path.split('/') {
            folder.push(name);
            match fs::create_dir(&folder) {
                Ok(()) => self.made.push(folder.clone()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        chown(&folder, Some(uid), Some(uid))?;
        Ok(folder)
    }

    /// Makes such a cgroup for a process.
    pub fn put(&mut self, pid: u32, path: &str, uid: u32) -> io::Result<()> {
        let folder = self.make(path, uid)?;
        self.pids.push(pid);
        fs::write(folder.join("cgroup.procs"), pid.to_string())
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for pid in &self.pids {
            let _ = fs::write(self.mount.join("cgroup.procs"), pid.to_string());
        }
        for folder in self.made.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}
