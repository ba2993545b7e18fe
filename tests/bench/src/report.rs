//! The page of a job of many ranks, made of a recording of few. It must not be larger, nor its first picture
//! later, than docs/REPORT.md promises.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    bench::{kept_folder, of_tests, output, programs},
    fleet::{PER_HOST, RECORDING, Size, make},
    process::measured,
    recorded::Recorded,
    table::Spread,
};

/// Most bytes of a page: it is mailed.
const MAX_BYTES: u64 = 5_000_000;

/// Latest time of the first picture, in milliseconds, by the page's own clock. The median of several openings
/// counts: the machine has other work.
const MAX_FIRST_PICTURE_MS: f64 = 2000.0;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A recording
    #[arg(default_value = RECORDING)]
    recording: PathBuf,

    #[arg(long, default_value_t = 64)]
    ranks: u32,

    /// Collectives of each rank: the recording happens again and again
    #[arg(long, default_value_t = 10_000)]
    collectives: u64,
}

pub(crate) fn run(args: &Args, rounds: usize) -> Result<Value> {
    let folder = kept_folder("report-bench")?;
    eprintln!("making the recordings");
    let size = Size { ranks: args.ranks, per_host: PER_HOST, collectives: Some(args.collectives) };
    let made =
        make(&Recorded::read(&args.recording)?, &folder.join("recordings"), &size, |_, _| true, |_, _| 0)?;
    eprintln!("making the page");
    let page = folder.join("report.html");
    let mut report = Command::new(programs()?.join("ncclflow"));
    report.arg("report").args(&made.folders).arg("-o").arg(&page).stdout(Stdio::null());
    let written = measured(&mut report, &[0])?;
    eprintln!("opening it");
    let mut open = Command::new("python3");
    open.arg(of_tests("report/report_page.py")).arg(&page);
    open.args(["--only-open", "--rounds", &rounds.to_string()]);
    let opened: Value = serde_json::from_slice(&output(&mut open)?)?;
    let bytes = opened["bytes"].as_u64().context("the size of the page")?;
    ensure!(bytes <= MAX_BYTES, "the page has {bytes} bytes, more than {MAX_BYTES}: {opened}");
    let first = opened["first_picture_ms"].as_array().context("the page has no picture")?;
    let median = Spread::of(first.iter().filter_map(Value::as_f64)).median;
    ensure!(
        median <= MAX_FIRST_PICTURE_MS,
        "the first picture is there after {median} ms, later than {MAX_FIRST_PICTURE_MS}: {opened}"
    );
    Ok(json!({ "recordings": made, "report": written, "page": opened }))
}
