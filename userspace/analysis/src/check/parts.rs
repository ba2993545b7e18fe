//! Groups folders that are analysed together. A folder with windows is analysed window by window, in their
//! order; windows of several hosts that were open at the same time belong together.

use crate::sources::{ensure_each_once, recordings_in};
use recording::sinks::{OutputDir, read_session, window_folders};
use std::path::{Path, PathBuf};

use anyhow::Result;

/// Folders whose ranks belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) folders: Vec<PathBuf>,
    /// Names of the windows, if the folders are windows of the given folders.
    pub(super) windows: Option<String>,
}

#[derive(Clone, Debug)]
struct Window {
    path: PathBuf,
    /// Name of its folder.
    name: String,
    /// Host and process that recorded it.
    recorder: String,
    /// Wall time in which it was open; open-ended without a known end.
    from_ns: u64,
    until_ns: u64,
}

impl Window {
    fn find(folder: &Path, dir: &OutputDir, name: String) -> Self {
        // The name has number and time; then, since this version, who recorded it.
        let recorder = name.splitn(4, '_').nth(3).map(str::to_owned);
        let (mut host, mut from_ns, mut until_ns) = (String::new(), 0, 0);
        let session = dir.open_subfolder(&name).and_then(|window| read_session(&window)).unwrap_or_default();
        if let Some(window) = &session.window {
            let wall = |at: u64| at.saturating_add(session.clock.offset_ns);
            (host, from_ns) = (session.host, wall(window.opened_monotonic_ns));
            until_ns = window.closed_monotonic_ns.map_or(u64::MAX, wall);
        }
        let recorder = recorder.unwrap_or(host);
        Self { path: folder.join(&name), name, recorder, from_ns, until_ns }
    }

    /// Tells whether both were open for more than half of the shorter one's time.
    fn overlaps(&self, other: &Self) -> bool {
        let length = |window: &Self| window.until_ns.saturating_sub(window.from_ns);
        let both = self.until_ns.min(other.until_ns).saturating_sub(self.from_ns.max(other.from_ns));
        both > length(self).min(length(other)) / 2
    }
}

/// Groups folders. Those without windows are one part, which comes first.
pub(super) fn parts(folders: &[PathBuf]) -> Result<Vec<Part>> {
    let (mut plain, mut groups) = (Vec::new(), Vec::<Vec<Window>>::new());
    ensure_each_once(folders)?;
    for folder in folders {
        let dir = OutputDir::open_to_read(folder)?;
        let names = window_folders(&dir)?;
        if names.is_empty() {
            plain.extend(recordings_in(folder)?);
        }
        for name in names {
            let window = Window::find(folder, &dir, name);
            let group = groups.iter_mut().find(|group| {
                group.first().is_some_and(|first| first.overlaps(&window))
                    && group.iter().all(|other| other.recorder != window.recorder)
            });
            match group {
                Some(group) => group.push(window),
                None => groups.push(vec![window]),
            }
        }
    }
    groups.sort_by_key(|group| group.first().map(|first| first.from_ns));
    let plain = (!plain.is_empty()).then_some(Part { folders: plain, windows: None });
    let of_windows = groups.into_iter().map(|group| Part {
        windows: Some(group.iter().map(|window| &*window.name).collect::<Vec<_>>().join(", ")),
        folders: group.into_iter().map(|window| window.path).collect(),
    });
    Ok(plain.into_iter().chain(of_windows).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Makes a window; times are in seconds.
    fn window(parent: &Path, name: &str, host: &str, from: u64, until: u64) {
        let folder = parent.join(name);
        fs::create_dir_all(&folder).unwrap();
        let clock = format!(
            r#"{{"clock":"CLOCK_MONOTONIC","started_monotonic_ns":0,"started_realtime_ns":0,"offset_ns":{},"ended_monotonic_ns":null}}"#,
            // Clocks of hosts begin when they were started.
            if host == "a" { 0 } else { 500_000_000_000u64 }
        );
        let shift = if host == "a" { 0 } else { 500 };
        let ns = |at: u64| (at - shift) * 1_000_000_000;
        let window = format!(r#"{{"opened_monotonic_ns":{},"closed_monotonic_ns":{}}}"#, ns(from), ns(until));
        let session = format!(r#"{{"host":"{host}","clock":{clock},"window":{window}}}"#);
        fs::write(folder.join("session.json"), session).unwrap();
    }

    #[test]
    fn windows_that_were_open_at_the_same_time_belong_together() {
        let parent = tempfile::tempdir().unwrap();
        let (a, b, plain) = (parent.path().join("a"), parent.path().join("b"), parent.path().join("plain"));
        fs::create_dir_all(plain.join("recording")).unwrap();
        window(&a, "window_0001_1000000_a.7", "a", 1000, 1010);
        window(&a, "window_0002_1010000_a.7", "a", 1010, 1020);
        window(&b, "window_0004_1011000_b.7", "b", 1011, 1021);
        window(&b, "window_0003_1001000", "b", 1001, 1011);
        let found = parts(&[a, plain.clone(), b]).unwrap();
        assert_eq!(found[0], Part { folders: vec![plain], windows: None });
        let names: Vec<&str> = found[1..].iter().map(|part| part.windows.as_deref().unwrap()).collect();
        assert_eq!(
            names,
            [
                "window_0001_1000000_a.7, window_0003_1001000",
                "window_0002_1010000_a.7, window_0004_1011000_b.7"
            ]
        );
        assert!(found[1].folders[1].ends_with("b/window_0003_1001000"));
        // Copied into one folder.
        let all = parent.path().join("all");
        window(&all, "window_0001_1000000_a.7", "a", 1000, 1010);
        window(&all, "window_0001_1000000_b.7", "b", 1000, 1010);
        window(&all, "window_0001_1030000_a.7", "a", 1030, 1040);
        let counts: Vec<usize> = parts(&[all]).unwrap().iter().map(|part| part.folders.len()).collect();
        assert_eq!(counts, [2, 1]);
    }
}
