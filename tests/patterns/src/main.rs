//! `ncclflow-patterns`: calls the real `ncclProxySaveOp` of an NCCL library, once for each pattern and place in a graph that
//! the test bed cannot make (NVLS, CollNet, PAT, trees of odd shape), on a communicator that is made up.
//!
//! The library is the official one, opened and otherwise untouched; nothing of CUDA is called, as `ncclProxySaveOp` calls
//! nothing of it. What the calls must be follows from the made-up graph by NCCL's source ([`expected`]); what the library
//! queued for its proxy thread is read back from its own pool ([`pool`]), and the two have to agree before anything is
//! written down as the truth.

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
mod library;
mod memory;
mod pool;
mod truth;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
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
}

/// Nobody waits longer for a tracer.
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
    let mut communicator = Communicator::make(&library)?;
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
    let mut lines = String::new();
    for (number, case) in cases.iter().enumerate() {
        let told = communicator.drive(&library, case, number as u64).with_context(|| case.to_string())?;
        lines += &serde_json::to_string(&told)?;
        lines.push('\n');
    }
    std::fs::write(&options.truth, lines)
        .with_context(|| format!("writing `{}`", options.truth.display()))?;
    print(&json!({ "ok": true, "checked_elements": cases.len() }))
}

fn print(line: &serde_json::Value) -> Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn say(message: &str) {
    use std::io::Write as _;
    // There is nobody to tell when standard error is gone.
    let _ignored = writeln!(std::io::stderr(), "ncclflow-patterns: {message}");
}
