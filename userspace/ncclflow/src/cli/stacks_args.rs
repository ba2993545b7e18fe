//! The arguments of `stacks`.

use inspect::layout_cache::default_folder;
use stacks::LiveStacks;
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};
use trace::{
    kernel::loader::{best_buffer, best_links, prepared},
    record::{RecordOptions, StackChoice, StackKind, Targets},
};

use clap::Args;

use super::{args::seconds, filter_args::FilterArgs};
use flow::session::Level;
use ncclflow_common::{MAX_STACK_FRAMES, STACK_FRAMES};

const WINDOW: &str = "Window";
const OUTPUT: &str = "Output";

/// Default of the NCCL Call Stack Analyzer: NCCL's kernel for what has none of its own.
const KERNEL: &str = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)";

/// Default number of a launch's callers in a trace.
const CALLERS: usize = 12;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["source", "pids", "all"]))]
#[command(after_help = "\
Examples:
  ncclflow stacks -p 4242 -d 10                          behind the calls of a running process, for ten seconds
  ncclflow stacks --all --comm train.py -d 10 --kernel-name AllReduce
  ncclflow stacks -p 4242 -d 10 --both                   with the native frames between Python and NCCL
  ncclflow stacks -p 4242 --json | jq '.groups[] | [.count, .function, .rank, .frames[-1].line]'
  ncclflow stacks /var/tmp/flows                         behind what a recording has, if it was made with --stacks
  ncclflow stacks trace.json.gz                          behind ncclDevKernel_Generic_1, in the whole trace
  ncclflow stacks trace.json.gz --kernel-name 'ncclDevKernel_%'    behind all of NCCL's kernels
  ncclflow stacks trace.json --function-name 'train.py(41): step' --index 3 --kernel-name 'ncclDevKernel_AllReduce%'
  ncclflow stacks trace.pb --start-ts 4502111772961473 --duration 1000000
  ncclflow stacks trace.json.gz --json | jq '.stacks[0].frames[]'
  ncclflow stacks trace.json.gz --folded | flamegraph.pl > stacks.svg
  ncclflow stacks trace.json.gz --pprof --output stacks.pb.gz; go tool pprof -top stacks.pb.gz

Of processes and recordings, the stacks behind NCCL's calls are counted, by function, communicator and rank: nothing has to be prepared in
the job. Python frames are the default; a recording has what it was made with. Needs what `ncclflow record` needs.
TRACE is of torch.profiler (with_stack=True gives Python's frames) or of any program that writes Chrome's JSON or Perfetto's protobuf; each
may be compressed by gzip. Equal stacks are counted, the most frequent first; digits at the end of a
name and addresses of objects are dropped before, so that layers are one. A name with a % in it is a pattern, as of SQL's LIKE: % is any
text, _ any character, in either case.
docs/STACKS.md has the forms of output. Exit codes: 0 done, also where nothing was found, which is said; 1 not done; 2 wrong usage.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct StacksArgs {
    /// Folder of a recording that was made with --stacks; or the trace of a profiler: Kineto's or Chrome's JSON, or
    /// Perfetto's protobuf
    #[arg(value_name = "DIR|TRACE")]
    pub source: Option<PathBuf>,

    /// Processes whose calls are watched; other processes on the same library are left alone
    #[arg(short, long = "pid", value_name = "PID", value_delimiter = ',', num_args = 1..)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub pids: Vec<u32>,

    /// Every process of this node that uses NCCL, also those that start later
    #[arg(long, conflicts_with = "pids")]
    pub all: bool,

    #[command(flatten)]
    pub filter: FilterArgs,

    /// Seconds to watch [default: until Ctrl-C or until the processes exit]
    #[arg(short = 'd', value_name = "SECS", value_parser = seconds, conflicts_with = "source")]
    pub seconds: Option<Duration>,

    /// Only kernels of this name [default in a trace: ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)]; of
    /// processes and recordings, only calls of this function: AllReduce
    #[arg(long, value_name = "NAME")]
    pub kernel_name: Option<String>,

    /// Most frames that are shown, from the innermost on: of a trace callers of a launch [default: 12]; of processes
    /// [default: 24] and recordings, 48 at most
    #[arg(long, value_name = "N")]
    pub stack_depth: Option<usize>,

    /// Of processes: Python frames [the default]
    #[arg(long, group = "frames", conflicts_with = "source")]
    pub python: bool,

    /// Of processes: native frames, of C, C++ and others; x86-64 only
    #[arg(long, group = "frames", conflicts_with = "source")]
    pub native: bool,

    /// Of processes: native frames with Python's among them
    #[arg(long, group = "frames", conflicts_with = "source")]
    pub both: bool,

    /// Only what was launched during a call of this function; of several, --index says which, or you are asked
    #[arg(help_heading = WINDOW, long, value_name = "NAME", conflicts_with_all = ["pids", "all"])]
    pub function_name: Option<String>,

    /// Which call of the function, from 0, in the order of time
    #[arg(help_heading = WINDOW, long, value_name = "N", requires = "function_name")]
    pub index: Option<usize>,

    /// Only what was launched from this time of the trace on, in ns; with --duration, whatever --function-name says
    #[arg(help_heading = WINDOW, long, value_name = "NS", requires = "duration", allow_negative_numbers = true)]
    pub start_ts: Option<i64>,

    /// For so long, in ns
    #[arg(help_heading = WINDOW, long, value_name = "NS", requires = "start_ts")]
    pub duration: Option<u64>,

    /// As JSON
    #[arg(help_heading = OUTPUT, long, group = "form")]
    pub json: bool,

    /// A line a stack, for flame graphs
    #[arg(help_heading = OUTPUT, long, group = "form")]
    pub folded: bool,

    /// A profile for pprof, compressed
    #[arg(help_heading = OUTPUT, long, group = "form")]
    pub pprof: bool,

    /// Write to this file
    #[arg(help_heading = OUTPUT, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl StacksArgs {
    /// Returns the kernels' name in a trace.
    pub(super) fn kernel(&self) -> &str {
        self.kernel_name.as_deref().unwrap_or(KERNEL)
    }

    /// Returns how many callers of a launch are wanted.
    pub(super) fn callers(&self) -> usize {
        self.stack_depth.unwrap_or(CALLERS)
    }

    /// Returns the number of frames that the kernel side is to walk.
    pub(super) fn frames(&self) -> u8 {
        self.stack_depth.map_or(STACK_FRAMES, |depth| u8::try_from(depth).unwrap_or(u8::MAX))
    }

    /// Returns what is wrong with options that make sense with some values of others only.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let most = u8::try_from(MAX_STACK_FRAMES).unwrap_or(u8::MAX);
        (self.source.is_none() && !(1..=most).contains(&self.frames()))
            .then_some("--stack-depth is from 1 to 48 where processes are watched")
    }

    /// Returns the library's options: nothing is written, calls and their stacks are counted.
    pub(super) fn options(&self, started: Instant, live: LiveStacks) -> RecordOptions {
        let targets = Targets::new(self.all, &self.pids, &self.filter.filter());
        let mut options = RecordOptions {
            watcher: Some(live),
            duration: self.seconds,
            cache: default_folder(),
            ..RecordOptions::new(started, targets, best_buffer(), prepared(best_links()))
        };
        options.choice.level = Level::Api;
        let kind = match (self.native, self.both) {
            (true, _) => StackKind::Native,
            (_, true) => StackKind::Both,
            _ => StackKind::Python,
        };
        options.choice.stacks = Some(StackChoice { kind, depth: self.frames() });
        options
    }
}
