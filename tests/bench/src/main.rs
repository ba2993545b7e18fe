//! Measures each part of ncclflow's record path by itself, and writes a JSON object to standard output.
//! `cargo xtask bench drain` runs it.

mod drain;
mod fleet;
mod stages;
mod volume;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fill the kernel's buffer through uprobes on this program itself, then drain it: what the
    /// drain alone can do (root)
    Burst(drain::Args),
    /// Drain while threads hit the probe as fast as they can (root)
    Sustained(drain::Args),
    /// Decode, model and write the records of a recording, without the kernel
    Stages {
        recording: PathBuf,
        /// Rounds; each is reported
        #[arg(long, default_value_t = 5)]
        rounds: u32,
    },
    /// Make recordings of many ranks of a recording of few
    Fleet(fleet::Args),
    /// Write the records of a recording anew, and read them
    Volume {
        recording: PathBuf,
        /// Rounds; each is reported
        #[arg(long, default_value_t = 5)]
        rounds: u32,
    },
}

#[expect(clippy::print_stdout, reason = "the result")]
fn main() -> Result<()> {
    let json = match Cli::parse().command {
        Command::Burst(args) => serde_json::to_string(&drain::burst(&args)?)?,
        Command::Sustained(args) => serde_json::to_string(&drain::sustained(&args)?)?,
        Command::Volume { recording, rounds } => serde_json::to_string(&volume::run(&recording, rounds)?)?,
        Command::Fleet(args) => serde_json::to_string(&fleet::run(&args)?)?,
        Command::Stages { recording, rounds } => serde_json::to_string(&stages::run(&recording, rounds)?)?,
    };
    println!("{json}");
    Ok(())
}
