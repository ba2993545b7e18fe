//! `cargo xtask bench scale`: time of a job under the tracer, divided by its time alone, by ranks, channels
//! and operations per group.

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use super::{Repeated, spread::Spread, traced_job::Bench};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    repeated: Repeated,

    /// What is recorded
    #[arg(long, default_value = "flow", value_parser = ["flow", "steps"])]
    level: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Shape {
    ranks: u32,
    channels: u32,
    group: u32,
}

#[derive(Debug, Serialize)]
struct Row {
    shape: Shape,
    untraced_us_per_op: Spread,
    /// Time of the traced run divided by that of the untraced run before it.
    ratio: Spread,
    records_per_op: f64,
}

/// Operations of one run.
const OPS: u32 = 480;

pub(crate) fn run(args: &Args) -> Result<Value> {
    let mut bench = Bench::prepare(&args.repeated.nccl, "scale")?;
    let base = Shape { ranks: 2, channels: 1, group: 1 };
    let shapes = [
        base,
        Shape { ranks: 4, ..base },
        Shape { ranks: 8, ..base },
        Shape { channels: 2, ..base },
        Shape { channels: 4, ..base },
        Shape { group: 4, ..base },
        Shape { group: 16, ..base },
    ];
    let mut rows = Vec::new();
    println!(
        "\n{:>6} {:>9} {:>10} {:>26} {:>26} {:>14}",
        "ranks", "channels", "ops/group", "untraced, µs per op", "traced / untraced", "records/op"
    );
    for shape in shapes {
        let (mut untraced, mut ratios, mut records) = (Vec::new(), Vec::new(), 0);
        for _ in 0..args.repeated.rounds {
            let without = run_once(&mut bench, shape, None)?.0;
            let (with, came) = run_once(&mut bench, shape, Some(&args.level))?;
            untraced.push(without * 1e6 / f64::from(OPS));
            ratios.push(with / without);
            records = came;
        }
        #[expect(clippy::cast_precision_loss, reason = "a mean, for people")]
        let records_per_op = records as f64 / f64::from(OPS);
        let row = Row {
            shape,
            untraced_us_per_op: Spread::of(untraced),
            ratio: Spread::of(ratios),
            records_per_op,
        };
        println!(
            "{:>6} {:>9} {:>10} {:>26} {:>26} {:>14.1}",
            shape.ranks,
            shape.channels,
            shape.group,
            row.untraced_us_per_op.to_string(),
            row.ratio.to_string(),
            row.records_per_op
        );
        rows.push(row);
    }
    Ok(serde_json::to_value(rows)?)
}

/// Runs the job once. Returns the seconds that its operations took, and the records that were delivered.
fn run_once(bench: &mut Bench, shape: Shape, level: Option<&String>) -> Result<(f64, u64)> {
    let [ranks, channels, group, iters] =
        [shape.ranks, shape.channels, shape.group, OPS].map(|number| number.to_string());
    let job = bench.job(&[
        "--ranks",
        &ranks,
        "--channels",
        &channels,
        "--group",
        &group,
        "--iters",
        &iters,
        "--ops",
        "allreduce",
        "--bytes",
        "65536",
    ])?;
    let recording = level.map(|level| bench.record(&job, &["--level", level])).transpose()?;
    job.go()?;
    let seconds = job.finish()?;
    let Some(recording) = recording else { return Ok((seconds, 0)) };
    Ok((seconds, recording.finish()?.records_delivered()))
}
