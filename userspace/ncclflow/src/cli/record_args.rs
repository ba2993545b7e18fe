//! The arguments of `ncclflow record`.

use inspect::{gpu::GpuSamples, identity::WhoOptions, layout_cache::default_folder};
use recording::sinks::LiveStatistics;
use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use trace::{
    kernel::loader::{best_buffer, best_links, prepared},
    record::{FilesOptions, ProbeChoice, RecordOptions, StackChoice, StackKind, Targets},
};

use clap::Args;

use super::{
    quantities::{Pids, each, mebibytes, seconds},
    record_groups::{Auto, DiskArgs, SamplingArgs, WhoArgs, WindowArgs, auto_or, metrics_address},
    shared_args::{DebugArgs, FilterArgs, LIBRARY},
};
use flow::{
    model::Sampling,
    session::{BufferKind, Level, LinkKind, ProbeStrategy, StepDetail},
};
use ncclflow_common::{MAX_STACK_FRAMES, STACK_FRAMES};

/// Headings of `--help`.
const STEPS: &str = "With --level steps";
const TRACING: &str = "Tracing";

/// Meaning of `auto`, for `--help`.
const AUTO_PROBES: &str = "At each kernel launch, where the library allows it; otherwise at each operation";
const AUTO_BUFFER: &str = "The ring buffer where the kernel has it, or else the perf event array";
const AUTO_LINKS: &str = "One kernel link for many probes, where the kernel has it (Linux 6.6 and later); \
                          otherwise one for each";

/// Parses a number of frames for the kernel side.
pub(super) fn stack_depth() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(1..=i64::try_from(MAX_STACK_FRAMES).unwrap_or(i64::MAX))
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("whom").required(true).args(["pids", "all"]))]
#[command(after_help = "\
Examples:
  ncclflow record -p 4242 -d 5            five seconds of one process
  ncclflow record -p $(pgrep -d, -f train.py) -o /tmp/flows
                                          a job, until Ctrl-C
  ncclflow record -p 4242 --level api --stacks
                                          calls, and the code behind them

`ncclflow check`, `report`, `summary` and `export` read DIR. Processes are not stopped, restarted or \
written to. Needs root, or some capabilities: `ncclflow doctor` tells.")]
#[command(after_long_help = "\
More examples:
  ncclflow record -p $(pgrep -d, -f train.py) -d 10 --json | jq .loss
  ncclflow record --all --user ann --comm train.py -d 60
  ncclflow record --all --window-flag /run/flow
                                          while /run/flow exists; `touch` and
                                          `rm` it as often as you like
  ncclflow record --all --window-flag /run/flow --window-iterations 3
                                          three training iterations after each
                                          `touch`, found from what recurs
  ncclflow record --all --rotate 60 --max-size 20G --compress -o /var/tmp/flows
                                          the last minutes, as many as 20 GiB
                                          hold; for months
  ncclflow record -p 4242 --level api     every call of NCCL's API, at one
                                          probe hit each
  ncclflow record -p 4242 --level api --returns -d 5
                                          and its result, and how long it took
  ncclflow record -p 4242 --api           ops and calls, each with the number
                                          of the other
  ncclflow record -p 4242 --api --returns
                                          and how each call returned
  ncclflow record -p 4242 --level api --stacks --stack-depth 40
  ncclflow record -p 4242 --level api --stacks=both
                                          from Python through C++ to NCCL
  ncclflow record -p 4242 --rank-map ranks.txt --job llm-7b
                                          the job's ranks, where a launcher has
                                          not given them to the processes
  ncclflow record -p 4242 --metrics 9690  and metrics at
                                          http://127.0.0.1:9690/metrics

DIR holds session.json, recording/ (all records, compressed) and, made of it per communicator, \
<commHash>/proxy_flow_rank<r>.jsonl (a line per op and channel), flow_steps_rank<r>.jsonl (a line per \
message) and flow_rank<r>.json (both, grouped by op). With --level api there is api_rank<r>.jsonl (a line \
per call) instead; with --api, that too. With --stacks, stacks.jsonl has the call stacks that lines name. \
gpus.jsonl has, once a second, what the GPUs' driver says of each GPU of the host: how busy it is, bytes \
over NVLink and PCIe, clocks, power, errors (Xids).

--level api also records the calls of a libnccl whose layouts are not known (stripped and of no known \
build, another vendor's): by the arguments of its exported functions, into \
processes/api_<host>_<pid>.jsonl, with the communicator's address and without commHash and rank.

It needs root, or CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH and, on some kernels without \
uprobe_multi, CAP_SYS_ADMIN.

Each option can be given by a variable: NCCLFLOW_LEVEL=api is --level api.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct RecordArgs {
    /// Processes to trace
    ///
    /// Other processes that use the same library are left alone.
    #[arg(short, long = "pid", value_name = "PID", num_args = 1..)]
    pub pids: Vec<Pids>,

    /// Every process of this host that uses NCCL, also later ones
    ///
    /// Also those in containers.
    #[arg(long, conflicts_with_all = ["pids", "library"])]
    pub all: bool,

    #[command(flatten)]
    pub filter: FilterArgs,

    /// New or empty folder to write to [default: ncclflow-<unix time>]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Time to record: 30, 500ms, 5m [default: until Ctrl-C]
    ///
    /// Without it, the recording ends with Ctrl-C, or when all processes of -p have exited.
    #[arg(short, long, value_name = "TIME", value_parser = seconds)]
    pub duration: Option<Duration>,

    /// Calls; operations; or operations and messages
    #[arg(long, value_enum, default_value_t = Level::Flow)]
    pub level: Level,

    /// With --level steps: what of each message is measured
    #[arg(help_heading = STEPS, hide_long_help = true)]
    #[arg(long, value_enum, default_value_t = StepDetail::Waits)]
    pub step_detail: StepDetail,

    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// Where NCCL's operations are read
    #[arg(help_heading = TRACING, hide_long_help = true)]
    #[arg(long, default_value = "auto", value_parser = auto_or::<ProbeStrategy>(AUTO_PROBES))]
    pub probes: Auto<ProbeStrategy>,

    /// With --level flow or steps: also every call of NCCL's API
    ///
    /// Each is joined with its op, and costs one more probe hit.
    #[arg(long)]
    pub api: bool,

    /// With --level api, or --api: also each call's result and duration
    ///
    /// Two more probe hits a call.
    #[arg(long, hide_short_help = true)]
    pub returns: bool,

    /// Also call stacks: python [default], native, or both
    ///
    /// The stack behind each call of the API, or, without --api, behind each launch: of Python, of C and C++
    /// (native), or both in one.
    #[arg(long, value_name = "KIND", num_args = 0..=1, require_equals = true, default_missing_value = "python")]
    #[arg(value_parser = clap::builder::ValueParser::new(str::parse::<StackKind>))]
    pub stacks: Option<StackKind>,

    /// With --stacks: Python frames of a stack at most, the innermost ones
    #[arg(help_heading = TRACING, hide_long_help = true)]
    #[arg(long, value_name = "N", requires = "stacks", default_value_t = STACK_FRAMES, value_parser = stack_depth())]
    pub stack_depth: u8,

    /// Do not ask the GPUs' driver once a second what they do (gpus.jsonl)
    #[arg(help_heading = TRACING, hide_long_help = true)]
    #[arg(long)]
    pub no_gpus: bool,

    /// Path of the NCCL library as the process maps it, if its name does not contain libnccl
    #[arg(help_heading = LIBRARY, hide_long_help = true)]
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,

    #[command(flatten)]
    pub debug: DebugArgs,

    /// Kernel-to-user transport
    #[arg(help_heading = TRACING, hide_long_help = true)]
    #[arg(long, default_value = "auto", value_parser = auto_or::<BufferKind>(AUTO_BUFFER))]
    pub buffer: Auto<BufferKind>,

    /// The kernel's buffers, all together (a number alone counts MiB)
    ///
    /// The part of each process (perf: of each CPU) is rounded up to a power of two.
    #[arg(help_heading = TRACING, hide_long_help = true)]
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = mebibytes(1, 1024))]
    pub buffer_size: u32,

    /// How probes are attached
    #[arg(help_heading = TRACING, hide_long_help = true)]
    #[arg(long, default_value = "auto", value_parser = auto_or::<LinkKind>(AUTO_LINKS))]
    pub links: Auto<LinkKind>,

    /// Records that may wait to be written into the recording (a number alone counts MiB)
    ///
    /// When that is full, records are dropped and counted.
    #[arg(help_heading = TRACING, hide_long_help = true)]
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = mebibytes(1, 4096))]
    pub queue_size: u32,

    /// Folder of layouts that earlier recordings resolved [default: /var/cache/ncclflow/layouts for root]
    #[arg(help_heading = LIBRARY, hide_long_help = true)]
    #[arg(long, value_name = "DIR", conflicts_with = "no_cache")]
    pub cache_dir: Option<PathBuf>,

    /// Resolve the library's layouts anew, and do not keep them
    #[arg(help_heading = LIBRARY, hide_long_help = true)]
    #[arg(long)]
    pub no_cache: bool,

    /// When no probe is hit for TIME, write a dump into DIR
    ///
    /// As `ncclflow dump --json --stacks` prints it: once, until a probe is hit again.
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub on_hang: Option<Duration>,

    #[command(flatten)]
    pub window: WindowArgs,

    #[command(flatten)]
    pub disk: DiskArgs,

    #[command(flatten)]
    pub who: WhoArgs,

    /// Serve metrics for Prometheus: 9690, or 10.0.0.5:9690
    ///
    /// At http://ADDR/metrics while it records (docs/METRICS.md). A port alone is of this host alone.
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "ADDR", value_parser = metrics_address)]
    pub metrics: Option<SocketAddr>,

    /// With --metrics: write no files
    ///
    /// As on a host that is watched for months.
    #[arg(hide_short_help = true)]
    #[arg(long, requires = "metrics", conflicts_with_all = ["output", "window_flag", "rotate", "max_size", "compress"])]
    pub no_files: bool,

    /// Print session.json to standard output at the end
    #[arg(long)]
    pub json: bool,

    /// Exit with 3 if anything was lost, or a process of -p could not be traced
    #[arg(long, hide_short_help = true)]
    pub strict: bool,

    /// Print more: operations on each channel, every process
    #[arg(short, long, hide_short_help = true, conflicts_with = "quiet")]
    pub verbose: bool,

    /// Print nothing but errors
    #[arg(short, long, hide_short_help = true)]
    pub quiet: bool,

    /// End when the process that started this one does
    #[arg(long, hide = true)]
    pub ends_with_parent: bool,

    /// Print the eBPF side's development log at the end
    #[arg(long, hide = true)]
    pub ebpf_log: bool,
}

impl RecordArgs {
    pub(super) fn options(
        &self,
        started: Instant,
        output: Option<PathBuf>,
        statistics: Option<LiveStatistics>,
        gpus: Option<GpuSamples>,
    ) -> RecordOptions {
        let targets = Targets::new(self.all, &each(&self.pids), &self.filter.filter());
        let buffer = self.buffer.0.unwrap_or_else(best_buffer);
        let links = prepared(self.links.0.unwrap_or_else(best_links));
        let mut options = RecordOptions {
            choice: ProbeChoice {
                level: self.level,
                strategy: self.probes.0,
                detail: self.step_detail,
                api: self.api,
                returns: self.returns,
                stacks: self.stacks.map(|kind| StackChoice { kind, depth: self.stack_depth }),
            },
            sampling: self.sampling.sampling(),
            output,
            files: FilesOptions { when: self.disk.files, limit_bytes: Some(self.disk.files_limit) },
            statistics,
            gpus,
            duration: self.duration,
            queue_bytes: usize::try_from(self.queue_size).unwrap_or(usize::MAX >> 20) << 20,
            library: self.library.clone(),
            debug_files: self.debug.apply(),
            cache: if self.no_cache { None } else { self.cache_dir.clone().or_else(default_folder) },
            windows: self.window.options(),
            on_hang: self.on_hang,
            max_size: self.disk.max_size,
            max_age: self.disk.max_age,
            compress: self.disk.compress,
            who: Arc::new(WhoOptions { rank_map: self.who.rank_map.clone(), job: self.who.job.clone() }),
            development_log: self.ebpf_log,
            ..RecordOptions::new(started, targets, buffer, links)
        };
        options.buffer.bytes = self.buffer_size << 20;
        options
    }

    /// Returns what is wrong with options that make sense with some values of others only.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        if self.level != Level::Steps && self.sampling.sampling() != Sampling::default() {
            return Some("--steps-every, --channels and --min-bytes need --level steps");
        }
        match self.level {
            Level::Api if self.api => {
                Some("--api is for --level flow and steps; --level api records the calls alone")
            }
            Level::Flow | Level::Steps if self.returns && !self.api => {
                Some("--returns needs --level api, or --api: without, the other levels see no call")
            }
            _ => None,
        }
    }
}
