//! `cargo xtask bench resolve`: how long it takes to find functions, parameters and layouts in a library, by where they are from.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};

use super::figure::Spread;
use crate::{nccl, programs};

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
    let folder = std::env::temp_dir().join(format!("ncclflow-resolve-{}", std::process::id()));
    std::fs::create_dir(&folder).with_context(|| format!("making `{}`", folder.display()))?;
    let measured = measure(args, &library, &folder);
    std::fs::remove_dir_all(&folder).with_context(|| format!("removing `{}`", folder.display()))?;
    let rungs = measured?;
    Ok(json!({
        "bench": "resolve",
        "nccl": args.nccl,
        "library_bytes": std::fs::metadata(&library)?.len(),
        "rounds": args.rounds,
        "rungs": rungs,
    }))
}

fn measure(args: &Args, library: &Path, folder: &Path) -> Result<Map<String, Value>> {
    let mut libraries = vec![library.to_path_buf()];
    for option in ["--strip-debug", "--strip-all"] {
        libraries.push(strip(library, option, folder)?);
    }
    let program = programs::build_release_example("nccl-library", "resolve-time")?;
    let output = Command::new(&program)
        .arg(args.rounds.to_string())
        .args(&libraries)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting `{}`", program.display()))?;
    if !output.status.success() {
        bail!("`{}` ended with {}", program.display(), output.status);
    }
    let mut rungs = Map::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let mut result: Value = serde_json::from_str(line)?;
        let times = result["milliseconds"].take();
        let times = times.as_array().into_iter().flatten().filter_map(Value::as_f64);
        result["milliseconds"] = json!(Spread::of(times));
        let rung = result["symbol_source"].as_str().unwrap_or("unknown").to_owned();
        rungs.insert(rung, result);
    }
    Ok(rungs)
}

fn strip(library: &Path, option: &str, folder: &Path) -> Result<PathBuf> {
    let copy = folder.join(format!("libnccl{option}.so"));
    let status = Command::new("strip").arg(option).arg(library).arg("-o").arg(&copy).status();
    if !status.context("starting `strip` (Debian: binutils)")?.success() {
        bail!("`strip {option}` failed");
    }
    Ok(copy)
}
