//! The arguments of `stacks`.

use std::path::PathBuf;

use clap::Args;

const WINDOW: &str = "Window";
const OUTPUT: &str = "Output";

/// What the NCCL Call Stack Analyzer looks for: NCCL's kernel for what has none of its own.
const KERNEL: &str = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)";

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow stacks trace.json.gz                          behind ncclDevKernel_Generic_1, in the whole trace
  ncclflow stacks trace.json.gz --kernel-name 'ncclDevKernel_%'    behind all of NCCL's kernels
  ncclflow stacks trace.json --function-name 'train.py(41): step' --index 3 --kernel-name 'ncclDevKernel_AllReduce%'
  ncclflow stacks trace.pb --start-ts 4502111772961473 --duration 1000000
  ncclflow stacks trace.json.gz --json | jq '.stacks[0].frames[]'
  ncclflow stacks trace.json.gz --folded | flamegraph.pl > stacks.svg
  ncclflow stacks trace.json.gz --pprof --output stacks.pb.gz; go tool pprof -top stacks.pb.gz

TRACE is of torch.profiler (with_stack=True gives Python's frames) or of any program that writes Chrome's JSON or Perfetto's protobuf; each
may be compressed by gzip. Processes and recordings are not read yet. Equal stacks are counted, the most frequent first; digits at the end of a
name and addresses of objects are dropped before, so that layers are one. A name with a % in it is a pattern, as of SQL's LIKE: % is any
text, _ any character, in either case.
docs/STACKS.md has the forms of output. Exit codes: 0 done, also where nothing was found, which is said; 1 not done; 2 wrong usage.")]
pub struct StacksArgs {
    /// Trace of a profiler: Kineto's or Chrome's JSON, or Perfetto's protobuf
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    /// Only kernels of this name
    #[arg(long, value_name = "NAME", default_value = KERNEL)]
    pub kernel_name: String,

    /// Most callers of a launch that are shown, from the innermost on
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub stack_depth: usize,

    /// Only what was launched during a call of this function; of several, --index says which, or you are asked
    #[arg(help_heading = WINDOW, long, value_name = "NAME")]
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
