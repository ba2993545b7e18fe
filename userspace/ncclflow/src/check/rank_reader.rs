//! Finds the ranks' files in the folders of recordings, and reads them line by line.

use std::{io::Read as _, path::Path};

use anyhow::{Context as _, Result};
use serde::{Deserialize, de::DeserializeOwned};

use crate::sinks::{OutputDir, for_each_line, for_each_rank};
use flow::schema::{ClockReport, MessageRow, OpRow};

const MAX_SESSION: u64 = 256 << 20;

#[derive(Debug, Deserialize)]
struct Session {
    clock: ClockReport,
}

#[derive(Debug)]
pub struct Recording {
    /// Of its lines. Without it the end of the session is not known, and nothing else is lost.
    pub clock: Option<ClockReport>,
    pub ranks: Vec<RankFile>,
}

#[derive(Debug)]
pub struct RankFile {
    /// The communicator's folder: its hash, and its number if there are several of that hash.
    pub folder: String,
    pub rank: i32,
    dir: OutputDir,
}

impl RankFile {
    pub fn flows(&self, each: impl FnMut(OpRow)) -> Result<()> {
        self.lines("proxy_flow", each)
    }

    pub fn steps(&self, each: impl FnMut(MessageRow)) -> Result<()> {
        self.lines("flow_steps", each)
    }

    fn lines<L: DeserializeOwned>(&self, kind: &str, mut each: impl FnMut(L)) -> Result<()> {
        let name = format!("{kind}_rank{}.jsonl", self.rank);
        // A recording that was killed leaves a last line without an end.
        for_each_line(&self.dir, &name, &mut 0, |_, line| {
            each(serde_json::from_str(line)?);
            Ok(())
        })
        .with_context(|| format!("in `{}`", self.dir.path().display()))
    }
}

/// Opens a folder. One that holds no rank's lines is an error.
pub(super) fn recording(path: &Path) -> Result<Recording> {
    let dir = OutputDir::open(path)?;
    let mut ranks = Vec::new();
    for_each_rank(&dir, |folder, subfolder, rank| {
        ranks.push(RankFile { folder: folder.to_owned(), rank, dir: subfolder.try_clone()? });
        Ok(())
    })?;
    Ok(Recording { clock: clock(&dir), ranks })
}

fn clock(dir: &OutputDir) -> Option<ClockReport> {
    let mut text = String::new();
    dir.open_file("session.json").ok()?.take(MAX_SESSION).read_to_string(&mut text).ok()?;
    serde_json::from_str::<Session>(&text).ok().map(|session| session.clock)
}
