//! Rows out of what was kept of a session, through the same way as those of live records.

use std::{
    fmt,
    fs::File,
    io::{BufReader, ErrorKind},
    path::Path,
};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::pipeline::Pipeline;
use crate::{
    capture::{self, CaptureHeader, CaptureReader},
    recording::{Damage, FOLDER, Item, Progress, RecordingReader, Selection},
    sinks::{ApiOutputOptions, Layout, OutputDir, SessionFiles, WindowIterations},
};

/// What was kept of a session.
#[derive(Debug)]
pub enum Kept {
    /// With the iterations of its window, if it has any.
    Recording(Box<RecordingReader>, Option<WindowIterations>),
    Capture(CaptureReader<BufReader<File>>, Box<CaptureHeader>),
}

/// Which part is read, and who is told about it.
pub struct ReadPart<'a> {
    pub selection: Selection<'a>,
    /// Rows from this moment on are not asked for, by the records' clock. Reading ends before the selection
    /// does when all ops from before it are complete.
    pub until_ns: u64,
    /// Gets the bytes that were read, after every block or some records.
    pub progress: &'a mut dyn FnMut(u64),
    /// Called when what is read is over and goes on in the recording: what the model still waits for can have
    /// come later.
    pub goes_on: &'a mut dyn FnMut(),
}

impl fmt::Debug for ReadPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadPart({:?})", self.selection)
    }
}

/// What came of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    pub records: u64,
    /// Records that could not be understood.
    pub undecodable: u64,
    /// Why the first of them was not.
    pub first_undecodable: Option<String>,
    /// The session's report; of one that has no end, that of its beginning.
    pub report: String,
    /// There is no report at the end: the recording was killed, its disk was full, or it still goes on.
    pub is_cut: bool,
    /// What could not be read.
    pub damage: Damage,
}

impl Read {
    /// What a reader should know of what was read, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        let Self { undecodable, is_cut, damage, .. } = *self;
        let Damage { blocks, bytes, unknown, removed, removed_lasting, missing_segments } = damage;
        let notes = [
            (
                is_cut,
                "the recording has no end: it was killed, its disk was full, or it still goes on".to_owned(),
            ),
            (
                removed > 0,
                format!("{removed} older records were removed, as --max-size or --max-age wanted it"),
            ),
            (
                removed_lasting > 0,
                format!(
                    "{removed_lasting} of all removed records were in blocks with channels of communicators or with CUDA \
                     graphs, which later records need: operations of these may be missing; a larger --max-size keeps \
                     them"
                ),
            ),
            (
                missing_segments > 0,
                format!(
                    "{missing_segments} of the recording's files (*.nfr) are missing: what was in them is lost, and later \
                     records may be understood in part only"
                ),
            ),
            (
                blocks + bytes > 0,
                format!("{blocks} blocks and {bytes} bytes between blocks are damaged, and were left out"),
            ),
            (unknown > 0, format!("{unknown} blocks and events are of a newer version, and were left out")),
            (undecodable > 0, format!("{undecodable} records could not be understood")),
        ];
        notes.into_iter().filter(|(is_so, _)| *is_so).map(|(_, note)| note).collect()
    }
}

/// Records after a part that are read in any case: the post passes of plans, and what the model learns late
/// of a process.
const AFTER_NS: u64 = 2_000_000_000;

/// Records of a capture after which progress is told.
const CAPTURE_STRIDE: u64 = 4096;

impl Kept {
    /// Opens a capture, or the folder of a session, of a window or of a recording itself.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Self::recording(OutputDir::open(path)?);
        }
        let context = || format!("reading the capture `{}`", path.display());
        let file = File::open(path).with_context(context)?;
        let (reader, header) =
            CaptureReader::new(BufReader::with_capacity(1 << 20, file)).with_context(context)?;
        Ok(Self::Capture(reader, Box::new(header)))
    }

    /// Opens the recording in this folder, or in the one named so in it.
    pub fn recording(dir: OutputDir) -> Result<Self> {
        let folder = match dir.open_subfolder(FOLDER) {
            Err(error) if error.kind() == ErrorKind::NotFound => dir,
            folder => {
                folder.with_context(|| format!("opening the recording in `{}`", dir.path().display()))?
            }
        };
        let reader = RecordingReader::open(folder.try_clone()?)?;
        let iterations = iterations_of(&reader.session().report).filter(|asked| asked.wanted > 0);
        let iterations = match iterations {
            None => None,
            Some(_) => iterations_at_end(RecordingReader::open(folder)?)?,
        };
        Ok(Self::Recording(Box::new(reader), iterations))
    }

    /// How the session wrote API calls.
    pub fn api(&self) -> ApiOutputOptions {
        match self {
            Self::Recording(reader, _) => reader.session().api,
            Self::Capture(_, header) => header.api,
        }
    }

    /// `session.json` as it was when the session began.
    pub fn first_report(&self) -> &str {
        match self {
            Self::Recording(reader, _) => &reader.session().report,
            Self::Capture(_, header) => &header.report,
        }
    }

    /// Where the session's files lay.
    pub fn layout(&self) -> Layout {
        #[derive(Deserialize)]
        struct Report {
            window: Option<serde_json::Value>,
        }
        let report = serde_json::from_str::<Report>(self.first_report());
        let is_window = report.is_ok_and(|report| report.window.is_some());
        if is_window { Layout::ByProcess } else { Layout::ByCommunicator }
    }

    /// Reads all of it.
    pub fn read_all(self, files: SessionFiles) -> Result<(Read, SessionFiles)> {
        let (progress, goes_on) = (&mut |_| (), &mut || ());
        self.read(files, ReadPart { selection: Selection::ALL, until_ns: u64::MAX, progress, goes_on })
    }

    /// Reads a part and gives its rows to `files`, which come back complete.
    pub fn read(self, files: SessionFiles, part: ReadPart<'_>) -> Result<(Read, SessionFiles)> {
        match self {
            Self::Recording(reader, iterations) => read_recording(*reader, iterations, files, part),
            Self::Capture(reader, header) => read_capture(reader, *header, files, part.progress),
        }
    }
}

/// What a report says of iterations, if it is of a window with any.
fn iterations_of(report: &str) -> Option<WindowIterations> {
    #[derive(Deserialize)]
    struct Report {
        window: Option<Window>,
    }
    #[derive(Deserialize)]
    struct Window {
        iterations: Option<WindowIterations>,
    }
    serde_json::from_str::<Report>(report).ok()?.window?.iterations
}

/// The same by the report at the end: until then it is not known. Without an end, it is not known at all.
fn iterations_at_end(mut reader: RecordingReader) -> Result<Option<WindowIterations>> {
    let mut found = None;
    let mut take = |item: Item<'_>| {
        if let Item::End(text) = item {
            found = iterations_of(&text);
        }
    };
    while reader.read_next(&Selection::NOTHING, &mut take)? == Progress::Read {}
    Ok(found)
}

fn read_recording(
    mut reader: RecordingReader,
    iterations: Option<WindowIterations>,
    files: SessionFiles,
    part: ReadPart<'_>,
) -> Result<(Read, SessionFiles)> {
    let ReadPart { mut selection, until_ns, progress, goes_on } = part;
    let mut pipeline = Pipeline::reading(reader.session(), files);
    pipeline.output.iterations = iterations;
    let (mut records, mut report) = (0, None);
    let mut take = |item: Item<'_>, pipeline: &mut Pipeline| {
        records += u64::from(matches!(item, Item::Record(_)));
        if let Item::End(text) = item {
            report = Some(text);
        } else {
            pipeline.take(item);
        }
    };
    while reader.read_next(&selection, &mut |item| take(item, &mut pipeline))? == Progress::Read {
        pipeline.close_ended();
        progress(reader.position());
        if pipeline.last_ns >= until_ns.saturating_add(AFTER_NS) && !pipeline.waits_for_ops_before(until_ns) {
            selection.to_ns = selection.to_ns.min(pipeline.last_ns);
        }
    }
    if reader.span_ns().is_some_and(|(_, last_ns)| last_ns > selection.to_ns) {
        goes_on();
    }
    let is_cut = report.is_none();
    let report = report.unwrap_or_else(|| reader.session().report.clone());
    let (read, files) = complete(pipeline, report)?;
    Ok((Read { records, is_cut, damage: reader.damage(), ..read }, files))
}

/// A capture has no index: all of it is read.
fn read_capture(
    mut reader: CaptureReader<BufReader<File>>,
    header: CaptureHeader,
    files: SessionFiles,
    progress: &mut dyn FnMut(u64),
) -> Result<(Read, SessionFiles)> {
    let mut pipeline = Pipeline::new(header.bindings, files);
    pipeline.traced.sampling = header.sampling;
    let (mut records, mut bytes) = (0u64, 0);
    let (report, is_cut) = loop {
        match reader.next_item().context("reading the capture")? {
            capture::Item::Record(record) => {
                bytes += record.len() as u64;
                pipeline.record(record);
            }
            capture::Item::Report(report) => break (report, false),
            capture::Item::Cut => break (header.report, true),
        }
        records += 1;
        if records.is_multiple_of(CAPTURE_STRIDE) {
            progress(bytes);
        }
    };
    let (read, files) = complete(pipeline, report)?;
    Ok((Read { records, is_cut, ..read }, files))
}

fn complete(mut pipeline: Pipeline, report: String) -> Result<(Read, SessionFiles)> {
    pipeline.finish();
    if let Some(error) = pipeline.files().errors().first() {
        anyhow::bail!("{error}");
    }
    let first_undecodable = pipeline.first_error.clone();
    let read = Read { undecodable: pipeline.undecodable, first_undecodable, report, ..Read::default() };
    Ok((read, std::mem::take(&mut pipeline.output.files)))
}
