//! `ncclflow report`: one page of recordings, without root.

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Args;

use super::{export::write_notes, part_args::PartArgs, progress::reading, terminal};
use analysis::report::{ReportOptions, Section, report};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow report /var/tmp/flows -o report.html              the verdict first, then pictures of what it rests on
  ncclflow report host*/flows -o job.html                    all hosts of a job on one page
  ncclflow report flows -o last.html --last 30s              the last 30 s
  ncclflow report flows -o part.html --from 2026-11-22T14:03:05Z --to 2026-11-22T14:03:07Z --comm 0x8f2c
  ncclflow report flows -o slow.html --open-section delays   opens at the delay matrix

The page is one file, without scripts, fonts or pictures from elsewhere: mail it, or open it on a machine without a network.
Times and waits are there for recordings of --level steps, lines of code for those with --stacks. TIME is as for `ncclflow export`.
docs/REPORT.md says what each picture shows. Exit codes: 0 done, whatever the verdict is (`ncclflow check` tells it by its exit code); 1 not done.")]
pub struct ReportArgs {
    /// Folders of recordings: of sessions, windows or hosts, or a folder of such folders
    #[arg(value_name = "DIR", required = true, num_args = 1..)]
    pub inputs: Vec<PathBuf>,

    /// The page; it must not exist
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,

    /// Which section of the page is shown first
    #[arg(long, value_enum, value_name = "SECTION")]
    pub open_section: Option<Section>,

    #[command(flatten)]
    pub part: PartArgs,
}

pub(super) fn run(args: &ReportArgs) -> Result<ExitCode> {
    let options = ReportOptions {
        inputs: args.inputs.clone(),
        output: args.output.clone(),
        choice: args.part.choice(),
        open: args.open_section,
    };
    let made = reading("", |line| report(options, &mut |read| line.show(read.bytes, read.of_bytes)))?;
    let mut out = terminal::out();
    writeln!(out, "{}", made.sentence)?;
    write_notes(&made.exported, &mut out)?;
    let rows = &made.exported.rows;
    if rows.ops + rows.calls == 0 && rows.left_out > 0 {
        writeln!(out, "nothing was recorded in the part that you chose")?;
    }
    writeln!(out, "{} ({} KB): open it in a browser", args.output.display(), made.bytes.div_ceil(1000))?;
    Ok(ExitCode::SUCCESS)
}
