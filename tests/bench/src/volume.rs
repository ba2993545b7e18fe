//! Disk space of a recording, and the cost of writing and reading it.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use flow::decode::Event;
use recording::{
    format::{FOLDER, Item, Progress, RecordingReader, RecordingWriter, Selection},
    sinks::OutputDir,
};
use serde_json::{Value, json};

use crate::{
    drain::timed,
    recorded::{Recorded, event_of},
    table::{Spread, Table},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Recordings
    #[arg(value_name = "DIR", default_values = [
        concat!(env!("CARGO_MANIFEST_DIR"), "/../traces/nvlink_flow"),
        concat!(env!("CARGO_MANIFEST_DIR"), "/../traces/net_steps"),
    ])]
    recordings: Vec<PathBuf>,
}

pub(crate) fn run(args: &Args, rounds: usize) -> Result<Value> {
    let mut table = Table::default();
    for recording in &args.recordings {
        let recorded = Recorded::read(recording)?;
        let name = recording.file_name().context("a recording without a name")?.to_string_lossy();
        let events = || recorded.records().map(|record| event_of(&recorded.bindings, record));
        let records = u32::try_from(events().count())?;
        let launches = u32::try_from(events().filter(|event| matches!(event, Some(Event::Plan(_)))).count())?;
        let raw_bytes: usize = recorded.blocks.iter().flatten().map(|batch| batch.bytes().len()).sum();
        let (mut bytes, mut writing, mut reading) = (0, Vec::new(), Vec::new());
        let seconds_per_million = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(records);
        for _ in 0..rounds {
            let folder = tempfile::tempdir()?;
            let dir = OutputDir::create(&folder.path().join("out"))?;
            let time;
            (time, bytes) = write(&recorded, &dir)?;
            writing.push(seconds_per_million(time));
            reading.push(seconds_per_million(read(&dir, records)?));
        }
        #[expect(clippy::cast_precision_loss, reason = "a mean, for people")]
        let each = |of: u32| (of > 0).then(|| bytes as f64 / f64::from(of));
        table.add([
            ("recording", json!(name)),
            ("records", json!(records)),
            ("raw_bytes", json!(raw_bytes)),
            ("bytes", json!(bytes)),
            ("bytes_per_launch", json!(each(launches))),
            ("bytes_per_record", json!(each(records))),
            ("write_s_per_million", json!(Spread::of(writing))),
            ("read_s_per_million", json!(Spread::of(reading))),
        ]);
    }
    Ok(table.into_json())
}

/// Writes a recording anew. Returns the CPU time, and the bytes on disk.
fn write(recorded: &Recorded, dir: &OutputDir) -> Result<(Duration, u64)> {
    let mut writer = RecordingWriter::create(dir, recorded.session.clone())?;
    writer.bind(|known| known.clone_from(&recorded.bindings));
    let mut written = Ok(());
    let time = timed(|| {
        written = recorded.blocks.iter().try_for_each(|block| {
            block.iter().try_for_each(|batch| writer.push(batch))?;
            writer.close_block()
        });
    });
    written?;
    let bytes = writer.totals().bytes;
    writer.write_end("{}")?;
    Ok((time, bytes))
}

/// Reads so many records. Returns the CPU time.
fn read(dir: &OutputDir, expected: u32) -> Result<Duration> {
    let mut reader = RecordingReader::open(dir.open_subfolder(FOLDER)?)?;
    let (mut records, mut result) = (0, Ok(Progress::Read));
    let time = timed(|| {
        let mut take = |item: Item<'_>| records += u32::from(matches!(item, Item::Record(_)));
        while matches!(result, Ok(Progress::Read)) {
            result = reader.read_next(&Selection::ALL, &mut take);
        }
    });
    result?;
    ensure!(records == expected, "{records} records of {expected} were read");
    Ok(time)
}
