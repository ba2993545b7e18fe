//! Size on disk of a recording, and what it costs to write and to read it.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use flow::recording::Batch;
use flow::{
    decode::{Event, RecordView, StepMoment},
    recording::{Binding, Session},
};
use ncclflow::{
    recording::{FOLDER, Item, Progress, RecordingReader, RecordingWriter, Selection},
    sinks::OutputDir,
};
use serde::Serialize;

use crate::stages::timed;

/// Bytes, and seconds of CPU round by round.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Volume {
    records: u64,
    raw_bytes: u64,
    /// Walked plans.
    launches: u64,
    /// Messages that were measured to their end.
    messages: u64,
    bytes: u64,
    blocks: u64,
    write_s: Vec<f64>,
    read_s: Vec<f64>,
}

pub(crate) fn run(recording: &Path, rounds: u32) -> Result<Volume> {
    let Recorded { session, bindings, blocks } =
        read_recording(recording).with_context(|| format!("reading `{}`", recording.display()))?;
    let mut volume = Volume::default();
    for batch in blocks.iter().flatten() {
        volume.raw_bytes += batch.bytes().len() as u64;
        for record in batch.records() {
            count(&mut volume, &bindings, record);
        }
    }
    for _ in 0..rounds {
        let folder = tempfile::tempdir()?;
        let dir = OutputDir::create(&folder.path().join("out"))?;
        let mut writer = RecordingWriter::create(&dir, session.clone())?;
        writer.bind(|known| known.clone_from(&bindings));
        let mut failed = Ok(());
        let time = timed(|| {
            failed = blocks.iter().try_for_each(|block| {
                block.iter().try_for_each(|batch| writer.push(batch))?;
                writer.close_block()
            });
        });
        failed?;
        let totals = writer.totals();
        writer.write_end("{}")?;
        (volume.bytes, volume.blocks) = (totals.bytes, totals.blocks);
        volume.write_s.push(time.as_secs_f64());
        volume.read_s.push(read(&dir, totals.records)?.as_secs_f64());
    }
    Ok(volume)
}

fn read(dir: &OutputDir, expected: u64) -> Result<Duration> {
    let mut reader = RecordingReader::open(dir.open_subfolder(FOLDER)?)?;
    let (mut records, mut failed) = (0u64, None);
    let time = timed(|| {
        let mut take = |item: Item<'_>| records += u64::from(matches!(item, Item::Record(_)));
        while failed.is_none() {
            match reader.read_next(&Selection::ALL, &mut take) {
                Ok(Progress::Read) => {}
                Ok(Progress::AtEnd) => break,
                Err(error) => failed = Some(error),
            }
        }
    });
    failed.map_or(Ok(()), Err)?;
    ensure!(records == expected, "{records} records of {expected} were read");
    Ok(time)
}

/// A recording that was read.
pub(crate) struct Recorded {
    pub(crate) session: Session,
    pub(crate) bindings: Vec<Binding>,
    /// Batches as the drain makes them, by blocks.
    pub(crate) blocks: Vec<Vec<Arc<Batch>>>,
}

pub(crate) fn read_recording(recording: &Path) -> Result<Recorded> {
    let mut reader = RecordingReader::open(OutputDir::open(recording)?)?;
    let (mut bindings, mut blocks) = (Vec::new(), Vec::new());
    loop {
        let (mut block, mut batch) = (Vec::new(), Batch::default());
        let mut take = |item: Item<'_>| match item {
            Item::Bindings(new) => bindings.extend_from_slice(new),
            Item::Record(record) => {
                if batch.is_full() {
                    block.push(Arc::new(std::mem::take(&mut batch)));
                }
                batch.push(record);
            }
            Item::Event(_) | Item::End(_) => {}
        };
        let progress = reader.read_next(&Selection::ALL, &mut take)?;
        block.push(Arc::new(batch));
        blocks.push(block);
        if progress == Progress::AtEnd {
            break;
        }
    }
    Ok(Recorded { session: reader.session().clone(), bindings, blocks })
}

fn count(volume: &mut Volume, bindings: &[Binding], record: &[u8]) {
    volume.records += 1;
    let Ok(view) = RecordView::new(record) else { return };
    let Some(binding) = bindings.get(usize::from(view.header.probe)) else { return };
    match binding.decoder.decode(&binding.kind, &view) {
        Ok(Event::Plan(_)) => volume.launches += 1,
        Ok(Event::ProxyStep(step)) => volume.messages += u64::from(step.moment == StepMoment::Stop),
        _ => {}
    }
}
