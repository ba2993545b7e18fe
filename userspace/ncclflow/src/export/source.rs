//! Where rows come from: recordings and captures, and what is known of them before they are read.

use std::{
    fs::File,
    io::BufReader,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use flow::{decode::RecordView, schema::ClockReport};
use ncclflow_common::LOSS_MARK;
use serde::Deserialize;

use crate::{
    capture::{self, CaptureHeader, CaptureReader},
    record::Kept,
    recording::{FOLDER, Item, Progress, RecordingReader, Selection},
    sinks::OutputDir,
};

/// Folders that are looked into for recordings of windows or hosts.
const MAX_FOLDERS: usize = 65_536;

/// A recording or a capture that was looked through, but not read.
#[derive(Debug)]
pub struct Source {
    pub path: PathBuf,
    pub(super) report: Report,
    /// The whole of it: `session.json`, of the end or else of the beginning.
    pub(super) text: String,
    /// Times of the earliest and the latest record, by its own clock; nothing: it has no records.
    pub span_ns: Option<(u64, u64)>,
    /// Bytes that reading all of it takes.
    pub bytes: u64,
    /// The session has ended: it has a report at its end.
    pub is_over: bool,
}

/// What of `session.json` an export wants to know. It can be of any version, and of anybody's making.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Report {
    pub(super) host: String,
    pub(super) level: String,
    clock: Option<ClockReport>,
    pub(super) targets: Vec<serde_json::Value>,
    pub(super) communicators: Vec<ReportedRank>,
    probes: Vec<ReportedProbe>,
}

/// What was lost of a probe's hits.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReportedProbe {
    lost: u64,
    dropped: u64,
}

/// A rank of a communicator, as a report has it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReportedRank {
    pub(super) rank: i32,
    pub(super) n_ranks: i32,
    pub(super) pid: u32,
}

impl Source {
    /// Looks through it.
    pub(crate) fn look(path: PathBuf) -> Result<Self> {
        let context = || format!("in `{}`", path.display());
        let (text, span_ns, bytes, is_over) = match Kept::open(&path).with_context(context)? {
            Kept::Recording(reader, _) => look_at_recording(*reader),
            Kept::Capture(reader, header) => look_at_capture(&path, reader, *header),
        }
        .with_context(context)?;
        let report = serde_json::from_str(&text).unwrap_or_default();
        Ok(Self { path, report, text, span_ns, bytes, is_over })
    }

    /// Opens it for reading.
    pub fn open(&self) -> Result<Kept> {
        Kept::open(&self.path)
    }

    pub(crate) fn clock(&self) -> Option<ClockReport> {
        self.report.clock.clone()
    }

    /// `session.json`, of its end or else of its beginning.
    pub fn report(&self) -> &str {
        &self.text
    }

    pub fn host(&self) -> &str {
        &self.report.host
    }

    /// It is of calls of the API, without ops.
    pub(crate) fn is_of_calls(&self) -> bool {
        self.report.level == "api"
    }

    /// Records were lost, as far as its report says it.
    pub(crate) fn has_losses(&self) -> bool {
        self.report.probes.iter().any(|probe| probe.lost > 0 || probe.dropped > 0)
    }

    /// From its own clock to wall time.
    pub fn offset_ns(&self) -> u64 {
        self.report.clock.as_ref().map_or(0, |clock| clock.offset_ns)
    }

    /// Wall times of its earliest and its latest record.
    pub fn wall_span_ns(&self) -> Option<(u64, u64)> {
        let wall = |at: u64| at.saturating_add(self.offset_ns());
        self.span_ns.map(|(first, last)| (wall(first), wall(last)))
    }
}

type Looked = (String, Option<(u64, u64)>, u64, bool);

fn look_at_recording(mut reader: RecordingReader) -> Result<Looked> {
    let mut report = None;
    let mut take = |item: Item<'_>| {
        if let Item::End(text) = item {
            report = Some(text);
        }
    };
    while reader.read_next(&Selection::NOTHING, &mut take)? == Progress::Read {}
    let is_over = report.is_some();
    let report = report.unwrap_or_else(|| reader.session().report.clone());
    Ok((report, reader.span_ns(), reader.bytes().context("listing its segments")?, is_over))
}

fn look_at_capture(
    path: &Path,
    mut reader: CaptureReader<BufReader<File>>,
    header: CaptureHeader,
) -> Result<Looked> {
    let bytes = std::fs::metadata(path)?.len();
    let mut span: Option<(u64, u64)> = None;
    let (report, is_over) = loop {
        match reader.next_item()? {
            capture::Item::Record(record) => {
                let Ok(view) = RecordView::new(record) else { continue };
                if view.header.probe != LOSS_MARK {
                    let at = view.header.ts_ns;
                    span = Some(span.map_or((at, at), |(first, last)| (first.min(at), last.max(at))));
                }
            }
            capture::Item::Report(report) => break (report, true),
            capture::Item::Cut => break (header.report, false),
        }
    };
    Ok((report, span, bytes, is_over))
}

/// Finds the recordings in these folders, and looks through them. Each can be a capture, the folder of a
/// session or a window, a recording itself, or a folder of such folders: a session with windows, or several
/// hosts. They come sorted by host and time.
pub fn sources(paths: &[PathBuf]) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    for path in paths {
        let before = found.len();
        find(path, &mut found)?;
        if found.len() == before {
            bail!(
                "`{}` has no recording: neither it nor a folder in it contains `{FOLDER}/`. Recordings of \
                 older versions have only .jsonl files, which this command does not read",
                path.display()
            );
        }
    }
    let mut seen = Vec::new();
    for path in &found {
        let about = std::fs::metadata(path).with_context(|| format!("looking at `{}`", path.display()))?;
        let id = (about.dev(), about.ino());
        if seen.contains(&id) {
            bail!("`{}` is given twice", path.display());
        }
        seen.push(id);
    }
    let mut sources = found.into_iter().map(Source::look).collect::<Result<Vec<_>>>()?;
    sources.sort_by_cached_key(|source| (source.host().to_owned(), source.wall_span_ns()));
    Ok(sources)
}

fn find(path: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    if !path.is_dir() || has_recording(&OutputDir::open(path)?)? {
        found.push(path.to_path_buf());
        return Ok(());
    }
    let dir = OutputDir::open(path)?;
    let names = dir.names().with_context(|| format!("listing `{}`", path.display()))?;
    for name in names.into_iter().take(MAX_FOLDERS) {
        if let Ok(folder) = dir.open_subfolder(&name)
            && has_recording(&folder)?
        {
            found.push(path.join(name));
        }
    }
    Ok(())
}

fn has_recording(dir: &OutputDir) -> Result<bool> {
    let names = dir.names().with_context(|| format!("listing `{}`", dir.path().display()))?;
    let is_one = names.iter().any(|name| Path::new(name).extension().is_some_and(|end| end == "nfr"));
    Ok(is_one || (names.iter().any(|name| name == FOLDER) && dir.open_subfolder(FOLDER).is_ok()))
}
