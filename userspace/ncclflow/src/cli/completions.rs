//! `ncclflow completions`

use std::{io::Write as _, process::ExitCode};

use anyhow::Result;
use clap_complete::generate;

use super::{args::CompletionsArgs, variables};

pub(super) fn run(args: &CompletionsArgs) -> Result<ExitCode> {
    // `generate` panics where its writer fails, which memory does not.
    let mut script = Vec::new();
    generate(args.shell, &mut variables::command(), "ncclflow", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
