//! Sources of rows: recordings, and what is known of them before they are read.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use flow::{
    recording::Event,
    session::{Level, SessionReport},
};

use recording::{
    format::{FOLDER, Item, Progress, Selection},
    rows::{Read, ReadPart, RecordedSession},
    sinks::{OutputDir, SessionFiles, Sink},
};

/// Most folders that are looked into for recordings of windows or hosts.
const MAX_FOLDERS: usize = 65_536;

/// Most ranks that are taken out of a recording whose report has none.
const MAX_RANKS: usize = 1 << 16;

/// How far a clock is ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offset {
    pub(crate) ahead_ns: i64,
    pub(crate) error_ns: u64,
}

/// A recording that was looked through, but not read.
#[derive(Debug)]
pub struct Source {
    pub path: PathBuf,
    pub(crate) session: SessionReport,
    /// Times of the earliest and the latest record, by the source's own clock; `None` if it has no records.
    pub span_ns: Option<(u64, u64)>,
    /// Number of bytes that reading all of it takes.
    pub bytes: u64,
    /// Set if the session has ended: it has a report at its end.
    pub is_over: bool,
    /// The host by whose clock wall times are, and how far its own clock is ahead of that; `None`: they are
    /// by its own.
    pub(crate) clock: Option<(String, Offset)>,
}

impl Source {
    /// Looks through a recording.
    pub fn look(path: PathBuf) -> Result<Self> {
        let context = format!("in `{}`", path.display());
        Self::look_at(path).context(context)
    }

    fn look_at(path: PathBuf) -> Result<Self> {
        let mut reader = RecordedSession::open(&path)?.into_reader();
        let (mut report, mut ranks) = (None, BTreeMap::new());
        let mut take = |item: Item<'_>| match item {
            Item::End(text) => report = Some(text),
            Item::Event(Event::Communicator(facts)) if ranks.len() < MAX_RANKS => {
                ranks.insert((facts.pid, facts.comm_hash.clone(), facts.rank), facts);
            }
            _ => {}
        };
        while reader.read_next(&Selection::NOTHING, &mut take)? == Progress::Read {}
        let is_over = report.is_some();
        let mut session = SessionReport::parse(report.as_ref().unwrap_or(&reader.session().report));
        if session.communicators.is_empty() {
            // It made no files of lines, or goes on.
            session.communicators = ranks.into_values().map(|facts| facts.report()).collect();
        }
        let (span_ns, bytes) = (reader.span_ns(), reader.bytes().context("listing its segments")?);
        Ok(Self { path, session, span_ns, bytes, is_over, clock: None })
    }

    /// Opens it for reading.
    pub fn open(&self) -> Result<RecordedSession> {
        RecordedSession::open(&self.path)
    }

    /// Reads a part of its rows into a sink, which comes back.
    pub fn read<S: Sink>(&self, sink: S, part: ReadPart<'_>) -> Result<(S, Read)> {
        let (read, files) = self.open()?.read(SessionFiles::of_sink(Box::new(sink)), part)?;
        Ok((files.into_sink().context("the sink of another reading came back")?, read))
    }

    /// Reads all its rows into a sink, which comes back.
    pub fn read_all<S: Sink>(&self, sink: S, progress: &mut dyn FnMut(u64)) -> Result<(S, Read)> {
        let (selection, until_ns) = (Selection::ALL, u64::MAX);
        let part = ReadPart { selection, until_ns, progress, goes_on: &mut || (), is_stopped: &|| false };
        self.read(sink, part)
    }

    /// Returns the session's report, of its end or else of its beginning.
    pub fn session(&self) -> &SessionReport {
        &self.session
    }

    pub fn host(&self) -> &str {
        &self.session.host
    }

    /// Tells whether the source has only calls of the API, without ops.
    pub(crate) fn is_of_calls(&self) -> bool {
        self.session.level == Some(Level::Api)
    }

    /// Tells whether the source has calls of the API, also beside ops.
    pub fn has_calls(&self) -> bool {
        self.is_of_calls() || self.session.api
    }

    /// Returns the offset from its own clock to wall time, by the clock of its host or of another one.
    pub fn offset_ns(&self) -> u64 {
        let ahead_ns = self.clock.as_ref().map_or(0, |(_, ahead)| ahead.ahead_ns);
        self.unix_offset_ns().saturating_add_signed(ahead_ns.saturating_neg())
    }

    /// Returns the offset from its own clock to wall time by the clock of its host, which other programs there
    /// have.
    pub(crate) fn unix_offset_ns(&self) -> u64 {
        self.session.clock.offset_ns
    }

    /// Returns the wall times of its earliest and its latest record.
    pub fn wall_span_ns(&self) -> Option<(u64, u64)> {
        let wall = |at: u64| at.saturating_add(self.offset_ns());
        self.span_ns.map(|(first, last)| (wall(first), wall(last)))
    }
}

/// Fails where one folder is given twice, under whatever name.
pub(crate) fn ensure_each_once(paths: &[PathBuf]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for path in paths {
        let about = std::fs::metadata(path).with_context(|| format!("looking at `{}`", path.display()))?;
        ensure!(seen.insert((about.dev(), about.ino())), "`{}` is given twice", path.display());
    }
    Ok(())
}

/// Finds the recordings in these folders, and looks through them. Each can be the folder of a session or a
/// window, a recording itself, or a folder of such folders: a session with windows, or several hosts. They
/// come sorted by host and time.
pub fn sources(paths: &[PathBuf]) -> Result<Vec<Source>> {
    let found = paths.iter().map(|path| recordings_in(path)).collect::<Result<Vec<_>>>()?;
    let found: Vec<PathBuf> = found.into_iter().flatten().collect();
    ensure_each_once(&found)?;
    let mut sources = found.into_iter().map(Source::look).collect::<Result<Vec<_>>>()?;
    sources.sort_by_cached_key(|source| (source.host().to_owned(), source.wall_span_ns()));
    Ok(sources)
}

/// This folder, if it has a recording, or else the folders in it that have one.
///
/// # Errors
/// If none has one, or a folder cannot be read.
pub fn recordings_in(path: &Path) -> Result<Vec<PathBuf>> {
    let dir = OutputDir::open_to_read(path)?;
    if has_recording(&dir)? {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut found = Vec::new();
    let names = dir.names().with_context(|| format!("listing `{}`", path.display()))?;
    for name in names.into_iter().take(MAX_FOLDERS) {
        if let Ok(folder) = dir.open_subfolder(&name)
            && has_recording(&folder)?
        {
            found.push(path.join(name));
        }
    }
    if found.is_empty() {
        bail!(
            "`{}` has no recording: neither it nor a folder in it contains `{FOLDER}/`. Its .jsonl files, if it has \
             any, are for other programs: ncclflow reads recordings",
            path.display()
        );
    }
    Ok(found)
}

fn has_recording(dir: &OutputDir) -> Result<bool> {
    let names = dir.names().with_context(|| format!("listing `{}`", dir.path().display()))?;
    let is_one = names.iter().any(|name| Path::new(name).extension().is_some_and(|end| end == "nfr"));
    Ok(is_one || (names.iter().any(|name| name == FOLDER) && dir.open_subfolder(FOLDER).is_ok()))
}
