//! The arguments of every command.

use std::{path::PathBuf, sync::LazyLock, time::Duration};

use clap::{Args, ColorChoice, CommandFactory as _, Parser, Subcommand, error::ErrorKind};
use clap_complete::Shell;

use super::{
    export_args::ExportArgs, filter_args::FilterArgs, history_args::HistoryArgs, record_args::RecordArgs,
    report::ReportArgs, stacks_args::StacksArgs, top_args::TopArgs,
};
use nccl_library::symbols::DebugFiles;
use trace::kernel::loader::OBJECT_SHA256;

/// Output of `--version`: a line of `key: value` for each thing that tells two builds of one version apart. A
/// static program loads no library.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{}\ncommit: {}\ntarget: {}\nnvml: {}\nebpf-sha256: {}",
        env!("CARGO_PKG_VERSION"),
        env!("NCCLFLOW_BUILD_COMMIT"),
        env!("NCCLFLOW_BUILD_TARGET"),
        if cfg!(target_feature = "crt-static") { "no" } else { "yes" },
        OBJECT_SHA256,
    )
});

/// See what NCCL decides and sends in GPU jobs that are already running, from outside
#[derive(Debug, Parser)]
#[command(name = "ncclflow", version, long_version = LONG_VERSION.as_str())]
#[command(propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "\
Begin with:
  ncclflow doctor                              can this host trace?
  ncclflow ps                                  what uses NCCL here
  ncclflow dump -p 4242,4243                   why these processes hang
  ncclflow top -p 4242,4243                    what they do right now
  ncclflow record -p 4242,4243 -d 5 -o flows   record five seconds; then `ncclflow check flows`

`ncclflow COMMAND --help` has examples. docs/GUIDE.md goes through the tasks.
Exit codes: 0 done; 1 not done, the message says why; 2 wrong usage; 3 done, and there is something to look at (findings, a
job that is stuck, losses with --strict).")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// Colours on a terminal: auto looks at NO_COLOR, too
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    pub color: ColorChoice,
}

impl Cli {
    /// Checks what the derived parser cannot: options that make sense with some values of others only.
    pub fn check(&self) -> Result<(), clap::Error> {
        let chosen = match &self.command {
            Command::Record(args) => Some((args.all, &args.filter)),
            Command::Top(args) => Some((args.all, &args.filter)),
            Command::Stacks(args) => Some((args.all, &args.filter)),
            _ => None,
        };
        let message = match &self.command {
            _ if chosen.is_some_and(|(all, filter)| !all && !filter.filter().is_empty()) => {
                Some("--user, --cgroup, --container, --comm and --nccl-version choose among --all")
            }
            Command::Record(args) => args.contradiction(),
            Command::Stacks(args) => args.contradiction(),
            _ => None,
        };
        message.map_or(Ok(()), |message| Err(Self::command().error(ErrorKind::ArgumentConflict, message)))
    }
}

// Sorted by when people need them.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check whether this host can trace, and say what to do where it cannot
    Doctor(DoctorArgs),
    /// List the processes of this host that use NCCL, with their libraries and communicators
    Ps(PsArgs),
    /// Say why a job hangs: what every communicator does now, and which rank the others wait for
    Dump(DumpArgs),
    /// Say what the ranks called before you looked, and where they first differ, from torch's flight recorder
    History(HistoryArgs),
    /// Show live what NCCL does: operations, bytes, algorithms, waits, ranks that are behind
    Top(TopArgs),
    /// Record, for each rank, what NCCL plans and sends in processes that are running
    Record(Box<RecordArgs>),
    /// Compare the ranks of recordings: do they agree, and who waits for whom?
    Check(CheckArgs),
    /// Make one page of recordings for a browser: verdict, rings and trees, traffic, a timeline, waits
    Report(Box<ReportArgs>),
    /// Show each link of recordings: messages, bytes, bandwidth, and what was waited for
    Summary(SummaryArgs),
    /// Count the call stacks behind NCCL's calls: of running processes, of a recording, or out of a profiler's trace
    Stacks(Box<StacksArgs>),
    /// Make files for other programs out of recordings: all, or a part by time, communicator, rank or process
    Export(Box<ExportArgs>),
    /// Show what can be resolved in an NCCL library, how, and what is lost if not
    Symbols(SymbolsArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
}

impl Command {
    /// Tells whether file systems are asked that may not answer.
    pub(super) fn allows_fuse(&self) -> bool {
        match self {
            Self::Ps(args) => args.debug.allow_fuse,
            Self::Record(args) => args.debug.allow_fuse,
            Self::Dump(args) => args.debug.allow_fuse,
            Self::History(args) => args.debug.allow_fuse,
            Self::Top(args) => args.debug.allow_fuse,
            // A file that is named on the command line is wanted.
            Self::Symbols(_) => true,
            _ => false,
        }
    }
}

/// Places of debugging information that the library itself does not have.
#[derive(Clone, Debug, Args)]
pub struct DebugArgs {
    /// Debugging information of a stripped library: the library before it was stripped, or its .debug file
    #[arg(long, value_name = "FILE")]
    pub debug_file: Vec<PathBuf>,

    /// Folder to look for it in, by build-id or debug link; /usr/lib/debug is always searched, too
    #[arg(long, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,

    /// Also read libraries on file systems in user space (FUSE). Whoever runs such a file system can leave a
    /// read
    /// without an answer: ncclflow then gives up the helper process that reads, and does not read the library
    /// again
    #[arg(long)]
    pub allow_fuse: bool,
}

impl DebugArgs {
    pub(super) fn files(&self) -> DebugFiles {
        DebugFiles::new(self.debug_file.clone(), self.debug_dir.clone())
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow ps                                  every process that has NCCL mapped, under any name, also in containers
  ncclflow ps --json | jq '.processes[].pid'
  ncclflow ps --user ann --nccl-version 2.27
  ncclflow ps --watch 2                        again and again, with the collectives that were launched meanwhile
  ncclflow ps --watch 2 --no-comms

NCCL that is linked statically into a library or program is found by its version string. docs/OUTPUT.md has the JSON's schema.
Without root you see your own processes, and how many others there are.")]
pub struct PsArgs {
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Do not look for communicators in the processes' memory: faster
    #[arg(long)]
    pub no_comms: bool,

    /// List again every SECS seconds, until Ctrl-C
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub watch: Option<Duration>,

    /// All that was found, as JSON; with --watch an object a line
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub debug: DebugArgs,

    /// Longest time to look through the memory of each process, in seconds
    #[arg(long, value_name = "SECS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_seconds: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow summary /var/tmp/flows
  ncclflow summary host1/flows host2/flows --json | jq '.ranks[].links[] | {peer, bandwidth}'
  ncclflow summary flows -v                    every link

Waits and bandwidth are there for recordings of --level steps; messages and bytes for all.")]
pub struct SummaryArgs {
    /// Folders of recordings or windows; of a folder with windows, each window by itself
    #[arg(value_name = "DIR", required = true, num_args = 1..)]
    pub dirs: Vec<PathBuf>,

    /// All links and all waits; without it, only those that matter most
    #[arg(short, long)]
    pub verbose: bool,

    /// All of it as JSON, with the times of each op
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow check /var/tmp/flows                one host
  ncclflow check host1/flows host2/flows       all ranks of a job
  ncclflow check flows -v                      with the waits of every rank
  ncclflow check flows --json | jq '.communicators[].verdict.culprit'
  ncclflow check host*/calls                   of record --level api --stacks: with the line of each rank
  ncclflow check flows --json | jq -r '.communicators[].firstDifference.text'

Finds collectives that are not the same on all ranks, or in another order; ranks that have not joined; sends without receives. Of
recordings of --level steps it also finds the rank or link that the others wait for, without comparing clocks of ranks.
Exit codes: 0 consistent; 3 findings; 1 error; 2 wrong usage.")]
pub struct CheckArgs {
    /// Folders of recordings or windows; those of one communicator's ranks are put together. Of folders with windows,
    /// those that were open at the same time
    #[arg(value_name = "DIR", required = true, num_args = 1..)]
    pub dirs: Vec<PathBuf>,

    /// The waits of every rank
    #[arg(short, long)]
    pub verbose: bool,

    /// All that was found, as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
#[command(group = clap::ArgGroup::new("source").required(true).multiple(true).args(["pids", "all", "merge"]))]
#[command(after_help = "\
Examples:
  ncclflow dump -p 4242                        what a job that hangs waits for
  ncclflow dump -p $(pgrep -d, -f train.py)    all ranks of this host
  ncclflow dump -p 4242 -v                     with threads and operations in flight
  ncclflow dump --all --stacks                 everything on this host that uses NCCL, and where its threads are
  ncclflow dump -p 4242 --json > $(hostname).json
  ncclflow dump --merge host1.json host2.json  the verdict over several hosts
  ncclflow dump --merge dumps/                 of all *.json files of a folder
  for h in $HOSTS; do ssh $h ncclflow dump --all --json; done | ncclflow dump --merge -
  ncclflow dump --all --flight-recorder fr/rank_
                                               and files as torch's flight recorder has them, for torchfrtrace

Nothing needs to be prepared in the processes; they are read, not stopped. docs/DUMP.md has the JSON's schema.
Needs root, or CAP_SYS_PTRACE (and CAP_SYS_ADMIN where the library's file was replaced).
Exit codes: 0 healthy; 3 stuck; 5 waiting for a rank that makes progress elsewhere; 4 cannot tell; 1 error; 2 wrong usage.")]
pub struct DumpArgs {
    /// Processes to read
    #[arg(short, long = "pid", value_name = "PID", value_delimiter = ',', num_args = 1..)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub pids: Vec<u32>,

    /// Every process of this node that has an NCCL library mapped, under any name, also in containers
    #[arg(long, conflicts_with = "pids")]
    pub all: bool,

    /// Dumps of other hosts (their --json) to judge together with this one: files, folders with *.json files, or - for
    /// standard input
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub merge: Vec<PathBuf>,

    #[command(flatten)]
    pub debug: DebugArgs,

    /// Also write what is known in the form of torch's flight recorder, for torchfrtrace: PREFIX<rank of the
    /// job>, or
    /// nccl_trace_rank_<rank> where PREFIX is a folder
    #[arg(long, value_name = "PREFIX")]
    pub flight_recorder: Option<PathBuf>,

    /// All that was read, as JSON
    #[arg(long)]
    pub json: bool,

    /// Seconds between two readings; there are three if nothing moves
    #[arg(long, value_name = "SECS", default_value = "0.5", value_parser = seconds)]
    pub interval: Duration,

    /// Also the threads inside NCCL, and the operations of each rank
    #[arg(short, long)]
    pub verbose: bool,

    /// Native stacks of the threads inside NCCL, and of each process's first thread; with all of -v
    #[arg(long)]
    pub stacks: bool,

    /// Stop looking at the first communicator of each process
    #[arg(long)]
    pub first: bool,

    /// Most memory to look through in each process, in GiB
    #[arg(long, value_name = "GIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_gib: u64,

    /// Longest time to look through each process, in seconds
    #[arg(long, value_name = "SECS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_seconds: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow doctor                              as root: all that tracing needs
  ncclflow doctor -p 4242                      and what may be done to that process, what not, and why
  ncclflow doctor --json | jq '.checks[] | select(.verdict != \"ok\")'

Each line is ok, degraded (something is lost, the rest works) or no (nothing can be traced), with the remedy. A uprobe is put on
ncclflow itself for a moment, and nowhere else. Runs without root as far as it can.
Exit codes: 0 this host can trace; 1 it cannot, or not as this user; 2 wrong usage.")]
pub struct DoctorArgs {
    /// Say what may be done to this process: probes, returns, reading its memory. It is not touched
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,

    /// As JSON (docs/OUTPUT.md)
    #[arg(long)]
    pub json: bool,
}

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

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["library", "pid"]))]
#[command(after_help = "\
Examples:
  ncclflow symbols /usr/lib/x86_64-linux-gnu/libnccl.so.2
  ncclflow symbols -p 4242 --json | jq .symbol_source
  ncclflow symbols --debug-dir ~/wheels/nvidia stripped/libnccl.so.2

Exit code 1 if the library cannot be traced.")]
pub struct SymbolsArgs {
    /// An NCCL library file
    #[arg(value_name = "LIB")]
    pub library: Option<PathBuf>,

    /// A process that has an NCCL library mapped
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,

    #[command(flatten)]
    pub debug: DebugArgs,

    /// Everything that was resolved, as JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if seconds > 0.0 {
        Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
    } else {
        Err("must be more than 0".to_owned())
    }
}
