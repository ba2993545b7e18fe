//! Makes a recording's files again from what was kept of it, through the same way as the live records.

use std::{
    fs::File,
    io::{BufReader, ErrorKind, Write as _},
    path::Path,
};

use anyhow::{Context as _, Result};

use super::{consumers::STRAGGLE_NS, pipeline::Pipeline};
use crate::{
    capture::{self, CaptureReader},
    recording::{Damage, FOLDER, Item, Progress, RecordingReader, Selection},
    sinks::{MAX_AGGREGATED, OutputDir, SessionFiles, Share, aggregate_directory},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    pub records: u64,
    /// Records that could not be understood.
    pub undecodable: u64,
    /// There is no report at the end: the recording was killed, its disk was full, or it still goes on.
    pub is_cut: bool,
    /// What could not be read.
    pub damage: Damage,
}

/// Replays the capture, or the recording in the folder `input`, into the new folder `output`. `session.json` is the live session's.
pub fn replay(input: &Path, output: &Path) -> Result<Replayed> {
    if input.is_dir() { replay_recording(input, output) } else { replay_capture(input, output) }
}

fn replay_recording(input: &Path, output: &Path) -> Result<Replayed> {
    let dir = OutputDir::open(input)?;
    let folder = match dir.open_subfolder(FOLDER) {
        Err(error) if error.kind() == ErrorKind::NotFound => dir,
        folder => folder.with_context(|| format!("opening the recording in `{}`", input.display()))?,
    };
    let mut reader = RecordingReader::open(folder)?;
    let files = SessionFiles::new(OutputDir::create(output)?, reader.session().api);
    let mut pipeline = Pipeline::reading(reader.session(), files);
    let (mut records, mut report) = (0, None);
    let mut take = |item: Item<'_>, pipeline: &mut Pipeline| {
        records += u64::from(matches!(item, Item::Record(_)));
        if let Item::End(text) = item {
            report = Some(text);
        } else {
            pipeline.take(item);
        }
    };
    while reader.read_next(&Selection::ALL, &mut |item| take(item, &mut pipeline))? == Progress::Read {
        pipeline.close_ended_before(pipeline.last_ns.saturating_sub(STRAGGLE_NS));
    }
    let is_cut = report.is_none();
    let report = report.unwrap_or_else(|| reader.session().report.clone());
    let undecodable = complete(pipeline, &report)?;
    Ok(Replayed { records, undecodable, is_cut, damage: reader.damage() })
}

fn replay_capture(input: &Path, output: &Path) -> Result<Replayed> {
    let context = || format!("reading the capture `{}`", input.display());
    let file = File::open(input).with_context(context)?;
    let (mut reader, header) =
        CaptureReader::new(BufReader::with_capacity(1 << 20, file)).with_context(context)?;
    let files = SessionFiles::new(OutputDir::create(output)?, header.api);
    let mut pipeline = Pipeline::new(header.bindings, files);
    pipeline.traced.sampling = header.sampling;
    let mut records = 0;
    let (report, is_cut) = loop {
        match reader.next_item().with_context(context)? {
            capture::Item::Record(record) => pipeline.record(record),
            capture::Item::Report(report) => break (report, false),
            capture::Item::Cut => break (header.report, true),
        }
        records += 1;
    };
    let undecodable = complete(pipeline, &report)?;
    Ok(Replayed { records, undecodable, is_cut, damage: Damage::default() })
}

/// Completes the files. Gives the number of records that could not be understood.
fn complete(mut pipeline: Pipeline, report: &str) -> Result<u64> {
    pipeline.finish();
    let dir = pipeline.files().dir().context("a replay writes files")?;
    dir.replace_file(Share::Free, "session.json", |file| file.write_all(report.as_bytes()))
        .context("writing `session.json`")?;
    if !pipeline.files().has_no_flows() {
        aggregate_directory(dir, MAX_AGGREGATED)?;
    }
    if let Some(error) = pipeline.files().errors().first() {
        anyhow::bail!("{error}");
    }
    Ok(pipeline.undecodable)
}
