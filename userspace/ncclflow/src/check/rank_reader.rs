//! Finds the ranks' files in the folders of recordings, and reads them line by line.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use flow::schema::{ClockReport, MessageRow, OpRow};

use crate::sinks::{OutputDir, for_each_line, ranks_of};

/// Largest `session.json` that is read.
const MAX_SESSION: u64 = 256 << 20;

/// What is read of `session.json`.
#[derive(Debug, Deserialize)]
struct Session {
    clock: ClockReport,
}

/// One folder of a recording.
#[derive(Debug)]
pub struct Recording {
    pub path: PathBuf,
    clock: Option<ClockReport>,
    pub ranks: Vec<RankFile>,
}

impl Recording {
    /// When the session ended, by the clock of its lines.
    pub fn ended_ns(&self) -> Option<u64> {
        self.clock.as_ref()?.ended_monotonic_ns
    }

    /// When it began, by the clock of its lines.
    pub fn started_ns(&self) -> Option<u64> {
        Some(self.clock.as_ref()?.started_monotonic_ns)
    }

    /// To be added to the times of its lines for wall time.
    pub fn wall_offset_ns(&self) -> Option<u64> {
        Some(self.clock.as_ref()?.offset_ns)
    }
}

/// The files of one rank of one communicator.
#[derive(Debug)]
pub struct RankFile {
    /// The communicator's folder: its hash, and its number if there are several of that hash.
    pub folder: String,
    pub rank: i32,
    dir: OutputDir,
}

impl RankFile {
    /// Calls `each` with every line of `proxy_flow`.
    pub fn flows(&self, mut each: impl FnMut(OpRow)) -> Result<()> {
        self.lines("proxy_flow", |line| {
            each(serde_json::from_str(line)?);
            Ok(())
        })
    }

    /// Calls `each` with every line of `flow_steps`.
    pub fn steps(&self, mut each: impl FnMut(MessageRow)) -> Result<()> {
        self.lines("flow_steps", |line| {
            each(serde_json::from_str(line)?);
            Ok(())
        })
    }

    fn lines(&self, kind: &str, mut each: impl FnMut(&str) -> Result<(), serde_json::Error>) -> Result<()> {
        let name = format!("{kind}_rank{}.jsonl", self.rank);
        // A recording that was killed leaves a last line without an end.
        for_each_line(&self.dir, &name, &mut 0, |_, line| each(line))
            .with_context(|| format!("in `{}`", self.dir.path().display()))
    }
}

/// Opens the folders. One that holds no recording is an error.
pub fn recordings(dirs: &[PathBuf]) -> Result<Vec<Recording>> {
    dirs.iter().map(|dir| recording(dir)).collect()
}

fn recording(path: &Path) -> Result<Recording> {
    let dir = OutputDir::open(path)?;
    let mut ranks = Vec::new();
    for folder in dir.names().with_context(|| format!("cannot list `{}`", path.display()))? {
        let Ok(subfolder) = dir.open_subfolder(&folder) else { continue };
        let names =
            subfolder.names().with_context(|| format!("cannot list `{}`", subfolder.path().display()))?;
        for rank in ranks_of(&names, "proxy_flow") {
            ranks.push(RankFile { folder: folder.clone(), rank, dir: dir.open_subfolder(&folder)? });
        }
    }
    if ranks.is_empty() {
        bail!(
            "`{}` holds no `<commHash>/proxy_flow_rank<r>.jsonl`: is it the folder of a recording?",
            path.display()
        );
    }
    ranks.sort_by(|a, b| (&a.folder, a.rank).cmp(&(&b.folder, b.rank)));
    Ok(Recording { path: path.to_path_buf(), clock: clock(&dir), ranks })
}

/// Without it the end of the session is not known, and nothing else is lost.
fn clock(dir: &OutputDir) -> Option<ClockReport> {
    use std::io::Read as _;
    let mut text = String::new();
    dir.open_file("session.json").ok()?.take(MAX_SESSION).read_to_string(&mut text).ok()?;
    serde_json::from_str::<Session>(&text).ok().map(|session| session.clock)
}
