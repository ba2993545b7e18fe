//! `cargo xtask bench fleet`: a job of many ranks, made of a capture of few, as Parquet tables; time and memory of each query on them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::traced_job::status_kib;
use crate::{prerequisites, programs, repository, tool};

/// How often a program's memory is looked at; the kernel keeps the peak.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A capture of `record --level steps`, as it is or compressed with gzip
    capture: PathBuf,

    #[arg(long, default_value_t = 1024)]
    ranks: u32,

    /// How often all of the capture happens
    #[arg(long, default_value_t = 1)]
    runs: u32,

    /// Also run the queries in Spark, which is fetched (450 MB) and needs Java
    #[arg(long)]
    spark: bool,
}

pub(crate) fn run(args: &Args) -> Result<Value> {
    let programs = programs::build_release(&["ncclflow", "ncclflow-bench"])?;
    let spark: &[_] = if args.spark { &[prerequisites::SPARK] } else { &[] };
    let python_path = prerequisites::python_path(spark)?;
    let folder = programs::target_folder()?.join("fleet");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing `{}`", folder.display()))?;
    }
    fs::create_dir_all(&folder)?;
    let (recordings, tables) = (folder.join("recordings"), folder.join("tables"));
    let mut make = Command::new(programs.join("ncclflow-bench"));
    make.arg("fleet").arg(&args.capture).arg(&recordings);
    make.args(["--ranks", &args.ranks.to_string(), "--runs", &args.runs.to_string()]);
    let made: Value = serde_json::from_slice(&tool::output(&mut make)?)?;
    let mut export = Command::new(programs.join("ncclflow"));
    export.arg("export").arg(&recordings).args(["-f", "parquet", "-o"]).arg(&tables);
    let exported = measured(&mut export)?;
    let mut queries = serde_json::Map::new();
    for engine in ["duckdb", "spark"].into_iter().take(if args.spark { 2 } else { 1 }) {
        let mut query = Command::new("python3");
        query.arg(repository::root().join("tests/parquet/queries.py")).arg(engine).arg(&tables);
        let answers = tool::output(query.env("PYTHONPATH", &python_path))?;
        queries.insert(engine.to_owned(), serde_json::from_slice(&answers)?);
    }
    if let (Some(duckdb), Some(spark)) = (queries.get("duckdb"), queries.get("spark"))
        && duckdb["rows"] != spark["rows"]
    {
        bail!("DuckDB and Spark do not give the same rows: {duckdb} {spark}");
    }
    Ok(json!({ "recordings": made, "export": exported, "bytes": size(&tables)?, "queries": queries }))
}

/// Runs it. Gives its time, and the peak of its memory.
fn measured(command: &mut Command) -> Result<Value> {
    let begun = Instant::now();
    let mut child = command.spawn().context("starting a program")?;
    let mut peak = 0;
    let status = loop {
        peak = peak.max(status_kib(child.id(), "VmHWM"));
        if let Some(status) = child.try_wait()? {
            break status;
        }
        thread::sleep(LOOK);
    };
    if !status.success() {
        bail!("the export failed ({status})");
    }
    Ok(json!({ "seconds": begun.elapsed().as_secs_f64(), "peak_kib": peak }))
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let (path, about) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        bytes += if about.is_dir() { size(&path)? } else { about.len() };
    }
    Ok(bytes)
}
