//! CPU time per record, of the drain alone, and of each stage after it.

mod load;
mod stages;

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use flow::session::BufferKind;
use serde_json::{Value, json};
use test_support::cpu_time;

use crate::{
    bench::Bench,
    table::{Spread, Table},
};

/// Folder of recordings of real jobs.
const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../traces");

pub(crate) fn run(bench: &mut Bench) -> Result<Value> {
    let mut table = Table::default();
    let mut add = |what: &str, ns: Vec<f64>, record_bytes: u64, records: u64, lost: u64| {
        let ns_per_record = Spread::of(ns);
        table.add([
            ("what", json!(what)),
            ("ns_per_record", json!(ns_per_record)),
            ("records_per_second_and_core", json!(1e9 / ns_per_record.median)),
            ("record_bytes", json!(record_bytes)),
            ("records", json!(records)),
            ("lost", json!(lost)),
        ]);
    };
    for (name, buffer) in [("ring", BufferKind::Ring), ("perf", BufferKind::Perf)] {
        for (how, load) in [
            ("full", load::burst as fn(BufferKind) -> Result<load::Drained>),
            ("2 threads that hit", load::sustained),
        ] {
            let runs = (0..bench.rounds).map(|_| load(buffer)).collect::<Result<Vec<_>>>()?;
            let total = |of: fn(&load::Drained) -> u64| runs.iter().map(of).sum::<u64>();
            let (delivered, lost) = (total(|run| run.delivered), total(|run| run.lost));
            ensure!(
                lost == 0 || how == "full",
                "{lost} records were lost although the drain had nothing else to do"
            );
            let ns = runs.iter().map(|run| per(run.cpu, run.delivered)).collect();
            add(&format!("{name}, {how}"), ns, load::RECORD_BYTES.into(), delivered, lost);
        }
    }
    for (level, recording) in [("flow", "nvlink_flow"), ("steps", "net_steps")] {
        let stages = stages::run(&Path::new(TRACES).join(recording), bench.rounds)?;
        for (stage, ns) in stages.ns_per_record {
            add(&format!("{level}: {stage}"), ns, stages.bytes / stages.records.max(1), stages.records, 0);
        }
    }
    Ok(table.into_json())
}

/// CPU time of this thread.
pub(crate) fn timed(work: impl FnOnce()) -> Duration {
    let begun = cpu_time();
    work();
    cpu_time().saturating_sub(begun)
}

/// Returns the nanoseconds of each record.
#[expect(clippy::cast_precision_loss, reason = "a mean, for people")]
fn per(time: Duration, records: u64) -> f64 {
    time.as_nanos() as f64 / records.max(1) as f64
}
