//! What a recording of a capture's records takes on disk, and what it costs to write and to read it.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use flate2::bufread::GzDecoder;
use flow::{
    decode::{Event, RecordView, StepMoment},
    model::Sampling,
};
use ncclflow::{
    capture::{Binding, CaptureReader, Item as CaptureItem},
    kernel::stream::Batch,
    recording::{self, FOLDER, Item, Progress, RecordingReader, RecordingWriter, Selection, Session},
    sinks::OutputDir,
};
use serde::Serialize;

use crate::stages::timed;

/// A block holds the records of so much time.
const BLOCK_NS: u64 = recording::BLOCK_TIME.as_secs() * 1_000_000_000;

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

pub(crate) fn run(capture: &Path, rounds: u32) -> Result<Volume> {
    let Captured { session, bindings, blocks } =
        read_capture(capture).with_context(|| format!("reading `{}`", capture.display()))?;
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

/// What a capture has.
pub(crate) struct Captured {
    pub(crate) session: Session,
    pub(crate) bindings: Vec<Binding>,
    /// Batches as the drain makes them, by the blocks that a recording would have.
    pub(crate) blocks: Vec<Vec<Arc<Batch>>>,
}

pub(crate) fn read_capture(capture: &Path) -> Result<Captured> {
    let file = BufReader::new(File::open(capture)?);
    let is_compressed = capture.extension().is_some_and(|extension| extension == "gz");
    let input: Box<dyn BufRead> =
        if is_compressed { Box::new(BufReader::new(GzDecoder::new(file))) } else { Box::new(file) };
    let (mut reader, header) = CaptureReader::new(input)?;
    let (mut blocks, mut batch, mut begun) = (vec![Vec::new()], Batch::default(), None);
    while let CaptureItem::Record(record) = reader.next_item()? {
        let at = RecordView::new(record).map_or(0, |view| view.header.ts_ns);
        let is_over = at > *begun.get_or_insert(at) + BLOCK_NS;
        if (is_over || batch.is_full())
            && let Some(block) = blocks.last_mut()
        {
            block.push(Arc::new(std::mem::take(&mut batch)));
        }
        if is_over {
            blocks.push(Vec::new());
            begun = Some(at);
        }
        batch.push(record);
    }
    if let Some(block) = blocks.last_mut() {
        block.push(Arc::new(batch));
    }
    let session = Session {
        wire_version: header.wire_version,
        report: header.report,
        api: header.api,
        sampling: Sampling::default(),
        ..Session::default()
    };
    Ok(Captured { session, bindings: header.bindings, blocks })
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
