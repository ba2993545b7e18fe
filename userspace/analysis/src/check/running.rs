//! A check of rows that somebody else reads: one source after the other, each row once.

use std::path::{Path, PathBuf};

use anyhow::Result;
use flow::{schema::ClockReport, session::SessionReport};

use super::{
    communicator_check::{CheckReport, Fleet},
    folder_rows::FolderRows,
    ownership::Claims,
    parts::{Part, parts},
    row_source::{FolderFacts, Gather as _},
};
use crate::sources::{Jobs, Source};
use recording::sinks::{OutputDir, Sink, window_folders};

/// Takes the rows of sources, which are checked together as [`check`](super::check) checks folders.
#[derive(Debug, Default)]
pub(crate) struct RunningCheck {
    /// Parts, with their communicators.
    parts: Vec<(Part, Fleet)>,
    sources: Vec<PathBuf>,
    jobs: Jobs,
    /// The source whose rows are coming, and its part.
    current: Option<(usize, FolderRows)>,
}

impl RunningCheck {
    /// Groups sources: windows open at the same time are one part, and so are all that are no windows.
    pub(crate) fn new(all: &[Source]) -> Result<Self> {
        let sources: Vec<PathBuf> = all.iter().map(|source| source.path.clone()).collect();
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
        let parts = parts.into_iter().map(|part| (part, Fleet::default())).collect();
        Ok(Self { parts, sources, jobs: Jobs::of(all), current: None })
    }

    /// Begins the source of the next rows. `clock`: of the part of it that is read.
    pub(crate) fn begin(&mut self, source: &Source, clock: ClockReport) {
        self.end();
        let number = self.sources.iter().position(|path| *path == source.path);
        let jobs = number.map(|number| self.jobs.of_source(number)).unwrap_or_default();
        let mut parts = self.parts.iter().enumerate();
        let found = parts.find(|(_, (part, _))| part.folders.contains(&source.path));
        self.current = found.map(|(at, (_, fleet))| {
            let session = SessionReport { clock, ..source.session().clone() };
            // The page names communicators as the rows do.
            let claims = Claims::default();
            (at, fleet.folder(FolderFacts { session, claims, ..FolderFacts::of(source, jobs) }))
        });
    }

    /// Returns the taker of the source's ops and their messages.
    pub(crate) fn rows(&mut self) -> Option<&mut dyn Sink> {
        self.current.as_mut().map(|(_, folder)| folder as _)
    }

    fn end(&mut self) {
        let Some((part, folder)) = self.current.take() else { return };
        if let Some((_, fleet)) = self.parts.get_mut(part) {
            // Sources come one after the other: a folder knows those before it.
            fleet.add(folder);
        }
    }

    pub(crate) fn finish(&mut self) -> CheckReport {
        self.end();
        let (mut communicators, mut slow, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for (part, fleet) in self.parts.drain(..) {
            let mut checked = fleet.checked(part.windows.as_deref(), &mut notes);
            slow.append(&mut checked.slow);
            communicators.extend(checked.complete());
        }
        CheckReport::new(self.sources.clone(), communicators, slow, notes)
    }
}

/// Returns the folder of the recording with windows that this one belongs to.
fn window_parent(source: &Path) -> Option<PathBuf> {
    let name = source.file_name()?.to_str()?;
    let parent = source.parent().filter(|parent| !parent.as_os_str().is_empty())?;
    let windows = window_folders(&OutputDir::open(parent).ok()?).ok()?;
    windows.iter().any(|window| window == name).then(|| parent.to_path_buf())
}
