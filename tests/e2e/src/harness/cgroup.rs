//! A cgroup for one process: what its kernel can do to the process from outside.

use std::{fs, io, path::PathBuf, time::Duration};

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
