//! `cargo xtask bench report`: measures the page of a job of many ranks, made of a recording of few. It fails
//! if the page is larger, or its first picture later, than docs/REPORT.md promises.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::fleet;
use crate::{prerequisites, programs, repository, tool};

/// Most bytes of a page: it is mailed.
const MAX_BYTES: u64 = 5_000_000;

/// Latest time of the first picture, in milliseconds, by the page's own clock. The median of several openings
/// counts: the machine has other work.
const MAX_FIRST_PICTURE_MS: f64 = 2000.0;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A recording
    #[arg(default_value = "tests/traces/net_steps")]
    recording: PathBuf,

    #[arg(long, default_value_t = 64)]
    ranks: u32,

    /// Collectives of each rank: the recording happens again and again
    #[arg(long, default_value_t = 10_000)]
    collectives: u64,

    /// How often the page is opened
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

pub(crate) fn run(args: &Args) -> Result<Value> {
    prerequisites::commands()?;
    let programs = programs::build_release(&["ncclflow", "ncclflow-bench"])?;
    let folder = programs::target_folder()?.join("report-bench");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing `{}`", folder.display()))?;
    }
    fs::create_dir_all(&folder)?;
    eprintln!("making the recordings");
    let recordings = folder.join("recordings");
    let (made, hosts) = fleet::make(&programs, &args.recording, &recordings, args.ranks, args.collectives)?;
    eprintln!("making the page");
    let page = folder.join("report.html");
    let mut report = Command::new(programs.join("ncclflow"));
    report.arg("report").args(&hosts).arg("-o").arg(&page).stdout(Stdio::null());
    let written = fleet::measured(&mut report, &[0])?;
    eprintln!("opening it");
    let mut open = Command::new("python3");
    open.arg(repository::root().join("tests/report/report_page.py")).arg(&page);
    open.args(["--only-open", "--rounds", &args.rounds.to_string()]);
    let opened: Value = serde_json::from_slice(&tool::output(&mut open)?)?;
    let bytes = opened["bytes"].as_u64().context("the size of the page")?;
    ensure!(bytes <= MAX_BYTES, "the page has {bytes} bytes, more than {MAX_BYTES}: {opened}");
    let mut first: Vec<f64> =
        opened["first_picture_ms"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    first.sort_by(f64::total_cmp);
    let median = *first.get(first.len() / 2).context("the page has no picture")?;
    ensure!(
        median <= MAX_FIRST_PICTURE_MS,
        "the first picture is there after {median} ms, later than {MAX_FIRST_PICTURE_MS}: {opened}"
    );
    Ok(json!({ "recordings": made, "report": written, "page": opened }))
}
