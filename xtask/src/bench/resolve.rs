//! `cargo xtask bench resolve`: time to find a library's functions, parameters and layouts, for each source
//! of symbols.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::{spread::Spread, traced_job::Scratch};
use crate::{nccl, programs, tool};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// NCCL version, like 2.27.5 or 2.28.9-cu13
    #[arg(long, value_name = "VERSION", default_value = "2.32.3")]
    nccl: String,

    /// How often each is resolved, after once for the page cache
    #[arg(long, default_value_t = 15)]
    rounds: usize,
}

pub(crate) fn run(args: &Args) -> Result<Value> {
    let library = nccl::library_path(&args.nccl)?;
    let scratch = Scratch::new("resolve")?;
    let rungs = measure(args, &library, &scratch)?;
    Ok(json!({
        "bench": "resolve",
        "nccl": args.nccl,
        "library_bytes": std::fs::metadata(&library)?.len(),
        "rounds": args.rounds,
        "rungs": rungs,
    }))
}

fn measure(args: &Args, library: &Path, scratch: &Scratch) -> Result<Map<String, Value>> {
    let mut libraries = vec![library.to_path_buf()];
    for option in ["--strip-debug", "--strip-all"] {
        let copy = scratch.path(&format!("libnccl{option}.so"));
        strip(library, option, &copy)?;
        libraries.push(copy);
    }
    let program = programs::build_release_example("nccl-library", "resolve-time")?;
    let mut program = Command::new(program);
    let output = tool::output(program.arg(args.rounds.to_string()).args(&libraries).stdin(Stdio::null()))?;
    let mut rungs = Map::new();
    for line in String::from_utf8(output)?.lines() {
        let mut result: Value = serde_json::from_str(line)?;
        let times = result["milliseconds"].take();
        let times = times.as_array().into_iter().flatten().filter_map(Value::as_f64);
        result["milliseconds"] = json!(Spread::of(times));
        let rung = result["symbol_source"].as_str().unwrap_or("unknown").to_owned();
        rungs.insert(rung, result);
    }
    Ok(rungs)
}

fn strip(library: &Path, option: &str, copy: &Path) -> Result<()> {
    let mut strip = Command::new("strip");
    tool::run(strip.arg(option).arg(library).arg("-o").arg(copy), "a stripped copy (Debian: binutils)")
}
