//! The same job untraced and under each way of tracing, in turn.
//!
//! On the bed, ratios of times say little: launches are slow, kernels are emulated on the same cores,
//! and a uprobe hit costs several times what it costs on a real host. The figure to read is *traps per
//! kernel launch*, by the kernel's own counts: it is the same on every machine. tests/gpu/overhead.py
//! measures the same on GPUs.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{
    bench::Bench,
    table::{Spread, Table},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Bytes of each all-reduce
    #[arg(long, default_value_t = 4096)]
    bytes: u32,
}

/// Ways of tracing, and the options of `record`. The first is not traced.
const WAYS: [(&str, &str); 6] = [
    ("untraced", ""),
    ("api", "--level api"),
    ("api-returns", "--level api --returns"),
    ("flow", "--level flow"),
    ("flow-per-call", "--level flow --probes per-call"),
    ("steps", "--level steps"),
];

/// A turn of a way.
#[derive(Debug)]
struct Turn {
    us_per_op: f64,
    traps_per_launch: f64,
    records_lost: u64,
}

pub(crate) fn run(bench: &mut Bench, args: &Args) -> Result<Value> {
    let mut turns = WAYS.map(|_| Vec::new());
    for round in 0..bench.rounds {
        // Each round begins with another way, as the first turn finds the machine in another state.
        for step in 0..WAYS.len() {
            let at = (round + step) % WAYS.len();
            let (way, options) = WAYS[at];
            eprintln!("round {} of {}: {way}", round + 1, bench.rounds);
            let turn = turn(bench, args.bytes, options).with_context(|| format!("the turn of {way}"))?;
            turns[at].push(turn);
        }
    }
    let mut table = Table::default();
    for ((way, _), of_way) in WAYS.iter().zip(&turns) {
        let spread = |value: fn(&Turn) -> f64| json!(Spread::of(of_way.iter().map(value)));
        // To the untraced turn of the same round.
        let ratios = of_way.iter().zip(&turns[0]).map(|(turn, base)| turn.us_per_op / base.us_per_op);
        table.add([
            ("way", json!(way)),
            ("traps_per_launch", spread(|turn| turn.traps_per_launch)),
            ("us_per_op", spread(|turn| turn.us_per_op)),
            ("us_per_op_ratio", json!(Spread::of(ratios))),
            ("records_lost", json!(of_way.iter().map(|turn| turn.records_lost).sum::<u64>())),
        ]);
    }
    Ok(json!({
        "machine": "bed: emulated GPU; read traps_per_launch, not the ratios",
        "bytes": args.bytes,
        "ways": table.into_json(),
    }))
}

/// Runs the job once, under `record` if this has options.
fn turn(bench: &mut Bench, bytes: u32, options: &str) -> Result<Turn> {
    let job = bench.job(&format!("--mode processes --ranks 2 --bytes {bytes} --iters 400"))?;
    let recording = (!options.is_empty()).then(|| bench.record(&job.pid_list(), options)).transpose()?;
    job.go()?;
    let summary = job.summary()?;
    let session = match recording {
        Some(recording) => recording.finish()?.json,
        None => Value::Null,
    };
    let number = |key: &str| summary[key].as_f64().with_context(|| format!("the bed's {key}"));
    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    let traps = traps(&session) as f64;
    Ok(Turn {
        us_per_op: number("seconds")? * 1e6 / number("ops")?,
        traps_per_launch: traps / number("launches")?,
        records_lost: session["loss"]["records_lost"].as_u64().unwrap_or(0),
    })
}

/// Returns how often the job's threads trapped into the kernel, by the kernel's own counts.
fn traps(session: &Value) -> u64 {
    // Parts of a walk run inside the hit of its probe.
    let probes = session["probes"].as_array().into_iter().flatten().filter(|probe| probe["part"].is_null());
    let traps = probes.clone().map(|probe| {
        let hits = probe["hits"].as_u64().unwrap_or(0);
        // A return is diverted by a breakpoint at the entry, which may serve another probe, too.
        let entry = |other: &Value| {
            other["symbol"] == probe["symbol"] && other["pid"] == probe["pid"] && other["at"] == "entry"
        };
        if probe["at"] == "return" && !probes.clone().any(entry) { 2 * hits } else { hits }
    });
    traps.sum()
}
