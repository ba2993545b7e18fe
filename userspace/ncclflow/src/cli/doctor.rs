//! `ncclflow doctor`

use std::io::{Write as _, stdout};

use anyhow::Result;
use clap::{Args, builder::styling::AnsiColor};

use super::{
    exit::Exit,
    quantities::{Pids, each},
    terminal, write_json,
};
use crate::doctor::{Verdict, examine};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow doctor                         as root: all that tracing needs
  ncclflow doctor -p 4242                 and what may be done to that process
                                          (or several), what not, and why
  ncclflow doctor --json | jq '.checks[] | select(.verdict != \"ok\")'

Each line is ok, degraded (something is lost, the rest works) or no (nothing can be traced), with the \
remedy. A uprobe is put on ncclflow itself for a moment, and nowhere else. Runs without root as far as it \
can.
Exit codes: 0 this host can trace, and the processes of -p; 1 it cannot, or not as this user, or not all of \
them; 2 wrong usage.")]
pub struct DoctorArgs {
    /// Say what may be done to these processes: probes, returns, reading their memory. They are not touched
    #[arg(short, long, value_name = "PID", num_args = 1..)]
    pub pid: Vec<Pids>,

    /// As JSON (docs/OUTPUT.md)
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &DoctorArgs) -> Result<Exit> {
    let report = examine(&each(&args.pid));
    if args.json {
        let mut out = terminal::out();
        write_json(&mut out, &report)?;
        out.flush()?;
    } else {
        report.print(&mut stdout().lock(), terminal::width(), |verdict, words| {
            let color = match verdict {
                Verdict::Ok => AnsiColor::Green,
                Verdict::Degraded => AnsiColor::Yellow,
                Verdict::No => AnsiColor::Red,
            };
            terminal::painted(color.on_default(), words)
        })?;
    }
    Ok(if report.worst() == Verdict::No { Exit::Failed } else { Exit::Done })
}
