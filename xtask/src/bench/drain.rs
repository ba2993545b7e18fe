//! `cargo xtask bench drain`: CPU time per record, of the drain alone, and of each stage after it.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{Repeated, spread::Spread, traced_job::Bench};
use crate::tool;

/// Output of `ncclflow-bench burst` and `sustained`.
#[derive(Debug, Deserialize)]
struct Drained {
    hits: u64,
    delivered: u64,
    lost: u64,
    record_bytes: u64,
    wall_s: f64,
    cpu_s: f64,
}

/// Output of `ncclflow-bench stages`.
#[derive(Debug, Deserialize)]
struct Stages {
    records: u64,
    bytes: u64,
    lines: u64,
    decode_ns: Vec<f64>,
    decode_and_model_ns: Vec<f64>,
    decode_model_and_write_ns: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Row {
    what: String,
    ns_per_record: Spread,
    records_per_second_and_core: f64,
    record_bytes: u64,
    records: u64,
    lost: u64,
}

impl Row {
    fn new(
        what: String,
        ns: impl IntoIterator<Item = f64>,
        record_bytes: u64,
        records: u64,
        lost: u64,
    ) -> Self {
        let ns_per_record = Spread::of(ns);
        let records_per_second_and_core = 1e9 / ns_per_record.median;
        Self { what, ns_per_record, records_per_second_and_core, record_bytes, records, lost }
    }

    fn print(&self) {
        println!(
            "{:<44} {:>24} {:>12.0} {:>8} {:>10} {:>6}",
            self.what,
            self.ns_per_record.to_string(),
            self.records_per_second_and_core,
            self.record_bytes,
            self.records,
            self.lost
        );
    }
}

pub(crate) fn run(args: &Repeated) -> Result<Value> {
    let mut bench = Bench::prepare(&args.nccl, "drain")?;
    let program = bench.programs.join("ncclflow-bench");
    println!(
        "\n{:<44} {:>24} {:>12} {:>8} {:>10} {:>6}",
        "CPU time per record", "ns", "records/s", "bytes", "records", "lost"
    );
    let mut rows = Vec::new();
    let mut add = |row: Row| {
        row.print();
        rows.push(row);
    };
    for buffer in ["ring", "perf"] {
        // The buffer is filled first, by threads that pay for a trap each time, and then drained.
        let arguments = ["burst", "--buffer", buffer, "--buffer-size", "128", "--count", "100000"];
        add(drained(&program, &format!("drain alone, {buffer}, buffer full"), &arguments, args.rounds)?);
        let arguments =
            ["sustained", "--buffer", buffer, "--buffer-size", "16", "--threads", "2", "--count", "3"];
        let row = drained(
            &program,
            &format!("drain alone, {buffer}, 2 threads that hit"),
            &arguments,
            args.rounds,
        )?;
        if row.lost > 0 {
            bail!("{} records were lost although the drain had nothing else to do", row.lost);
        }
        add(row);
    }
    for (level, iters) in [("flow", "3000"), ("steps", "300")] {
        let job =
            bench.job(&["--ranks", "2", "--ops", "allreduce", "--bytes", "262144", "--iters", iters])?;
        let recording = bench.record(&job, &["--level", level, "--files", "none"])?;
        job.go()?;
        job.finish()?;
        let (_, recorded) = recording.finish_keeping()?;
        let recorded = recorded.join("recording").display().to_string();
        let stages: Stages = ask(&program, &["stages", &recorded, "--rounds", &args.rounds.to_string()])?;
        let bytes = stages.bytes / stages.records.max(1);
        #[expect(clippy::cast_precision_loss, reason = "a mean, for people")]
        let lines = stages.lines as f64 / stages.records.max(1) as f64;
        for (what, ns) in [
            ("decode".to_owned(), stages.decode_ns),
            ("decode + model".to_owned(), stages.decode_and_model_ns),
            (format!("decode + model + write ({lines:.1} lines each)"), stages.decode_model_and_write_ns),
        ] {
            add(Row::new(format!("{level}: {what}"), ns, bytes, stages.records, 0));
        }
    }
    Ok(serde_json::to_value(rows)?)
}

fn drained(program: &Path, what: &str, arguments: &[&str], rounds: u32) -> Result<Row> {
    let mut runs: Vec<Drained> = Vec::new();
    for _ in 0..rounds {
        runs.push(ask(program, arguments)?);
    }
    let total = |of: fn(&Drained) -> u64| runs.iter().map(of).sum::<u64>();
    let (hits, delivered, lost) = (total(|run| run.hits), total(|run| run.delivered), total(|run| run.lost));
    if hits != delivered + lost {
        bail!("{hits} hits, but {delivered} delivered and {lost} lost");
    }
    let slowest = runs.iter().map(|run| run.wall_s / run.cpu_s.max(1e-9)).fold(0.0, f64::max);
    if slowest < 0.5 {
        bail!("the drain used more than two cores, which it cannot");
    }
    #[expect(clippy::cast_precision_loss, reason = "a mean, for people")]
    let ns = runs.iter().map(|run| run.cpu_s * 1e9 / run.delivered.max(1) as f64);
    let bytes = runs.first().map_or(0, |run| run.record_bytes);
    Ok(Row::new(what.to_owned(), ns.collect::<Vec<_>>(), bytes, delivered, lost))
}

fn ask<T: DeserializeOwned>(program: &Path, arguments: &[&str]) -> Result<T> {
    let output = tool::output(Command::new(program).args(arguments))
        .with_context(|| format!("ncclflow-bench {} (it needs root)", arguments.join(" ")))?;
    serde_json::from_slice(&output).context("reading the output of ncclflow-bench")
}
