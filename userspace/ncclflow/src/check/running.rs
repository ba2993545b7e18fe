//! A check of rows that somebody else reads: one source after the other, each row once.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use anyhow::Result;
use flow::schema::{ClockReport, MessageRow, Op, RankKey};

use super::{
    communicator_check::{CheckReport, Fleet, Folder},
    parts::{Part, parts},
    rank_reader::FolderClock,
    row_source::{Gather as _, TakeRows as _},
};
use crate::sinks::{OutputDir, window_folders};

/// Takes the rows of sources, which are checked together as [`check`](super::check) checks folders.
#[derive(Debug)]
pub(crate) struct RunningCheck {
    parts: Vec<Part>,
    /// Of each of the parts.
    fleets: Vec<Fleet>,
    sources: Vec<PathBuf>,
    current: Option<Current>,
}

/// The source whose rows come.
#[derive(Debug)]
struct Current {
    part: usize,
    folder: Folder,
    /// How the folder calls them.
    ranks: HashMap<RankKey, Option<usize>>,
    /// Of the op that came last.
    at: Option<usize>,
}

impl RunningCheck {
    /// For these sources: windows that were open at the same time are one part, and all that are no windows.
    pub(crate) fn new(sources: Vec<PathBuf>) -> Result<Self> {
        let (mut folders, mut plain) = (Vec::new(), Vec::new());
        for source in &sources {
            match window_parent(source) {
                Some(parent) if folders.contains(&parent) => {}
                Some(parent) => folders.push(parent),
                None => plain.push(source.clone()),
            }
        }
        let mut parts = parts(&folders)?;
        // Rows of what is asked for come, and of no other window.
        parts.retain(|part| part.folders.iter().any(|folder| sources.contains(folder)));
        if !plain.is_empty() {
            parts.insert(0, Part { folders: plain, windows: None });
        }
        let fleets = parts.iter().map(|_| Fleet::default()).collect();
        Ok(Self { parts, fleets, sources, current: None })
    }

    /// The next rows are of this source. `clock`: of the part of it that is read.
    pub(crate) fn begin(&mut self, source: &Path, clock: Option<ClockReport>) {
        self.end();
        let of = |part: &Part| part.folders.iter().any(|folder| folder == source);
        let Some(part) = self.parts.iter().position(of) else { return };
        let Some(fleet) = self.fleets.get(part) else { return };
        let folder = fleet.folder(clock.map(FolderClock::of_recording));
        self.current = Some(Current { part, folder, ranks: HashMap::new(), at: None });
    }

    pub(crate) fn op(&mut self, op: &Op) {
        let Some(Current { folder, ranks, at, .. }) = &mut self.current else { return };
        let name = || op.rank.comm_name();
        *at = *ranks.entry(op.rank).or_insert_with(|| folder.rank(&name(), op.rank.rank));
        if let Some(rank) = *at {
            folder.op(rank, &op.row);
        }
    }

    /// Messages of the op that came last.
    pub(crate) fn messages(&mut self, messages: &[MessageRow]) {
        let Some(Current { folder, at: Some(rank), .. }) = &mut self.current else { return };
        for message in messages {
            folder.message(*rank, message);
        }
    }

    fn end(&mut self) {
        let Some(Current { part, folder, .. }) = self.current.take() else { return };
        if let Some(fleet) = self.fleets.get_mut(part) {
            // Sources come one after the other: a folder knows those before it.
            fleet.add(folder);
        }
    }

    pub(crate) fn finish(&mut self) -> CheckReport {
        self.end();
        let (mut communicators, mut notes) = (Vec::new(), Vec::new());
        for (part, fleet) in self.parts.drain(..).zip(self.fleets.drain(..)) {
            communicators.extend(fleet.checked(part.windows.as_deref(), &mut notes).complete());
        }
        CheckReport::new(self.sources.clone(), communicators, notes)
    }
}

/// The folder of a recording with windows, of which this is one.
fn window_parent(source: &Path) -> Option<PathBuf> {
    let name = source.file_name()?.to_str()?;
    let parent = source.parent().filter(|parent| !parent.as_os_str().is_empty())?;
    let windows = window_folders(&OutputDir::open(parent).ok()?).ok()?;
    windows.iter().any(|window| window == name).then(|| parent.to_path_buf())
}
