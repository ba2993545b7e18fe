//! `ncclflow history`

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use super::{
    Versioned,
    exit::Exit,
    fleet_args::{FleetArgs, RemoteWords, ask},
    quantities::each,
    shared_args::{DebugArgs, LookedAtArgs},
    terminal,
    whom::{by_reason, one_is_there},
    write_report,
};
use crate::fleet::Gathered;
use analysis::export::RankFiles;
use dump::history::{self, HistoryOptions, HistoryReport};
use flow::text::{counted, joined};
use torch_history::HistoryState;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow history -p $(pgrep -d, -f train.py)
                                          all ranks, by process group
  ncclflow history --all --last 50        the latest 50 of each group
  ncclflow history --all --comm tensor_parallel
                                          one group: name, description or hash
  ncclflow history --slurm 4711           a job on all its nodes
  ncclflow history --all -f flight-recorder -o traces/nccl_trace_rank_

torch's flight recorder is read from memory; nothing is stopped. It is on by default from torch 2.11 on, \
before with TORCH_NCCL_TRACE_BUFFER_SIZE=2000. Needs root, or CAP_SYS_PTRACE.
Exit codes: 0 the ranks called the same; 3 they differ; 5 a rank is behind; 4 cannot tell; 1 nothing \
to read, as where torch is not loaded, or an error; 2 wrong usage.")]
#[command(after_long_help = "\
More examples:
  ncclflow history --all --json | jq '.groups[] | {description, verdict}'

torch keeps notes of the latest 2,000 collectives of each process. Nothing asks torch or Python for them. \
What completed is what torch's watchdog had noticed. Exit code 5: a rank has not called what others have, \
or a collective is not completed, for a second or more. docs/HISTORY.md has the JSON's schema and the \
versions that are known.")]
#[command(group = clap::ArgGroup::new("here").args(["pids", "all"]).conflicts_with("fleet"))]
pub struct HistoryArgs {
    #[command(flatten)]
    pub whom: LookedAtArgs,

    #[command(flatten)]
    pub fleet: FleetArgs,

    /// Only this process group
    ///
    /// By its name or description, or by its communicator's hash (0x…).
    #[arg(long, value_name = "NAME|HASH")]
    pub comm: Option<String>,

    /// Only the latest N collectives of each process group
    ///
    /// Without it, the text shows 10, and the JSON has all, of other hosts 100.
    #[arg(long, value_name = "N", value_parser = count)]
    pub last: Option<usize>,

    #[command(flatten)]
    pub debug: DebugArgs,

    /// All that was read, as JSON
    #[arg(long)]
    pub json: bool,

    /// Also write files as torch would have dumped them
    ///
    /// For torchfrtrace.
    #[arg(short, long, value_name = "FORMAT", requires = "output")]
    pub format: Option<HistoryFormat>,

    /// Beginning of these files' names, or a folder
    ///
    /// PREFIX<rank of the job>, or nccl_trace_rank_<rank> where PREFIX is a folder.
    #[arg(short, long, value_name = "PREFIX", requires = "format")]
    pub output: Option<PathBuf>,
}

/// Further forms of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HistoryFormat {
    /// torch's own
    FlightRecorder,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("must be a number from 1 on".to_owned()),
        Ok(count) => Ok(count),
    }
}

/// Collectives of each process group that other hosts send, unless `--last` says otherwise: all of a large
/// job's would be gigabytes.
const LAST_OF_HOSTS: usize = 100;

impl HistoryArgs {
    /// Returns what ncclflow does on other hosts.
    fn remote_words(&self) -> RemoteWords {
        let mut words = RemoteWords::of(&["history", "--all", "--json"]);
        words.add("comm", &self.comm);
        // Files of torch's have all.
        words.add("last", self.last.or_else(|| self.format.is_none().then_some(LAST_OF_HOSTS)));
        self.debug.add_to(&mut words);
        words
    }
}

pub(super) fn run(args: &HistoryArgs) -> Result<Exit> {
    one_is_there(&each(&args.whom.pids))?;
    let options = HistoryOptions {
        choice: args.whom.choice(),
        comm: args.comm.clone(),
        last: args.last,
        debug_files: args.debug.apply(),
    };
    let report = match args.fleet.fleet()? {
        Some(fleet) => {
            let Gathered { answers, not_read } = ask(&fleet, &args.remote_words())?;
            HistoryReport { hosts_not_read: not_read, ..history::merge(answers) }
        }
        None => history::history(&options)?,
    };
    let has_something = ensure_something(&report);
    if has_something.is_ok() || args.json {
        write_report(args.json, &Versioned::of(&report), |out| {
            Ok(write!(out, "{}", history::render(&report, args.last, terminal::report_width()))?)
        })?;
    }
    has_something?;
    // There is one format.
    if let (Some(HistoryFormat::FlightRecorder), Some(prefix)) = (args.format, &args.output) {
        let count = write_flight_recorder(&report, prefix).context("writing torch's flight recorder")?;
        tell!("{} of torch's flight recorder: {}", counted(count, "file"), prefix.display());
    }
    Ok(match report.verdict.state {
        HistoryState::Agree => Exit::Done,
        HistoryState::Differ => Exit::Findings,
        HistoryState::Unknown => Exit::Unknown,
        HistoryState::Waiting => Exit::Waiting,
    })
}

/// Writes the file that each process would have dumped itself. Returns their number.
fn write_flight_recorder(report: &HistoryReport, prefix: &Path) -> Result<usize> {
    let rings = history::rings_by_rank(report)?;
    let files = RankFiles::at(prefix)?;
    for (rank, ring) in &rings {
        files.write(*rank, &ring.entries, &ring.groups, ring.library_version.as_deref())?;
    }
    Ok(rings.len())
}

/// Fails where no process has torch's notes, and tells why.
fn ensure_something(report: &HistoryReport) -> Result<()> {
    let mut all = Vec::new();
    for process in &report.processes {
        let notes = process.notes.as_ref();
        if notes.is_some_and(|notes| notes.rings.iter().any(|ring| ring.enabled)) {
            return Ok(());
        }
        let why = process.error.clone().or_else(|| notes.and_then(|notes| notes.unknown.clone()));
        let why = why.unwrap_or_else(|| "torch is not loaded; `ncclflow dump` reads NCCL itself".to_owned());
        all.push((process.pid, why));
    }
    bail!("torch's flight recorder could be read in no process: {}", joined(by_reason(all), "; "))
}
