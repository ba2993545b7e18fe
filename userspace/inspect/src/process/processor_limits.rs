//! Limits of processor time that hold for a process (CFS bandwidth control, `cpu.max`): a container's,
//! mostly. The kernel stops all of a cgroup's threads until the period is over when its time is used up.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{cgroup_folder, read_text};

/// Most cgroups above one another that are looked at.
const MAX_DEPTH: usize = 32;

/// Folders where the kernel's first version of the controller is mounted, and the second.
const FIRST: [&str; 2] = ["cpu", "cpu,cpuacct"];
const SECOND: [&str; 2] = ["", "unified"];

/// `cpu.stat` of the cgroups that a process is in and that have a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ProcessorLimits(Vec<PathBuf>);

/// Periods of a limit so far, and those in which the time was used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    pub periods: u64,
    pub throttled: u64,
}

impl Throttled {
    /// Returns the growth of the limit that was used up most often, between two readings of the same limits.
    fn most(before: &[Self], now: &[Self]) -> Self {
        let growth = before.iter().zip(now).map(|(before, now)| Self {
            periods: now.periods.saturating_sub(before.periods),
            throttled: now.throttled.saturating_sub(before.throttled),
        });
        growth.max_by_key(|growth| growth.throttled).unwrap_or_default()
    }
}

impl ProcessorLimits {
    /// Finds the limits of a process. Where its cgroups cannot be read, there are none.
    fn of(pid: u32) -> Self {
        let text = read_text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        Self::find(&text, Path::new("/sys/fs/cgroup"))
    }

    fn find(cgroups: &str, mounted: &Path) -> Self {
        let mut found = Vec::new();
        for line in cgroups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let mounts = match controllers {
                "" => SECOND,
                _ if controllers.split(',').any(|name| name == "cpu") => FIRST,
                _ => continue,
            };
            for mount in mounts {
                let mount = mounted.join(mount);
                let Some(folder) = cgroup_folder(&mount, path) else { continue };
                let folders = folder.ancestors().take(MAX_DEPTH).filter(|folder| has_limit(folder));
                found.extend(folders.map(|folder| folder.join("cpu.stat")));
            }
        }
        Self(found)
    }

    /// Returns the counts of each limit.
    fn throttled(&self) -> Vec<Throttled> {
        self.0.iter().map(|path| parse(&read_text(path).unwrap_or_default())).collect()
    }
}

/// Looks from one search for the limits of a process to the next: they can be set at any time.
const FIND_EVERY: u32 = 4;

/// How often the limits of a process stop it, from look to look.
#[derive(Clone, Debug, Default)]
pub struct ThrottleWatch {
    limits: ProcessorLimits,
    before: Vec<Throttled>,
    looks: u32,
}

impl ThrottleWatch {
    /// Returns the growth since the last look; 0 at the first, and at those that find other limits.
    pub fn look(&mut self, pid: u32) -> Throttled {
        if self.looks.is_multiple_of(FIND_EVERY) {
            let limits = ProcessorLimits::of(pid);
            if limits != self.limits {
                (self.limits, self.before) = (limits, Vec::new());
            }
        }
        self.looks = self.looks.wrapping_add(1);
        let now = self.limits.throttled();
        let before = std::mem::replace(&mut self.before, now);
        Throttled::most(&before, &self.before)
    }
}

fn has_limit(folder: &Path) -> bool {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let (second, first) = (read("cpu.max"), read("cpu.cfs_quota_us"));
    let is_set = |text: &str| text.trim_start().starts_with(|digit: char| digit.is_ascii_digit());
    is_set(&second) || is_set(&first)
}

fn parse(stat: &str) -> Throttled {
    let count = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    };
    Throttled { periods: count("nr_periods"), throttled: count("nr_throttled") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of Linux 6.18, of both versions of the controller.
    #[test]
    fn limits_of_a_process_are_those_of_its_cgroup_and_of_those_above() {
        let root = tempfile::tempdir().unwrap();
        let make = |folder: &str, files: &[(&str, &str)]| {
            let folder = root.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            for (name, text) in files {
                fs::write(folder.join(name), text).unwrap();
            }
        };
        let stat = "usage_usec 51\nnr_periods 40\nnr_throttled 30\nthrottled_usec 1700000\n";
        make("pods/one/main", &[("cpu.max", "max 100000\n"), ("cpu.stat", "usage_usec 50\n")]);
        make("pods/one", &[("cpu.max", "50000 100000\n"), ("cpu.stat", stat)]);
        make("pods", &[("cpu.max", "max 100000\n")]);
        let first = "nr_periods 7\nnr_throttled 2\nthrottled_time 900\n";
        make("cpu/old", &[("cpu.cfs_quota_us", "10000\n"), ("cpu.stat", first)]);
        make("cpu", &[("cpu.cfs_quota_us", "-1\n")]);

        let second = ProcessorLimits::find("0::/pods/one/main\n", root.path());
        assert_eq!(second.0, [root.path().join("pods/one/cpu.stat")]);
        assert_eq!(second.throttled(), [Throttled { periods: 40, throttled: 30 }]);
        let both = ProcessorLimits::find("3:cpuset:/pods\n2:cpuacct,cpu:/old\n0::/\n", root.path());
        assert_eq!(both.throttled(), [Throttled { periods: 7, throttled: 2 }]);
        for none in ["", "0::/../../pods/one\n", "nonsense\n0:\n", "0::/pods\n"] {
            assert_eq!(ProcessorLimits::find(none, root.path()), ProcessorLimits::default(), "{none:?}");
        }
        fs::remove_file(root.path().join("pods/one/cpu.stat")).unwrap();
        assert_eq!(second.throttled(), [Throttled::default()], "it is gone");
    }

    #[test]
    fn of_several_limits_the_one_that_is_used_up_counts() {
        let counts = |all: &[(u64, u64)]| -> Vec<Throttled> {
            all.iter()
                .map(|(periods, throttled)| Throttled { periods: *periods, throttled: *throttled })
                .collect()
        };
        let most = Throttled::most(&counts(&[(10, 1), (100, 50)]), &counts(&[(20, 2), (110, 58)]));
        assert_eq!(most, Throttled { periods: 10, throttled: 8 });
        assert_eq!(Throttled::most(&[], &counts(&[(1, 1)])), Throttled::default());
        assert_eq!(
            Throttled::most(&counts(&[(9, 9)]), &counts(&[(1, 1)])),
            Throttled::default(),
            "a new one"
        );
    }
}
