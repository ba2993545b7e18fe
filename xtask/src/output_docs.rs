//! `cargo xtask make output-docs`: makes the tables of docs/OUTPUT.md and docs/PARQUET.md from the rows that
//! are written.
//!
//! The program that does it is an example of the `flow` crate: xtask itself must build without the `ncclflow`
//! crate, which refuses to build while the committed eBPF object is out of date.

use anyhow::Result;

use crate::{programs, tool};

const DOCUMENTS: [&str; 2] = ["docs/OUTPUT.md", "docs/PARQUET.md"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail if the tables are not what the rows say
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    for document in DOCUMENTS {
        let mut cargo = programs::cargo_command("run");
        cargo.args(["--package", "flow", "--example", "output-docs", "--", document]);
        tool::run(cargo.args(args.check.then_some("--check")), &format!("the tables of {document}"))?;
    }
    Ok(())
}
