//! The command line. The arguments of each command are in its own file.

use std::sync::LazyLock;

use clap::{ColorChoice, CommandFactory as _, Parser, Subcommand, error::ErrorKind};

use super::{
    check, completions, doctor, dump, export, help, history, mem, ps, record_args::RecordArgs, report,
    shared_args::FilterArgs, stacks, symbols, top, watch, whom::unknown_user,
};
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
#[command(propagate_version = true, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = "\
Begin with:
  ncclflow doctor                         can this host trace?
  ncclflow ps                             what uses NCCL here
  ncclflow dump -p 4242,4243              why these processes hang
  ncclflow top                            what NCCL does here right now
  ncclflow watch --all                    alerts when a job hangs, no probe
  ncclflow record -p 4242,4243 -d 5 -o flows   five seconds; then `check flows`

`ncclflow COMMAND --help` has examples, `ncclflow help COMMAND` everything. docs/GUIDE.md goes through the \
tasks.
Exit codes: 0 done; 1 not done, the message says why; 2 wrong usage; 3 done, and there is something to look at \
(findings, a job that is stuck, losses with --strict); 4 cannot tell, 5 a rank is waited for: see `dump --help`.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// Colour output; auto honours NO_COLOR
    #[arg(long, global = true, display_order = 900, value_enum, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    pub color: ColorChoice,
}

impl Cli {
    /// Makes an error that shows how the command is used.
    fn error(&self, kind: ErrorKind, message: &str) -> clap::Error {
        let name = match &self.command {
            Command::Record(_) => "record",
            Command::Top(_) => "top",
            Command::Stacks(_) => "stacks",
            Command::Ps(_) => "ps",
            _ => "",
        };
        let mut all = Self::command();
        all.build();
        match all.find_subcommand_mut(name) {
            Some(command) => command.error(kind, message),
            None => all.error(kind, message),
        }
    }

    /// Checks what the derived parser cannot: options that make sense with some values of others only.
    pub fn check(&self) -> Result<(), clap::Error> {
        let chosen = self.chosen();
        let message = match &self.command {
            _ if chosen.is_some_and(|(all, filter)| !all && !filter.filter().is_empty()) => {
                Some("--user, --cgroup, --container, --comm and --nccl-version choose among --all")
            }
            Command::Record(args) => args.contradiction(),
            Command::Stacks(args) => args.contradiction(),
            _ => None,
        };
        message.map_or(Ok(()), |message| Err(self.error(ErrorKind::ArgumentConflict, message)))
    }

    /// Returns whether all processes of this host are chosen, and the filters.
    fn chosen(&self) -> Option<(bool, &FilterArgs)> {
        match &self.command {
            Command::Record(args) => Some((args.all, &args.filter)),
            Command::Top(args) => Some((args.is_all(), &args.filter)),
            Command::Stacks(args) => Some((args.all, &args.filter)),
            _ => None,
        }
    }

    /// Checks that users of filters are known on this host.
    pub(super) fn check_users(&self) -> Result<(), clap::Error> {
        let of_this_host = match &self.command {
            Command::Ps(args) if !args.fleet.is_given() => Some(&args.filter),
            _ => self.chosen().map(|(_, filter)| filter),
        };
        let unknown = of_this_host.and_then(|filter| unknown_user(&filter.filter()));
        unknown.map_or(Ok(()), |message| Err(self.error(ErrorKind::InvalidValue, &message)))
    }
}

// Sorted by when people need them.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check whether this host can trace, and say what to do where it cannot
    Doctor(doctor::DoctorArgs),
    /// List the processes of this host that use NCCL, with their libraries and communicators
    Ps(ps::PsArgs),
    /// Explain why a job hangs: what every communicator does now, and which rank the others wait for
    Dump(dump::DumpArgs),
    /// Say what the ranks called before you looked, and where they first differ, from torch's flight recorder
    History(history::HistoryArgs),
    /// Show the memory that NCCL has allocated, by communicator, transport and purpose
    Mem(mem::MemArgs),
    /// Show live what NCCL does: operations, bytes, algorithms, waits, ranks that are behind
    Top(top::TopArgs),
    /// Watch jobs, always and without a probe: rates, and alerts when one hangs, loses a rank or gets slower
    Watch(Box<watch::WatchArgs>),
    /// Record, for each rank, what NCCL plans and sends in processes that are running
    Record(Box<RecordArgs>),
    /// Compare the ranks of recordings: do they agree, and who waits for whom?
    Check(check::CheckArgs),
    /// Make one page of recordings for a browser: verdict, rings and trees, traffic, a timeline, waits
    Report(Box<report::ReportArgs>),
    /// Show each link of recordings: messages, bytes, bandwidth, and what was waited for
    Summary(check::SummaryArgs),
    /// Count the call stacks behind NCCL's calls: of running processes, of a recording, or out of a
    /// profiler's trace
    Stacks(Box<stacks::StacksArgs>),
    /// Convert recordings for other programs: all, or a part by time, communicator, rank or process
    Export(Box<export::ExportArgs>),
    /// Show which NCCL symbols can be resolved in a library, how, and what is lost otherwise
    Symbols(symbols::SymbolsArgs),
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
    /// Print all that there is to know of a command, as its man page
    Help(help::HelpArgs),
}
