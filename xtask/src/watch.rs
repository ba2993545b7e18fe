//! `cargo xtask verify watch`: counts what `ncclflow watch` says beside every kind of hang, and beside jobs of
//! which none hangs.
//!
//! The program that does it is an example of `ncclflow-e2e`, as that of `conformance` is:
//! `tests/e2e/examples/watch`.

use anyhow::Result;

use crate::hangs::try_kinds;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask verify watch                           every kind, once
  cargo xtask verify watch --kinds gone,receive      some kinds
  cargo xtask verify watch --minutes 480             jobs that compute, evaluate, write checkpoints and start again: no alert

The last line is PASSED or FAILED; the exit code says the same. Events that are not right are kept in target/watch.")]
pub(crate) struct Args {
    /// How often each kind is made, each time on the next library
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Only these kinds; tests/e2e/src/harness/hangs/kinds.rs has all
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    kinds: Vec<String>,
    /// Instead: so many minutes of jobs of which none hangs
    #[arg(long, value_name = "N", conflicts_with_all = ["times", "kinds"])]
    minutes: Option<u32>,
    /// Jobs side by side
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    at_once: u32,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let words = match args.minutes {
        Some(minutes) => ["--minutes".to_owned(), minutes.to_string()],
        None => ["--times".to_owned(), args.times.to_string()],
    };
    try_kinds("watch", words, args.at_once, &args.kinds, "alerts that are right often enough")
}
