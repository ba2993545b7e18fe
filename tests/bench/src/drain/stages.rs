//! The stages after the drain, on the records of a recording in memory. Each stage is timed
//! together with those before it.

use std::{hint::black_box, path::Path, time::Duration};

use anyhow::Result;
use flow::{
    model::{Node, Session},
    recording::{Batch, Binding},
    wire::ProbeKind,
};
use recording::{
    rows::Pipeline,
    sinks::{Layout, OutputDir, SessionFiles},
};

use super::{per, timed};
use crate::recorded::{Recorded, event_of};

/// Nanoseconds of CPU per record, round by round, by stages.
#[derive(Debug, Default)]
pub(super) struct Stages {
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) ns_per_record: [(String, Vec<f64>); 3],
}

pub(super) fn run(recording: &Path, rounds: usize) -> Result<Stages> {
    let recorded = Recorded::read(recording)?;
    let (mut batch, bindings) = (Batch::default(), &recorded.bindings[..]);
    recorded.records().for_each(|record| batch.push(record));
    let records = batch.len() as u64;
    let [mut decoding, mut modelling, mut writing] = <[Vec<f64>; 3]>::default();
    let mut lines = 0;
    for _ in 0..rounds {
        decoding.push(per(decode(bindings, &batch), records));
        modelling.push(per(model(bindings, &batch), records));
        let time;
        (time, lines) = write(bindings, &batch)?;
        writing.push(per(time, records));
    }
    #[expect(clippy::cast_precision_loss, reason = "a mean, for people")]
    let lines = lines as f64 / records.max(1) as f64;
    let ns_per_record = [
        ("decode".to_owned(), decoding),
        ("decode, model".to_owned(), modelling),
        (format!("…, {lines:.1} lines"), writing),
    ];
    Ok(Stages { records, bytes: batch.bytes().len() as u64, ns_per_record })
}

fn decode(bindings: &[Binding], batch: &Batch) -> Duration {
    timed(|| batch.records().for_each(|record| drop(black_box(event_of(bindings, record)))))
}

fn model(bindings: &[Binding], batch: &Batch) -> Duration {
    let steps = bindings.iter().any(|binding| matches!(binding.kind, ProbeKind::ProxyStep(_)));
    let (mut session, mut node) = (Session::new(steps), Node::default());
    timed(|| {
        for event in batch.records().filter_map(|record| event_of(bindings, record)) {
            session.apply(event, &mut node, &mut |record| drop(black_box(record)));
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
