//! Names of folders and files. Those of several windows, hosts and processes can be copied into one folder
//! without a conflict.

use anyhow::{Context as _, Result};
use flow::session::SessionReport;

use super::output_dir::OutputDir;

/// Longest part of a host's name that is used.
const MAX_HOST: usize = 64;

/// Prefix of the names of windows' folders.
const WINDOW: &str = "window_";

/// Layout of line files in their folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// `<commHash>/…`: ranks of all processes side by side.
    #[default]
    ByCommunicator,
    /// `<host>.<pid>/<commHash>/…`: what a process exported in a window.
    ByProcess,
}

impl Layout {
    /// Returns the layout of a session's files.
    pub fn of(session: &SessionReport) -> Self {
        if session.window.is_some() { Self::ByProcess } else { Self::ByCommunicator }
    }

    /// Returns the path of the folder `name` within the part of this process.
    pub(super) fn folder(self, host: &str, pid: u32, name: &str) -> String {
        match self {
            Self::ByCommunicator => name.to_owned(),
            Self::ByProcess => format!("{}/{name}", process_name(host, pid)),
        }
    }
}

/// Returns a process's name in folder names: `<host>.<pid>`.
pub fn process_name(host: &str, pid: u32) -> String {
    format!("{}.{pid}", host_in_names(host))
}

/// Returns a host's name as used in file names.
pub fn host_in_names(host: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let name: String = host.trim_start_matches('.').chars().filter(is_plain).take(MAX_HOST).collect();
    if name.is_empty() { "host".to_owned() } else { name }
}

/// Returns a window's folder name: number, Unix time in milliseconds, and the host and process that record
/// it; `scope` is for a window that not all processes are in.
pub fn window_name(number: u32, opened_ms: u64, host: &str, scope: Option<&str>) -> String {
    let recorder = process_name(host, std::process::id());
    let scope = scope.map_or_else(String::new, |scope| format!("_{scope}"));
    format!("{WINDOW}{number:04}_{opened_ms}_{recorder}{scope}")
}

/// Returns when the window with this folder was opened, and its number: the sort key of windows.
fn window_order(name: &str) -> Option<(u64, u32)> {
    let mut parts = name.strip_prefix(WINDOW)?.split('_');
    let number = parts.next()?.parse().ok()?;
    Some((parts.next()?.parse().ok()?, number))
}

/// Lists the folders of windows in `dir`, in the order in which they were opened.
pub fn window_folders(dir: &OutputDir) -> Result<Vec<String>> {
    let names = dir.names().with_context(|| format!("cannot list `{}`", dir.path().display()))?;
    let mut windows: Vec<_> =
        names.into_iter().filter_map(|name| Some((window_order(&name)?, name))).collect();
    windows.retain(|(_, name)| dir.open_subfolder(name).is_ok());
    windows.sort();
    Ok(windows.into_iter().map(|(_, name)| name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_windows_hosts_and_processes_apart() {
        let names = [
            window_name(1, 1_700_000_000_000, "node7", None),
            window_name(2, 1_700_000_000_000, "node7", None),
            window_name(1, 1_700_000_000_001, "node7", None),
            window_name(1, 1_700_000_000_000, "node8", None),
            window_name(1, 1_700_000_000_000, "node7", Some("mnt-4026532601")),
        ];
        for (at, name) in names.iter().enumerate() {
            assert!(window_order(name).is_some(), "{name}");
            assert!(!names[..at].contains(name), "{name}");
        }
        // Windows of older versions.
        assert!(
            window_order("window_0001_1755877674248").is_some()
                && window_order("window_0001").is_none()
                && window_order("window_x_1").is_none()
        );
        assert_eq!(process_name("../no de\n7.example", 12), "node7.example.12");
        assert_eq!(process_name("..", 1), "host.1");
    }

    #[test]
    fn windows_are_found_in_their_order() {
        let parent = tempfile::tempdir().unwrap();
        let dir = OutputDir::open(parent.path()).unwrap();
        let sorted = ["window_9999_1000_a.1", "window_10000_1001_a.1", "window_0001_1002_b.1"];
        for name in sorted.iter().chain(&["0x1", "window_1", "recording"]) {
            dir.subfolder(name).unwrap();
        }
        dir.create_file("window_0001_5_x.1").unwrap();
        assert_eq!(window_folders(&dir).unwrap(), sorted);
    }
}
