//! `ncclflow report`: one page of recordings, without root.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use super::{exit::Exit, export::write_notes, progress::reading, shared_args::PartArgs, terminal};
use analysis::report::{ReportOptions, Section, report};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow report /var/tmp/flows -o report.html
                                          the verdict, and what it rests on
  ncclflow report flows --force           flows.html, anew
  ncclflow report host*/flows -o job.html
                                          all hosts of a job on one page
  ncclflow report flows -o last.html --last 30s
  ncclflow report flows -o part.html --from 2026-11-22T14:03:05Z --comm 0x8f2c
  ncclflow report flows -o slow.html --open-section delays
                                          opens at the delay matrix

The page is one file, without scripts, fonts or pictures from elsewhere: mail it, or open it on a machine \
without a network. Times and waits are there for recordings of --level steps, lines of code for those with \
--stacks. TIME is as for `ncclflow export`. docs/REPORT.md says what each picture shows.
Exit codes: 0 done, whatever the verdict is (`ncclflow check` tells it by its exit code); 1 not done.")]
pub struct ReportArgs {
    /// Folders of recordings, windows or hosts, or a folder of those
    #[arg(value_name = "DIR", required = true, num_args = 1..)]
    pub inputs: Vec<PathBuf>,

    /// The page [default: DIR.html]; it must not exist
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Replace a page that exists
    #[arg(long)]
    pub force: bool,

    /// Which section of the page is shown first
    #[arg(long, value_enum, value_name = "SECTION")]
    pub open_section: Option<Section>,

    #[command(flatten)]
    pub part: PartArgs,
}

/// Returns the page of a folder: beside it, with its name.
fn beside(folder: &Path) -> Result<PathBuf> {
    let named = if folder.file_name().is_some() { folder.to_owned() } else { folder.canonicalize()? };
    let mut name = named.file_name().context("the folder has no name: give -o FILE")?.to_owned();
    name.push(".html");
    Ok(named.with_file_name(name))
}

pub(super) fn run(args: &ReportArgs) -> Result<Exit> {
    let output = match (&args.output, args.inputs.first()) {
        (Some(output), _) => output.clone(),
        (None, Some(folder)) => beside(folder)?,
        (None, None) => bail!("no folder is given"),
    };
    let options = ReportOptions {
        inputs: args.inputs.clone(),
        output: output.clone(),
        replace: args.force,
        choice: args.part.choice(),
        open: args.open_section,
    };
    let made = reading("", |line| report(options, &mut |read| line.bytes(read.bytes, read.of_bytes)))?;
    let mut text = Vec::new();
    writeln!(text, "{}", made.sentence)?;
    write_notes(&made.exported, &mut text)?;
    let rows = &made.exported.rows;
    if rows.ops + rows.calls == 0 && args.part.is_given() {
        writeln!(text, "nothing was recorded in the part that you chose")?;
    }
    writeln!(text, "{} ({} KB): open it in a browser", output.display(), made.bytes.div_ceil(1000))?;
    let mut out = terminal::out();
    write!(out, "{}", terminal::fitted(&String::from_utf8_lossy(&text), terminal::width()))?;
    out.flush()?;
    Ok(Exit::Done)
}
