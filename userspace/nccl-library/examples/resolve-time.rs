//! `resolve-time ROUNDS LIBRARY…` measures how long it takes to open and resolve each library from the page
//! cache. Run by `cargo xtask bench resolve`.
//!
//! Prints a JSON line for each library.

use std::io::{self, Write as _};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use nccl_library::elf::Image;
use nccl_library::symbols::{nccl_request, resolve};
use serde_json::json;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rounds, libraries @ ..] = &arguments[..] else { bail!("usage: resolve-time ROUNDS LIBRARY…") };
    let rounds: usize = rounds.parse().context("ROUNDS is no number")?;
    let request = nccl_request();
    for library in libraries {
        let once = || -> Result<_> {
            let begun = Instant::now();
            let resolution = resolve(&Image::open(Path::new(library))?, &request)?;
            Ok((begun.elapsed().as_secs_f64() * 1e3, resolution))
        };
        // The first fills the page cache.
        let (_, resolution) = once().with_context(|| library.clone())?;
        let milliseconds = (0..rounds).map(|_| Ok(once()?.0)).collect::<Result<Vec<f64>>>()?;
        let functions: usize = resolution.functions.values().map(Vec::len).sum();
        let missing: Vec<&str> =
            resolution.missing_required().map(|problem| problem.subject.as_str()).collect();
        let line = json!({
            "symbol_source": resolution.symbol_source,
            "layouts_from": resolution.layouts_from,
            "functions": functions,
            "missing": missing,
            "milliseconds": milliseconds,
        });
        writeln!(io::stdout(), "{line}")?;
    }
    Ok(())
}
