//! Writes the man pages and the shells' completions of the command line. Run by `cargo xtask dist`.
//!
//! `man-and-completions DIR`: DIR/man gets a page for each command, DIR/completions a file for each shell.

use std::{env, fs, path::PathBuf};

use anyhow::{Context as _, Result};
use clap_complete::{Shell, generate_to};
use ncclflow::cli::command;

fn main() -> Result<()> {
    let folder = env::args_os().nth(1).map(PathBuf::from).context("usage: man-and-completions DIR")?;
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    for folder in [&man, &completions] {
        fs::create_dir_all(folder).with_context(|| format!("making `{}`", folder.display()))?;
    }
    clap_mangen::generate_to(command(), &man).context("writing the man pages")?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command(), "ncclflow", &completions)
            .with_context(|| format!("writing the completions of {shell}"))?;
    }
    Ok(())
}
