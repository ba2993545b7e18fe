//! The stages after the drain, on the records of a recording in memory. Each stage is timed
//! together with those before it.

use std::{hint::black_box, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use flow::recording::Batch;
use flow::{
    decode::RecordView,
    model::{Node, Session},
    recording::Binding,
    wire::ProbeKind,
};
use ncclflow::{
    rows::Pipeline,
    sinks::{Layout, OutputDir, SessionFiles},
};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::volume::{Recorded, read_recording};

/// Nanoseconds of CPU per record, round by round.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Stages {
    records: usize,
    bytes: usize,
    /// Lines that are written for these records.
    lines: u64,
    decode_ns: Vec<f64>,
    decode_and_model_ns: Vec<f64>,
    decode_model_and_write_ns: Vec<f64>,
}

pub(crate) fn run(recording: &Path, rounds: u32) -> Result<Stages> {
    let Recorded { bindings, blocks, .. } =
        read_recording(recording).with_context(|| format!("reading `{}`", recording.display()))?;
    let mut batch = Batch::default();
    for record in blocks.iter().flatten().flat_map(|batch| batch.records()) {
        batch.push(record);
    }
    let mut stages = Stages { records: batch.len(), bytes: batch.bytes().len(), ..Stages::default() };
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    let per_record = |time: Duration| time.as_nanos() as f64 / batch.len().max(1) as f64;
    for _ in 0..rounds {
        stages.decode_ns.push(per_record(decode(&bindings, &batch)));
        stages.decode_and_model_ns.push(per_record(model(&bindings, &batch)));
        let (time, lines) = write(&bindings, &batch)?;
        stages.decode_model_and_write_ns.push(per_record(time));
        stages.lines = lines;
    }
    Ok(stages)
}

fn decode(bindings: &[Binding], batch: &Batch) -> Duration {
    timed(|| {
        for record in batch.records() {
            if let Ok(view) = RecordView::new(record)
                && let Some(binding) = bindings.get(usize::from(view.header.probe))
            {
                let _ = black_box(binding.decoder.decode(&binding.kind, &view));
            }
        }
    })
}

fn model(bindings: &[Binding], batch: &Batch) -> Duration {
    let steps = bindings.iter().any(|binding| matches!(binding.kind, ProbeKind::ProxyStep(_)));
    let (mut session, mut node) = (Session::new(steps), Node::default());
    timed(|| {
        for record in batch.records() {
            if let Ok(view) = RecordView::new(record)
                && let Some(binding) = bindings.get(usize::from(view.header.probe))
                && let Ok(event) = binding.decoder.decode(&binding.kind, &view)
            {
                session.apply(event, &mut node, &mut |record| drop(black_box(record)));
            }
        }
    })
}

/// Writes into the folder for temporary files; gives also the number of lines.
fn write(bindings: &[Binding], batch: &Batch) -> Result<(Duration, u64)> {
    let folder = tempfile::tempdir()?;
    let dir = OutputDir::create(&folder.path().join("out"))?;
    let files = SessionFiles::new(dir, Layout::default());
    let mut pipeline = Pipeline::new(bindings.to_vec(), files);
    let time = timed(|| {
        batch.records().for_each(|record| pipeline.record(record));
        pipeline.finish();
    });
    let lines =
        pipeline.files().ranks().iter().map(|rank| rank.proxy_flow_lines + rank.flow_steps_lines).sum();
    Ok((time, lines))
}

/// CPU time of this thread.
pub(crate) fn timed(work: impl FnOnce()) -> Duration {
    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
    };
    let begun = now();
    work();
    now().saturating_sub(begun)
}
