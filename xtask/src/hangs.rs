//! `cargo xtask verify hangs`: counts the verdicts of `ncclflow dump` on every kind of hang, and on waits
//! that are none.
//!
//! The program that does it is an example of `ncclflow-e2e`, as that of `conformance` is:
//! `tests/e2e/examples/hangs`.

use std::process::Stdio;

use anyhow::Result;

use crate::{nccl, programs, root, tool};

/// NCCL versions of the end-to-end tests.
const LIBRARIES: [&str; 4] = ["2.21.5", "2.27.5", "2.28.9-cu13", "2.32.3"];

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask verify hangs --times 5                 every kind, five times
  cargo xtask verify hangs --kinds gone,receive      some kinds
  cargo xtask verify hangs --busy 1000               dumps of jobs that are busy: none is stuck
  cargo xtask verify hangs --pipelines 1000          dumps of pipelines: none is stuck or waiting

The last line is PASSED or FAILED; the exit code says the same. Dumps that are not right are kept in target/hangs.")]
pub(crate) struct Args {
    /// How often each kind is made, each time on the next library
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Only these kinds; tests/e2e/src/harness/hangs/kinds.rs has all
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    kinds: Vec<String>,
    /// Instead: so many dumps of jobs that compute, evaluate and write checkpoints for up to 30 s
    #[arg(long, value_name = "N", conflicts_with_all = ["times", "kinds"])]
    busy: Option<u32>,
    /// Instead: so many dumps of pipelines, which send and receive thousands of times a second
    #[arg(long, value_name = "N", conflicts_with_all = ["times", "kinds", "busy"])]
    pipelines: Option<u32>,
    /// Jobs side by side
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    at_once: u32,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let words = match (args.busy, args.pipelines) {
        (Some(busy), _) => ["--busy".to_owned(), busy.to_string()],
        (None, Some(pipelines)) => ["--pipelines".to_owned(), pipelines.to_string()],
        (None, None) => ["--times".to_owned(), args.times.to_string()],
    };
    try_kinds("hangs", words, args.at_once, &args.kinds, "dumps that are right often enough")
}

/// Runs an example of `ncclflow-e2e` that tries kinds of hangs. `words`: what it is to do; `what` must come of
/// it.
pub(crate) fn try_kinds(
    name: &str,
    words: [String; 2],
    at_once: u32,
    kinds: &[String],
    what: &str,
) -> Result<()> {
    for version in LIBRARIES {
        nccl::library_path(version)?;
    }
    let program = programs::build_all()?.join("examples").join(name);
    let mut command = root::command(&program);
    command.arg("--out").arg(programs::target_folder()?.join(name));
    command.args(["--at-once", &at_once.to_string()]).args(words);
    if !kinds.is_empty() {
        command.args(["--kinds", &kinds.join(",")]);
    }
    // Missing things are a failure here, and not a test that is skipped.
    tool::run(command.env("NCCLFLOW_REQUIRE", "all").stdin(Stdio::null()), what)
}
