//! `cargo xtask make output-docs`: makes the tables of docs/OUTPUT.md and docs/PARQUET.md from the rows that are
//! written.
//!
//! The program that does it is an example of the `flow` crate: xtask itself must build without the `ncclflow`
//! crate, which refuses to build while the committed eBPF object is out of date.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{programs, repository};

const DOCUMENTS: [&str; 2] = ["docs/OUTPUT.md", "docs/PARQUET.md"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail if the tables are not what the rows say
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    for document in DOCUMENTS {
        let status = Command::new(programs::cargo())
            .args([
                "run",
                "--quiet",
                "--locked",
                "--package",
                "flow",
                "--example",
                "output-docs",
                "--",
                document,
            ])
            .args(args.check.then_some("--check"))
            .current_dir(repository::root())
            .status()
            .context("starting cargo run")?;
        if !status.success() {
            bail!("the tables of {document} ({status})");
        }
    }
    Ok(())
}
