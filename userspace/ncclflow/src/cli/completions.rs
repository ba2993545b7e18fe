//! `ncclflow completions`

use std::io::Write as _;

use anyhow::Result;
use clap::Args;
use clap_complete::{Shell, generate};

use super::{exit::Exit, variables};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow completions bash > /etc/bash_completion.d/ncclflow
  ncclflow completions zsh > ~/.zfunc/_ncclflow
  ncclflow completions fish > ~/.config/fish/completions/ncclflow.fish

The packages have them, and the man pages.")]
pub struct CompletionsArgs {
    /// For which shell
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> Result<Exit> {
    // `generate` panics where its writer fails, which memory does not.
    let mut script = Vec::new();
    generate(args.shell, &mut variables::command(), "ncclflow", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(Exit::Done)
}
