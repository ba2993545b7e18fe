//! `cargo xtask bench`: what ncclflow costs and how fast it is, as ratios with their spread.

mod attach;
mod job;
mod overhead;
mod spread;
mod tracefs;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Subcommand;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,

    /// Write the result to this file too
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Many small collectives on the bed, untraced and traced at each level in turn (root)
    Overhead(overhead::Args),
    /// From the start of the program to the first probe armed: cold, warm, with cached layouts (root)
    Attach(attach::Args),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let result = match &args.bench {
        Bench::Overhead(args) => overhead::run(args),
        Bench::Attach(args) => attach::run(args),
    }?;
    let text = serde_json::to_string_pretty(&result)? + "\n";
    print!("{text}");
    args.json.as_deref().map_or(Ok(()), |path| write(path, &text))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing `{}`", path.display()))
}
