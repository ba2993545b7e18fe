//! Time of a job under the tracer, divided by its time alone, by ranks, channels and operations per group.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{
    bench::Bench,
    table::{Spread, Table},
};

/// Ranks, channels, operations per group.
const SHAPES: [[u32; 3]; 7] = [[2, 1, 1], [4, 1, 1], [8, 1, 1], [2, 2, 1], [2, 4, 1], [2, 1, 4], [2, 1, 16]];

/// Operations of one run.
const OPS: u32 = 480;

pub(crate) fn run(bench: &mut Bench) -> Result<Value> {
    let mut table = Table::default();
    for shape in SHAPES {
        let (mut untraced, mut ratios, mut records) = (Vec::new(), Vec::new(), 0);
        for _ in 0..bench.rounds {
            let without = run_once(bench, shape, false)?.0;
            let (with, came) = run_once(bench, shape, true)?;
            untraced.push(without * 1e6 / f64::from(OPS));
            // To the untraced run before it.
            ratios.push(with / without);
            records = came;
        }
        let [ranks, channels, group] = shape;
        #[expect(clippy::cast_precision_loss, reason = "a mean, for people")]
        let records_per_op = records as f64 / f64::from(OPS);
        table.add([
            ("ranks", json!(ranks)),
            ("channels", json!(channels)),
            ("group", json!(group)),
            ("untraced_us_per_op", json!(Spread::of(untraced))),
            ("ratio", json!(Spread::of(ratios))),
            ("records_per_op", json!(records_per_op)),
        ]);
    }
    Ok(table.into_json())
}

/// Runs the job once. Returns the seconds that its operations took, and the records that were delivered.
fn run_once(bench: &mut Bench, [ranks, channels, group]: [u32; 3], traced: bool) -> Result<(f64, u64)> {
    let job = bench.job(&format!(
        "--ranks {ranks} --channels {channels} --group {group} --iters {OPS} --ops allreduce --bytes 65536"
    ))?;
    let recording = traced.then(|| bench.record(&job.pid_list(), "--level flow")).transpose()?;
    job.go()?;
    let seconds = job.summary()?["seconds"].as_f64().context("the bed did not say how long it took")?;
    let Some(recording) = recording else { return Ok((seconds, 0)) };
    Ok((seconds, recording.finish()?.records_delivered()))
}
