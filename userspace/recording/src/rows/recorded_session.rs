//! Rows from a recording, made in the same way as from live records.

use flow::{
    model::{GraphCounters, PlanCounters},
    recording::Session,
    session::{SessionReport, WindowIterations},
};
use std::{fmt, io::ErrorKind, mem, path::Path};

use anyhow::{Context as _, Result, bail};

use super::pipeline::Pipeline;
use crate::{
    format::{Damage, FOLDER, Item, Progress, RecordingReader, Selection},
    sinks::{Layout, OutputDir, SessionFiles},
};

/// The recording of a session or a window, to be read.
#[derive(Debug)]
pub struct RecordedSession {
    reader: RecordingReader,
    /// Iterations of the recording's window, if it has any.
    iterations: Option<WindowIterations>,
}

/// The part to read, and callbacks while it is read.
pub struct ReadPart<'a> {
    pub selection: Selection<'a>,
    /// Time from which rows are not wanted, by the records' clock. Reading ends before the selection does
    /// when all ops from before it are complete.
    pub until_ns: u64,
    /// Gets the bytes that were read, after every block.
    pub progress: &'a mut dyn FnMut(u64),
    /// Called when the part ends before the recording does: what the model still waits for can come later.
    pub goes_on: &'a mut dyn FnMut(),
    /// Tells whether to stop reading here.
    pub is_stopped: &'a dyn Fn() -> bool,
}

impl fmt::Debug for ReadPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadPart({:?})", self.selection)
    }
}

/// Result of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    pub records: u64,
    /// Ops on a channel, and calls of the API, in these records.
    pub ops: u64,
    pub calls: u64,
    /// Records that could not be decoded.
    pub undecodable: u64,
    /// Why the first of them could not.
    pub first_undecodable: Option<String>,
    /// The session's report; without an end, the one of its beginning.
    pub report: String,
    /// There is no report at the end: the recording was killed, its disk was full, or it still goes on.
    pub is_cut: bool,
    /// Parts that could not be read.
    pub damage: Damage,
    /// Launches that were walked.
    pub plans: PlanCounters,
    /// Launches of CUDA graphs.
    pub graphs: GraphCounters,
}

impl Read {
    /// Says how many launches were seen of which no operation could be made; `None`: of all of them.
    pub fn untold_launches(&self) -> Option<String> {
        let PlanCounters { plans, untold, empty, .. } = self.plans;
        let nothing = untold + empty;
        (nothing > 0).then(|| {
            format!(
                "of {nothing} of {plans} launches nothing is known but that they were: kernels on symmetric memory \
                 without symbols, or a kind of launch that ncclflow does not know"
            )
        })
    }

    /// Says how many launches of CUDA graphs were seen whose operations are not known; `None`: of all of them.
    pub fn unknown_replays(&self) -> Option<String> {
        let GraphCounters { launches, unknown, .. } = self.graphs;
        (unknown > 0).then(|| {
            format!(
                "of {unknown} of {launches} launches of CUDA graphs it is not known what they replay: the graphs were \
                 captured before the recording, or it was not seen what the executable holds"
            )
        })
    }

    /// Returns notes for the reader about what was read, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        let Self { undecodable, is_cut, damage, .. } = *self;
        let (untold, replays) = (self.untold_launches(), self.unknown_replays());
        let too_many = self.graphs.left_out;
        let Damage { blocks, bytes, unknown, removed, removed_lasting, missing_segments } = damage;
        let notes = [
            (
                is_cut,
                "the recording is incomplete: it was killed, its disk was full, or it still goes on"
                    .to_owned(),
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
            (untold.is_some(), untold.unwrap_or_default()),
            (replays.is_some(), replays.unwrap_or_default()),
            (
                too_many > 0,
                format!("{too_many} replayed operations have no line: CUDA graphs launched too many"),
            ),
        ];
        notes.into_iter().filter(|(is_so, _)| *is_so).map(|(_, note)| note).collect()
    }
}

/// Time after a part whose records are read as well: post passes of plans, and late facts of a process.
const AFTER_NS: u64 = 2_000_000_000;

impl RecordedSession {
    /// Opens the folder of a session, of a window or of a recording itself.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_dir(OutputDir::open_to_read(path)?)
    }

    /// Opens the recording in this folder, or in its subfolder of that name.
    pub fn open_dir(dir: OutputDir) -> Result<Self> {
        let folder = match dir.open_subfolder(FOLDER) {
            Err(error) if error.kind() == ErrorKind::NotFound => dir,
            folder => {
                folder.with_context(|| format!("opening the recording in `{}`", dir.path().display()))?
            }
        };
        let reader = RecordingReader::open(folder.try_clone()?)?;
        let mut iterations = iterations_of(&reader.session().report).filter(|asked| asked.wanted > 0);
        if iterations.is_some() {
            // They are first known at the end.
            iterations = RecordingReader::open(folder)?.read_report()?.and_then(|text| iterations_of(&text));
        }
        Ok(Self { reader, iterations })
    }

    /// Returns how and where it was recorded, and `session.json` as it was when the session began.
    pub fn session(&self) -> &Session {
        self.reader.session()
    }

    /// Returns the places of the files that `record` makes of it.
    pub fn layout(&self) -> Layout {
        Layout::of(&SessionReport::parse(&self.session().report))
    }

    pub fn into_reader(self) -> RecordingReader {
        self.reader
    }

    /// Reads a part and gives its rows to `files`, which come back complete.
    pub fn read(self, files: SessionFiles, part: ReadPart<'_>) -> Result<(Read, SessionFiles)> {
        let mut pipeline = self.pipeline(files);
        let read = self.read_into(&mut pipeline, part)?;
        if let Some(error) = pipeline.output.files.errors().first() {
            bail!("{error}");
        }
        Ok((read, mem::take(&mut pipeline.output.files)))
    }

    /// Returns the pipeline from its records to files.
    pub fn pipeline(&self, files: SessionFiles) -> Pipeline {
        let mut pipeline = Pipeline::reading(self.reader.session(), files);
        pipeline.output.iterations.clone_from(&self.iterations);
        pipeline
    }

    /// Reads a part into [`Self::pipeline`], until it takes no more.
    pub fn read_into(self, pipeline: &mut Pipeline, part: ReadPart<'_>) -> Result<Read> {
        let Self { mut reader, iterations: _ } = self;
        let ReadPart { mut selection, until_ns, progress, goes_on, is_stopped } = part;
        let (mut records, mut report) = (0, None);
        let mut take = |item: Item<'_>, pipeline: &mut Pipeline| {
            records += u64::from(matches!(item, Item::Record(_)));
            if let Item::End(text) = item {
                report = Some(text);
            } else {
                pipeline.take(item);
            }
        };
        while !is_stopped()
            && !pipeline.output.is_over_limit()
            && reader.read_next(&selection, &mut |item| take(item, pipeline))? == Progress::Read
        {
            pipeline.close_ended();
            progress(reader.position());
            if pipeline.last_ns >= until_ns.saturating_add(AFTER_NS)
                && !pipeline.waits_for_ops_before(until_ns)
            {
                selection.to_ns = selection.to_ns.min(pipeline.last_ns);
            }
        }
        if reader.span_ns().is_some_and(|(_, last_ns)| last_ns > selection.to_ns) {
            goes_on();
        }
        let is_cut = report.is_none();
        let report = report.unwrap_or_else(|| reader.session().report.clone());
        pipeline.finish();
        Ok(Read {
            records,
            ops: pipeline.output.ops,
            calls: pipeline.output.calls,
            undecodable: pipeline.undecodable,
            first_undecodable: pipeline.first_error.clone(),
            report,
            is_cut,
            damage: reader.damage(),
            plans: pipeline.model_counters().plans,
            graphs: pipeline.model_counters().graphs,
        })
    }
}

/// Returns the iterations in a report, if it is of a window with any.
fn iterations_of(report: &str) -> Option<WindowIterations> {
    SessionReport::parse(report).window?.iterations
}
