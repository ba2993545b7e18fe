//! A job of many ranks, made of a recording of few: time and memory of `check`, of the export as Parquet
//! tables, and of each query on them.

mod job;
mod make;
mod rewrite;
#[cfg(test)]
mod tests;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};

pub(crate) use self::make::{Size, make};
use crate::{
    bench::{kept_folder, of_tests, output, programs},
    process::measured,
    recorded::Recorded,
};

/// Recording that large jobs are made of.
pub(crate) const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../traces/net_steps");
pub(crate) const PER_HOST: u32 = 8;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A recording
    #[arg(default_value = RECORDING)]
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
    let (ncclflow, folder) = (programs()?.join("ncclflow"), kept_folder("fleet")?);
    let (recordings, tables) = (folder.join("recordings"), folder.join("tables"));
    let size = Size { ranks: args.ranks, per_host: PER_HOST, collectives: Some(args.collectives) };
    let made = make(&Recorded::read(&args.recording)?, &recordings, &size, |_, _| true, |_, _| 0)?;
    eprintln!("checking");
    let mut check = Command::new(&ncclflow);
    check.arg("check").arg("--json").args(&made.folders).stdout(fs::File::create(folder.join("check.json"))?);
    // The recording's last ops did not end, so `check` may have findings.
    let checked = measured(&mut check, &[0, 3])?;
    eprintln!("exporting");
    let mut export = Command::new(&ncclflow);
    export.arg("export").arg(&recordings).args(["-f", "parquet", "-o"]).arg(&tables);
    let exported = measured(export.stdout(Stdio::null()), &[0])?;
    let mut queries = Map::new();
    for engine in ["duckdb"].into_iter().chain(args.spark.then_some("spark")) {
        eprintln!("queries in {engine}");
        let mut query = Command::new("python3");
        let answers = output(query.arg(of_tests("parquet/queries.py")).arg(engine).arg(&tables))?;
        queries.insert(engine.to_owned(), serde_json::from_slice(&answers)?);
    }
    let rows = |engine| queries.get(engine).map(|answers: &Value| &answers["rows"]);
    ensure!(
        !args.spark || rows("duckdb") == rows("spark"),
        "DuckDB and Spark do not give the same rows: {queries:?}"
    );
    Ok(
        json!({ "recordings": made, "check": checked, "export": exported, "bytes": size_of(&tables)?, "queries": queries }),
    )
}

/// Sums the bytes of all files below a folder.
pub(crate) fn size_of(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("listing `{}`", folder.display()))? {
        let (path, about) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        bytes += if about.is_dir() { size_of(&path)? } else { about.len() };
    }
    Ok(bytes)
}
