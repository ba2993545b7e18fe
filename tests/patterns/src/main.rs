//! `ncclflow-patterns`: calls the real `ncclProxySaveOp` of an NCCL library, once for each pattern and
//! place in a graph that the test bed cannot make (NVLS, CollNet, PAT, trees of odd shape), on a
//! communicator that is made up.
//!
//! The library is the official one, opened and otherwise unchanged. `ncclProxySaveOp` calls nothing of CUDA.
//! The calls that it must make follow from the made-up graph by NCCL's source ([`expected`]). What the
//! library queued for its proxy thread is read back from its own pool ([`pool`]). The two must agree before
//! anything is written as the truth.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "numbers are written into foreign structs whose fields have their own widths"
)]

mod cases;
mod communicator;
mod expected;
mod graph;
mod launches;
mod library;
mod memory;
mod pat;
mod pool;
mod truth;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use serde::Serialize;
use serde_json::json;

use crate::communicator::Communicator;
use crate::library::Library;

/// Call ncclProxySaveOp for every pattern, on a made-up communicator.
#[derive(Debug, Parser)]
#[command(name = "ncclflow-patterns", version)]
struct Options {
    /// The libnccl.so.2 to call
    #[arg(long, value_name = "PATH")]
    library: PathBuf,

    /// Symbols and debugging information of the library, if it has none itself: the same build, not stripped
    #[arg(long, value_name = "PATH")]
    symbols: Option<PathBuf>,

    /// Wait until this file exists before the first call
    #[arg(long, value_name = "FILE")]
    wait_file: Option<PathBuf>,

    /// Where the truth goes: a JSON line for each op
    #[arg(long, value_name = "FILE")]
    truth: PathBuf,

    /// Instead of the patterns, launches without proxy ops, of 2.27 and later
    #[arg(long, conflicts_with = "pat")]
    launches: bool,

    /// Only PAT, for many numbers of ranks and sizes: how many messages the library counts for each
    /// peer. N: ranks of each node
    #[arg(long, value_name = "N", conflicts_with = "wait_file")]
    pat: Option<std::num::NonZero<u8>>,
}

/// Upper limit of the wait for a tracer.
const PATIENCE: Duration = Duration::from_mins(5);

fn main() -> ExitCode {
    let code = match run(&Options::parse()) {
        Ok(()) => 0,
        Err(error) => {
            say(&format!("{error:#}"));
            1
        }
    };
    // SAFETY: ends the process without the library's destructors, which would enter the CUDA runtime.
    unsafe { libc::_exit(code) }
}

fn run(options: &Options) -> Result<()> {
    let library = Library::open(&options.library, options.symbols.as_ref().unwrap_or(&options.library))?;
    if let Some(local_ranks) = options.pat {
        return write(&options.truth, &pat::count(&library, i32::from(local_ranks.get()))?);
    }
    let mut communicator = Communicator::make(&library, communicator::WITH_GRAPHS, &graph::CHANNELS)?;
    let cases = cases::all(&library);
    print(&json!({
        "nccl": library.version(),
        "nranks": graph::RANKS,
        "commHash": format!("{:016x}", communicator::HASH),
        "pids": [std::process::id()],
    }))?;
    if let Some(file) = &options.wait_file {
        let begun = Instant::now();
        while !file.exists() {
            if begun.elapsed() > PATIENCE {
                bail!("`{}` does not come", file.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    if options.launches {
        let image = nccl_library::elf::Image::open(&options.library)?;
        return write(&options.truth, &launches::make(&library, &image, &communicator)?);
    }
    let told = cases.iter().enumerate().map(|(number, case)| {
        communicator.drive(&library, case, number as u64).with_context(|| case.to_string())
    });
    write(&options.truth, &told.collect::<Result<Vec<_>>>()?)
}

/// Writes a line for each op, and says how many there are.
fn write(truth: &Path, told: &[impl Serialize]) -> Result<()> {
    let mut lines = String::new();
    for told in told {
        lines += &serde_json::to_string(told)?;
        lines.push('\n');
    }
    std::fs::write(truth, lines).with_context(|| format!("writing `{}`", truth.display()))?;
    print(&json!({ "ok": true, "checked_elements": told.len() }))
}

fn print(line: &serde_json::Value) -> Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn say(message: &str) {
    use std::io::Write as _;
    // If standard error is closed, there is no other place to report to.
    let _ignored = writeln!(std::io::stderr(), "ncclflow-patterns: {message}");
}
