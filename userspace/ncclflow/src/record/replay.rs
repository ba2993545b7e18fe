//! Makes a recording's files again from its capture, through the same way as the live records.

use std::{fs::File, io::BufReader, io::Write as _, path::Path};

use anyhow::{Context as _, Result};

use super::pipeline::Pipeline;
use crate::{
    capture::{CaptureReader, Item},
    sinks::{MAX_AGGREGATED, OutputDir, SessionFiles, Share, aggregate_directory},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    pub records: u64,
    /// Records that could not be understood.
    pub undecodable: u64,
    /// The capture ends without a report: the recording was killed, or its disk was full.
    pub is_cut: bool,
}

/// Replays the capture at `input` into the new folder `output`. `session.json` is the live session's.
pub fn replay(input: &Path, output: &Path) -> Result<Replayed> {
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
            Item::Record(record) => pipeline.record(record),
            Item::Report(report) => break (report, false),
            Item::Cut => break (header.report, true),
        }
        records += 1;
    };
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
    Ok(Replayed { records, undecodable: pipeline.undecodable, is_cut })
}
