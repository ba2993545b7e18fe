//! `cargo xtask bench fleet`: a job of many ranks, made of a recording of few: time and memory of `check`, of
//! the export as Parquet tables, and of each query on them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::traced_job::status_kib;
use crate::{prerequisites, programs, repository, tool};

/// Interval at which a program's memory is looked at; the kernel keeps the peak.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A recording
    #[arg(default_value = "tests/traces/net_steps")]
    recording: PathBuf,

    #[arg(long, default_value_t = 1024)]
    ranks: u32,

    /// Collectives of each rank: the recording happens again and again
    #[arg(long, default_value_t = 1000)]
    collectives: u64,

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
    let (made, hosts) = make(&programs, &args.recording, &recordings, args.ranks, args.collectives)?;
    eprintln!("checking");
    let mut check = Command::new(programs.join("ncclflow"));
    check.arg("check").arg("--json").args(&hosts).stdout(fs::File::create(folder.join("check.json"))?);
    // The recording's last ops did not end, so `check` may have findings.
    let checked = measured(&mut check, &[0, 3])?;
    eprintln!("exporting");
    let mut export = Command::new(programs.join("ncclflow"));
    export.arg("export").arg(&recordings).args(["-f", "parquet", "-o"]).arg(&tables);
    let exported = measured(export.stdout(Stdio::null()), &[0])?;
    let mut queries = serde_json::Map::new();
    for engine in ["duckdb", "spark"].into_iter().take(if args.spark { 2 } else { 1 }) {
        eprintln!("queries in {engine}");
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
    Ok(
        json!({ "recordings": made, "check": checked, "export": exported, "bytes": size(&tables)?, "queries": queries }),
    )
}

/// Makes recordings of a job of so many ranks. Returns what was made, and the folder of each host.
pub(super) fn make(
    programs: &Path,
    recording: &Path,
    recordings: &Path,
    ranks: u32,
    collectives: u64,
) -> Result<(Value, Vec<PathBuf>)> {
    let mut make = Command::new(programs.join("ncclflow-bench"));
    make.arg("fleet").arg(recording).arg(recordings);
    make.args(["--ranks", &ranks.to_string(), "--collectives", &collectives.to_string()]);
    let made = serde_json::from_slice(&tool::output(&mut make)?)?;
    let mut hosts = fs::read_dir(recordings)?
        .map(|host| host.map(|host| host.path()))
        .collect::<Result<Vec<_>, _>>()
        .context("listing the recordings")?;
    hosts.sort();
    Ok((made, hosts))
}

/// Runs a command. Returns its time, that of the processors, and the peak of its memory. `codes`: exit codes
/// of a run that is done.
pub(super) fn measured(command: &mut Command, codes: &[i32]) -> Result<Value> {
    let begun = Instant::now();
    let mut child = command.spawn().context("starting a program")?;
    let (mut peak, mut cpu) = (0, 0.0);
    let status = loop {
        peak = peak.max(status_kib(child.id(), "VmHWM"));
        cpu = cpu_seconds(child.id()).unwrap_or(cpu);
        if let Some(status) = child.try_wait()? {
            break status;
        }
        thread::sleep(LOOK);
    };
    if status.code().is_none_or(|code| !codes.contains(&code)) {
        bail!("`{}` failed ({status})", command.get_program().display());
    }
    Ok(json!({ "seconds": begun.elapsed().as_secs_f64(), "cpu_seconds": cpu, "peak_kib": peak }))
}

/// Returns the time that the processors have spent on a process, all its threads together.
fn cpu_seconds(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which can hold anything: utime and stime are fields 14 and 15 of the whole.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    #[expect(clippy::cast_precision_loss, reason = "some hundred a second")]
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    Some((ticks(11)? + ticks(12)?) / per_second)
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let (path, about) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        bytes += if about.is_dir() { size(&path)? } else { about.len() };
    }
    Ok(bytes)
}
