//! A check of rows that somebody else reads: one source after the other, each row once.

use std::path::{Path, PathBuf};

use anyhow::Result;
use flow::schema::{ClockReport, MessageRow, Op};

use super::{
    communicator_check::{CheckReport, Fleet},
    folder_rows::FolderRows,
    parts::{Part, parts},
    row_source::{FolderFacts, Gather as _},
};
use recording::sinks::{OutputDir, Sink as _, window_folders};

/// Takes the rows of sources, which are checked together as [`check`](super::check) checks folders.
#[derive(Debug)]
pub(crate) struct RunningCheck {
    parts: Vec<Part>,
    /// Communicators of each part.
    fleets: Vec<Fleet>,
    sources: Vec<PathBuf>,
    /// The source whose rows are coming, and its part.
    current: Option<(usize, FolderRows)>,
}

impl RunningCheck {
    /// Groups sources: windows open at the same time are one part, and so are all that are no windows.
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
        // Only rows of the given sources come, not those of other windows.
        parts.retain(|part| part.folders.iter().any(|folder| sources.contains(folder)));
        if !plain.is_empty() {
            parts.insert(0, Part { folders: plain, windows: None });
        }
        let fleets = parts.iter().map(|_| Fleet::default()).collect();
        Ok(Self { parts, fleets, sources, current: None })
    }

    /// Begins the source of the next rows. `clock`: of the part of it that is read.
    pub(crate) fn begin(&mut self, source: &Path, clock: Option<ClockReport>) {
        self.end();
        let of = |part: &Part| part.folders.iter().any(|folder| folder == source);
        let Some(part) = self.parts.iter().position(of) else { return };
        let Some(fleet) = self.fleets.get(part) else { return };
        let folder = fleet.folder(FolderFacts { clock, ..FolderFacts::default() });
        self.current = Some((part, folder));
    }

    pub(crate) fn op(&mut self, op: &Op) {
        if let Some((_, folder)) = &mut self.current {
            folder.op(op);
        }
    }

    /// Takes messages of the latest op.
    pub(crate) fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        if let Some((_, folder)) = &mut self.current {
            folder.messages(op, messages);
        }
    }

    fn end(&mut self) {
        let Some((part, folder)) = self.current.take() else { return };
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

/// Returns the folder of the recording with windows that this one belongs to.
fn window_parent(source: &Path) -> Option<PathBuf> {
    let name = source.file_name()?.to_str()?;
    let parent = source.parent().filter(|parent| !parent.as_os_str().is_empty())?;
    let windows = window_folders(&OutputDir::open(parent).ok()?).ok()?;
    windows.iter().any(|window| window == name).then(|| parent.to_path_buf())
}
