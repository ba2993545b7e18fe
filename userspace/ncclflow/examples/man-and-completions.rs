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
    // The long one has the commit and the target: pages are of a version.
    clap_mangen::generate_to(command().long_version(None::<&str>), &man).context("writing the man pages")?;
    for page in fs::read_dir(&man).context("listing the man pages")? {
        let page = page?.path();
        let context = || format!("in `{}`", page.display());
        let text = fs::read_to_string(&page).with_context(context)?;
        fs::write(&page, with_examples(&text)).with_context(context)?;
    }
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command(), "ncclflow", &completions)
            .with_context(|| format!("writing the completions of {shell}"))?;
    }
    Ok(())
}

/// The page with its examples under a heading of that name, line by line, and the sentences behind them as
/// paragraphs. clap_mangen (0.3) calls the end of the help EXTRA, and lets `man` fill its lines.
fn with_examples(page: &str) -> String {
    const HEADING: &str = ".SH EXTRA\n";
    let Some((before, footer)) = page.split_once(HEADING) else { return page.to_owned() };
    let end = footer.find("\n.SH ").map_or(footer.len(), |at| at + 1);
    let (footer, after) = footer.split_at(end);
    let footer = footer.strip_prefix("Examples:\n").unwrap_or(footer);
    let (mut text, mut is_filled) = (format!("{before}.SH EXAMPLES\n"), true);
    for line in footer.lines() {
        // An example stands on a line, or is explained on the next, which is indented more.
        let is_example = line.starts_with("  ");
        if is_example == is_filled {
            text.push_str(if is_example { ".nf\n" } else { ".fi\n" });
            is_filled = !is_example;
        }
        text.push_str(if line.is_empty() { ".PP" } else { line });
        text.push('\n');
    }
    text.push_str(".fi\n");
    text + after
}
