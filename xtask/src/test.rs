//! `cargo xtask test`: everything the tests need, then all tests.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{nccl, programs, repository};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Things whose absence fails a test instead of skipping it: root, nccl, programs, layouts, mount
    #[arg(long, value_name = "THINGS", default_value = "nccl,programs")]
    require: String,

    /// Passed on to `cargo test`
    #[arg(last = true)]
    cargo_arguments: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    for version in nccl::bed_versions() {
        nccl::library_path(version)?;
    }
    programs::build(&programs::TESTED)?;
    println!("running the tests; required: {}", args.require);
    let status = Command::new(programs::cargo())
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(&args.cargo_arguments)
        .current_dir(repository::root())
        .env("NCCLFLOW_REQUIRE", &args.require)
        .status()
        .context("starting cargo test")?;
    if !status.success() {
        bail!("tests failed ({status})");
    }
    Ok(())
}
