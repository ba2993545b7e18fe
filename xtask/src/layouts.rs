//! `cargo xtask layouts`: makes the table of struct layouts that ncclflow ships for libraries
//! without debugging information.
//!
//! The program that does it is an example of the crate `nccl-library`, so that xtask does not
//! build what only it needs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::{nccl, programs, repository, tool};

const TABLE: &str = "userspace/nccl-library/src/symbols/shipped/layouts.jsonl";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Add these versions, like 2.27.5 or 2.28.9-cu13; fetched if they are not in the cache
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
    let mut libraries: Vec<PathBuf> = Vec::new();
    for version in &args.nccl {
        libraries.push(nccl::library_path(version)?);
    }
    if args.all_cached {
        libraries.extend(nccl::cached_libraries()?);
    }
    let table = repository::root().join(TABLE);
    if args.fresh {
        fs::remove_file(&table).with_context(|| format!("removing `{}`", table.display()))?;
        // Written at once, as the crate that makes the table embeds it.
        fs::write(&table, "{\"format\":1,\"made_by\":\"cargo xtask layouts\",\"libraries\":0,\"sets\":0}\n")?;
    }
    let mut program = programs::cargo_command("run");
    program.args(["--release", "--package", "nccl-library", "--example", "layouts-table", "--"]);
    tool::run(program.arg(&table).args(&libraries), "the table of layouts")
}
