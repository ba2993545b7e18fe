//! An export from beginning to end.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::{
    Format,
    choice::{Choice, SourceChoice},
    chosen_rows::{ChosenRows, Exporting, RowCounts},
    host_clocks::HostClocks,
    ranks::TwiceReport,
    recorded::recorded,
    view::{View, ViewOptions},
};
use crate::slow::{HostClock, Offset};
use crate::sources::{Jobs, Source, jobs, sources};
use flow::text::joined;
use recording::{
    format::{Damage, Selection},
    rows::{Read, ReadPart},
    sinks::{OutputDir, Share},
};
use stacks::trace::Progress as ExportProgress;

/// Options of an export.
#[derive(Debug)]
pub struct ExportOptions {
    /// Folders of recordings.
    pub inputs: Vec<PathBuf>,
    pub output: PathBuf,
    pub format: Format,
    pub view: ViewOptions,
    pub choice: Choice,
}

/// Result of an export.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Exported {
    pub rows: RowCounts,
    pub sources: Vec<SourceReport>,
    /// Ranks that more than one source has.
    pub twice: Vec<TwiceReport>,
    /// Unix times of the earliest and the latest record of all sources, in nanoseconds.
    pub span_unix_ns: Option<(u64, u64)>,
    /// Clocks of hosts whose times are by the clock of another one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clocks: Vec<HostClock>,
    /// Notes of the view.
    pub notes: Vec<String>,
    /// Ranks, communicators and processes that the recordings have, in words; `None`: none is known.
    #[serde(skip)]
    pub recorded: Option<String>,
}

/// Part of a source that was read.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceReport {
    pub path: PathBuf,
    pub host: String,
    /// Times of the rows that were taken, by the source's own clock, in nanoseconds: from the first until
    /// before the second.
    pub from_ns: u64,
    pub until_ns: Option<u64>,
    /// Number of records that were read for it.
    pub records: u64,
    pub undecodable: u64,
    pub first_undecodable: Option<String>,
    /// Set if the recording is incomplete.
    pub is_cut: bool,
    pub damaged_blocks: u64,
    pub damaged_bytes: u64,
    pub unknown_blocks: u64,
    /// Number of records that were removed before, as `--max-size` or `--max-age` wanted it.
    pub removed_records: u64,
    /// Number of removed records in blocks that later records need.
    pub removed_lasting: u64,
    /// Number of the recording's files that are missing.
    pub missing_segments: u64,
    #[serde(skip)]
    pub read: Read,
    /// Offset from its own clock to wall time.
    #[serde(skip)]
    pub(super) offset_ns: u64,
    /// The host by whose clock its wall times are, and how far its own clock is ahead of that.
    #[serde(skip)]
    pub(super) clock: Option<(String, Offset)>,
}

impl SourceReport {
    fn new(source: &Source, choice: &SourceChoice, read: Read) -> Self {
        let Damage { blocks, bytes, unknown, removed, removed_lasting, missing_segments } = read.damage;
        Self {
            path: source.path.clone(),
            host: source.host().to_owned(),
            from_ns: choice.from_ns,
            until_ns: (choice.until_ns < u64::MAX).then_some(choice.until_ns),
            records: read.records,
            undecodable: read.undecodable,
            first_undecodable: read.first_undecodable.clone(),
            is_cut: read.is_cut,
            damaged_blocks: blocks,
            damaged_bytes: bytes,
            unknown_blocks: unknown,
            removed_records: removed,
            removed_lasting,
            missing_segments,
            read,
            offset_ns: source.offset_ns(),
            clock: source.clock.clone(),
        }
    }
}

/// Makes the files that are asked for. If this fails before there is a file, there is no new folder either.
pub fn export(options: ExportOptions, progress: &mut dyn FnMut(ExportProgress)) -> Result<Exported> {
    let output = options.output.clone();
    let is_there = |path: &Path| path.as_os_str().is_empty() || path.exists();
    let new: Vec<PathBuf> = output.ancestors().take_while(|path| !is_there(path)).map(Into::into).collect();
    let exported = make_files(options, progress);
    if exported.is_err() && !new.is_empty() {
        // Folders that have files stay: this removes empty ones only.
        let of_jobs = fs::read_dir(&output).into_iter().flatten().flatten().map(|entry| entry.path());
        for folder in of_jobs.chain(new) {
            let _ = fs::remove_dir(folder);
        }
    }
    exported
}

fn make_files(options: ExportOptions, progress: &mut dyn FnMut(ExportProgress)) -> Result<Exported> {
    let ExportOptions { inputs, output, format, choice, .. } = &options;
    if format.is_by_job() && choice.chooses_no_process() {
        let jobs = Jobs::of(&sources(inputs)?).apart();
        if !jobs.is_empty() {
            // The folder of all, which must be new.
            drop(OutputDir::create(output)?);
            return make_folders(&options, jobs, progress);
        }
    }
    make_one(options, progress)
}

/// Makes a folder of files for each job, as their ranks have the same numbers.
fn make_folders(
    options: &ExportOptions,
    jobs: Vec<String>,
    progress: &mut dyn FnMut(ExportProgress),
) -> Result<Exported> {
    let mut all: Option<Exported> = None;
    let note = format!("{} jobs have a folder each: {}", jobs.len(), joined(&jobs, ", "));
    for job in jobs {
        let ExportOptions { inputs, output, format, view, choice } = options;
        let choice = Choice { jobs: vec![job.clone()], ..choice.clone() };
        // With the slash that makes it a folder, where it could be the beginning of a name.
        let output = output.join(jobs::folder(&job)).join("");
        let (inputs, view) = (inputs.clone(), view.clone());
        let one = ExportOptions { inputs, output, format: *format, view, choice };
        let mut made = make_one(one, progress).with_context(|| format!("of job {job}"))?;
        for note in &mut made.notes {
            *note = format!("job {job}: {note}");
        }
        match &mut all {
            None => all = Some(made),
            Some(all) => {
                all.rows += made.rows;
                all.twice.append(&mut made.twice);
                all.notes.append(&mut made.notes);
            }
        }
    }
    let mut all = all.context("there is no job")?;
    all.notes.insert(0, note);
    Ok(all)
}

fn make_one(options: ExportOptions, progress: &mut dyn FnMut(ExportProgress)) -> Result<Exported> {
    let ExportOptions { inputs, output, format, view, choice } = options;
    let is_all = choice.is_all();
    let chosen = if format.has_one_clock() {
        Chosen::by_one_clock(&inputs, choice, progress)?
    } else {
        Chosen::new(&inputs, choice)?
    };
    let exported = chosen.read_into(format.open(&output, &view)?, progress)?;
    if format.is_folder() && (!is_all || exported.sources.len() > 1) {
        // The folder is not the whole of one session.
        write_json(&OutputDir::open(&output)?, "export.json", &exported)?;
    }
    Ok(exported)
}

/// Recordings that were looked through, and the choice for each.
#[derive(Debug)]
pub(crate) struct Chosen {
    sources: Vec<Source>,
    span: Option<(u64, u64)>,
    choices: Vec<SourceChoice>,
    clocks: HostClocks,
}

impl Chosen {
    /// Looks through the recordings. An impossible choice fails before anything is written.
    pub(crate) fn new(inputs: &[PathBuf], choice: Choice) -> Result<Self> {
        Self::of(sources(inputs)?, choice, HostClocks::default())
    }

    /// Looks through the recordings; wall times of several hosts are by one clock, as far as it is known.
    /// Measured messages are read for that.
    pub(crate) fn by_one_clock(
        inputs: &[PathBuf],
        choice: Choice,
        progress: &mut dyn FnMut(ExportProgress),
    ) -> Result<Self> {
        let mut sources = sources(inputs)?;
        // The second reading is of as many bytes at most.
        let mut told = |bytes, all: u64| progress(ExportProgress { bytes, of_bytes: all.saturating_mul(2) });
        let clocks = HostClocks::set(&mut sources, &mut told)?;
        Self::of(sources, choice, clocks)
    }

    fn of(sources: Vec<Source>, choice: Choice, clocks: HostClocks) -> Result<Self> {
        let choice = choice.checked()?;
        let spans = sources.iter().filter_map(Source::wall_span_ns);
        let span = spans.reduce(|(first, last), (begin, end)| (first.min(begin), last.max(end)));
        let jobs = Jobs::of(&sources);
        jobs.ensure_has(&choice.jobs)?;
        let choices = sources
            .iter()
            .enumerate()
            .map(|(at, source)| {
                let job = |pid| jobs.name(at, pid).map(str::to_owned);
                choice.of_source(source, span.unwrap_or_default(), &job)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { sources, span, choices, clocks })
    }

    /// Returns the times of which rows are taken, by the clock of the source: from the first until before the
    /// second.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        self.choices.iter().map(|choice| (choice.from_ns, choice.until_ns)).collect()
    }

    /// Hands the rows to a view.
    pub(crate) fn read_into(
        self,
        mut view: Box<dyn View>,
        progress: &mut dyn FnMut(ExportProgress),
    ) -> Result<Exported> {
        let Self { sources, span, choices, clocks } = self;
        view.look_at(&sources)?;
        let mut exporting = Exporting::new(view);
        let of_bytes = clocks.bytes + sources.iter().map(|source| source.bytes).sum::<u64>();
        let (mut bytes, mut reports) = (clocks.bytes, Vec::new());
        for (source, choice) in sources.iter().zip(choices) {
            let mut told = |read: u64| progress(ExportProgress { bytes: bytes + read, of_bytes });
            let read;
            (exporting, read) = read_source(source, &choice, exporting, &mut told)
                .with_context(|| format!("in `{}`", source.path.display()))?;
            reports.push(SourceReport::new(source, &choice, read));
            bytes += source.bytes;
        }
        let Exporting { mut view, ranks, counts, .. } = exporting;
        let mut exported = Exported {
            rows: counts,
            sources: reports,
            twice: ranks.twice,
            span_unix_ns: span,
            clocks: clocks.known.clone(),
            notes: Vec::new(),
            recorded: recorded(&sources),
        };
        exported.notes = view.finish(&exported)?;
        exported.notes.extend(clocks.notes());
        Ok(exported)
    }
}

fn read_source(
    source: &Source,
    choice: &SourceChoice,
    mut exporting: Exporting,
    progress: &mut dyn FnMut(u64),
) -> Result<(Exporting, Read)> {
    exporting.ranks.begin(source);
    exporting.view.begin(source)?;
    let goes_on = Arc::new(AtomicBool::new(false));
    let rows = ChosenRows::new(choice.clone(), exporting, &goes_on);
    let member = |member: &_| choice.takes_member(member);
    let selection =
        Selection { from_ns: choice.read_from_ns, to_ns: choice.read_to_ns, member: Some(&member) };
    let part = ReadPart {
        selection,
        until_ns: choice.until_ns,
        progress,
        goes_on: &mut || goes_on.store(true, Ordering::Relaxed),
        is_stopped: &|| false,
    };
    let (ChosenRows { mut to, .. }, read) = source.read(rows, part)?;
    match to.failed.take() {
        Some(error) => Err(error),
        None => Ok((to, read)),
    }
}

/// Writes a file of JSON, for people too.
pub(super) fn write_json(dir: &OutputDir, name: &str, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)? + "\n";
    dir.replace_file(Share::Free, name, |file| file.write_all(text.as_bytes()))
        .with_context(|| format!("writing `{name}`"))
}
