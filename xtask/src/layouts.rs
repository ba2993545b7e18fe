//! `cargo xtask make layouts`: makes the table of struct layouts that ncclflow ships for libraries
//! without debugging information.
//!
//! The program that does it is an example of the crate `nccl-library`, so that xtask does not
//! build what only it needs.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{nccl, programs, repository, tool};

const TABLE: &str = "userspace/nccl-library/src/symbols/shipped/layouts.jsonl";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Add these versions, like 2.27.5 or 2.28.9-cu13, or `all` wheels; one that is not in the cache is
    /// fetched, and removed when it was read
    #[arg(long, value_name = "VERSION", num_args = 1.., required_unless_present = "all_cached")]
    nccl: Vec<String>,
    /// Add all libraries of the cache ($NCCLFLOW_NCCL_CACHE, or ~/.cache/ncclflow/nccl)
    #[arg(long)]
    all_cached: bool,
    /// Begin with an empty table; else what is in it stays
    #[arg(long)]
    fresh: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let table = repository::root().join(TABLE);
    // Built before the table is emptied, as the crate that makes the table embeds it.
    let program = programs::build_release_example("nccl-library", "layouts-table")?;
    if args.fresh {
        fs::remove_file(&table).with_context(|| format!("removing `{}`", table.display()))?;
    }
    let add = |library: &Path| {
        let mut program = Command::new(&program);
        tool::run(program.arg(&table).arg(library), "the table of layouts")
    };
    for library in if args.all_cached { nccl::cached_libraries()? } else { Vec::new() } {
        add(&library)?;
    }
    let all = nccl::official::all();
    let versions = args.nccl.iter().flat_map(|name| match name.as_str() {
        "all" => all.as_slice(),
        _ => std::slice::from_ref(name),
    });
    for version in versions {
        let was_there = nccl::is_cached(version)?;
        add(&nccl::library_path(version)?)?;
        if !was_there {
            nccl::forget(version)?;
        }
    }
    Ok(())
}
