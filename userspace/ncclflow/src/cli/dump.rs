//! `ncclflow dump`

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, bail};
use clap::{Args, builder::styling::AnsiColor};

use super::{
    Versioned,
    exit::Exit,
    fleet_args::{FleetArgs, RemoteWords, ask},
    merge,
    progress::reading,
    quantities::{each, seconds, size_from},
    shared_args::{DebugArgs, LookedAtArgs},
    terminal,
    whom::{by_reason, one_is_there},
    write_report,
};
use analysis::export::RankFiles;
use dump::{self, DumpOptions, DumpReport, RecorderDumps, State};
use flow::text::{counted, joined};
use inspect::memory::ScanLimits;

/// Heading in `--help`.
const LIMITS: &str = "Limits";

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
#[command(after_help = "\
Examples:
  ncclflow dump                           all jobs of this host
  ncclflow dump -p $(pgrep -d, -f train.py)    one job
  ncclflow dump -p 4242 -v --stacks       with operations, threads and stacks
  ncclflow dump -p 4242 --json > $(hostname).json
  ncclflow dump --merge host1.json host2.json  one verdict for several hosts
  ncclflow dump --hosts node[01-16]       the same, asked by ssh
  ncclflow dump --slurm 4711              the nodes of a job, by srun
  ncclflow dump --k8s                     ncclflow's pods, by kubectl

Nothing is prepared in the processes; they are read, not stopped. Needs root, or CAP_SYS_PTRACE.
Exit codes: 0 healthy; 3 stuck; 5 waiting for a rank that makes progress elsewhere; 4 cannot tell; 1 \
error; 2 wrong usage.")]
#[command(after_long_help = "\
More examples:
  ncclflow dump --merge dumps/            all *.json files of a folder
  ncclflow dump --hostfile hosts --remote 'sudo -n ncclflow' --via 'ssh -J b1'
  ncclflow dump --all --flight-recorder fr/rank_
                                          and files as torch's flight recorder
                                          has them, for torchfrtrace

docs/DUMP.md has the JSON's schema. Where the library's file was replaced, CAP_SYS_ADMIN is needed, too.")]
#[command(group = clap::ArgGroup::new("here").args(["pids", "all"]).conflicts_with("fleet"))]
pub struct DumpArgs {
    #[command(flatten)]
    pub whom: LookedAtArgs,

    #[command(flatten)]
    pub fleet: FleetArgs,

    /// Dumps (--json) of several hosts to judge together
    ///
    /// Files, folders with *.json files, or - for standard input. With -p or --all, this host is one more.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub merge: Vec<PathBuf>,

    #[command(flatten)]
    pub debug: DebugArgs,

    /// Also write files as torch's flight recorder has them
    ///
    /// For torchfrtrace: PREFIX<rank of the job>, or nccl_trace_rank_<rank> where PREFIX is a folder.
    #[arg(long, hide_short_help = true, value_name = "PREFIX")]
    pub flight_recorder: Option<PathBuf>,

    /// All that was read, as JSON
    #[arg(long)]
    pub json: bool,

    /// Time between two readings; there are three if nothing moves
    #[arg(help_heading = LIMITS, hide_long_help = true, long, value_name = "TIME", default_value = "0.5s", value_parser = seconds)]
    pub interval: Duration,

    /// Also the threads inside NCCL, and the operations of each rank
    #[arg(short, long)]
    pub verbose: bool,

    /// Native stacks of threads, and all of -v
    ///
    /// Of the threads inside NCCL, and of each process's first thread.
    #[arg(long)]
    pub stacks: bool,

    /// Stop looking at the first communicator of each process
    #[arg(help_heading = LIMITS, hide_long_help = true, long)]
    pub first: bool,

    /// Most memory to look through in each process: 64 (GiB), 500M
    #[arg(help_heading = LIMITS, hide_long_help = true)]
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = size_from(1 << 20, 1 << 30))]
    pub max_gib: u64,

    /// Longest time to look through each process
    #[arg(help_heading = LIMITS, hide_long_help = true, long, value_name = "TIME", default_value = "30s", value_parser = seconds)]
    pub max_seconds: Duration,
}

impl DumpArgs {
    /// Returns what ncclflow does on other hosts.
    fn remote_words(&self) -> RemoteWords {
        let mut words = RemoteWords::of(&["dump", "--all", "--json"]);
        words.add_flag("stacks", self.stacks);
        words.add_flag("first", self.first);
        words.add("interval", [self.interval.as_secs_f64()]);
        // As versions before this one read them, too.
        words.add("max-gib", [self.max_gib.div_ceil(1 << 30)]);
        words.add("max-seconds", [self.max_seconds.as_secs().max(1)]);
        self.debug.add_to(&mut words);
        words
    }
}

pub(super) fn run(args: &DumpArgs) -> Result<Exit> {
    let mut reports = Vec::new();
    let fleet = args.fleet.fleet()?;
    one_is_there(&each(&args.whom.pids))?;
    if args.whom.is_given() || (fleet.is_none() && args.merge.is_empty()) {
        let options = DumpOptions {
            interval: args.interval,
            first_only: args.first,
            limits: ScanLimits { bytes: args.max_gib, time: args.max_seconds },
            debug_files: args.debug.apply(),
            stacks: args.stacks,
        };
        let choice = args.whom.choice();
        reports.push(reading("", |line| dump::dump(&choice, &options, &mut |progress| line.scan(progress)))?);
    }
    let mut not_read = Vec::new();
    if let Some(fleet) = &fleet {
        let gathered = ask::<DumpReport>(fleet, &args.remote_words())?;
        reports.extend(gathered.answers);
        not_read = gathered.not_read;
    }
    reports.extend(merge::reports(&args.merge)?);
    let is_alone = args.merge.is_empty() && fleet.is_none();
    let mut report = if is_alone { reports.pop().unwrap_or_default() } else { dump::merge(reports) };
    report.hosts_not_read.append(&mut not_read);
    let (color, exit) = match report.state() {
        State::Healthy => (AnsiColor::Green, Exit::Done),
        State::Stuck => (AnsiColor::Red, Exit::Findings),
        State::Unknown => (AnsiColor::Yellow, Exit::Unknown),
        State::Waiting => (AnsiColor::Yellow, Exit::Waiting),
    };
    // Python's stacks can tell of a job that has not loaded NCCL yet.
    let unread = report.processes.iter().map(|process| Some((process.pid, process.error.clone()?)));
    let unread = unread.collect::<Option<Vec<_>>>().filter(|all| report.job.is_none() && !all.is_empty());
    let nothing = unread.map(|all| format!("nothing could be read: {}", joined(by_reason(all), "; ")));
    if let Some(nothing) = nothing.as_ref().filter(|_| !args.json) {
        bail!("{nothing}");
    }
    write_report(args.json, &Versioned::of(&report), |out| {
        // The first paragraph is the verdict.
        let text = dump::render(&report, args.verbose || args.stacks, terminal::report_width());
        match (&report.job, text.split_once("\n\n")) {
            (Some(_), Some((verdict, rest))) if terminal::has_color() => {
                terminal::verdict(Some(color), verdict)?;
                Ok(write!(out, "\n{rest}")?)
            }
            _ => Ok(write!(out, "{text}")?),
        }
    })?;
    if let Some(prefix) = &args.flight_recorder {
        write_flight_recorder(&report, prefix)?;
    }
    if let Some(nothing) = nothing {
        bail!("{nothing}");
    }
    Ok(exit)
}

/// Notes about the files go to standard error: standard output has the report.
fn write_flight_recorder(report: &DumpReport, prefix: &Path) -> Result<()> {
    let RecorderDumps { ranks, notes } = dump::recorder_dumps(report);
    for note in notes {
        tell!("{note}");
    }
    if ranks.is_empty() {
        bail!("no flight recorder's file can be made: no communicator of several ranks was found");
    }
    let files = RankFiles::at(prefix)?;
    let mut entries = 0;
    for (rank, dump) in &ranks {
        files.write((*rank).into(), &dump.entries, &dump.groups, dump.comm_lib_version.as_deref())?;
        entries += dump.entries.len();
    }
    let entries = if entries == 1 { "1 entry".to_owned() } else { format!("{entries} entries") };
    tell!("{entries} of {} written to {}", counted(ranks.len(), "rank"), prefix.display());
    Ok(())
}
