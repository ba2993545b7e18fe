//! The command line. `cargo xtask bed` passes most of it through. Children get it unchanged, with `--child`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};

use crate::option_values::{parse_absent, parse_ms, parse_pair, parse_size_of, parse_stall, parse_variable};
use crate::runtime::device::DEVICES;
use crate::{common_calls, nodes::Through};

/// Emulated GPUs of a host.
pub(crate) const GPUS: u32 = DEVICES.cast_unsigned();

/// Run the real NCCL on a machine without a GPU and check every element of every result.
#[derive(Debug, Clone, Parser)]
#[command(name = "ncclflow-bed", version)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Options {
    /// The libnccl.so.2 to run, as NVIDIA ships it
    #[arg(long, value_name = "PATH")]
    pub(crate) library: PathBuf,

    /// Symbols and debugging information of the library, if it has none itself: the same build, not stripped
    #[arg(long, value_name = "PATH")]
    pub(crate) symbols: Option<PathBuf>,

    /// Another library that each process loads first, as a program has one NCCL of torch's and one of another's
    #[arg(long, value_name = "PATH")]
    pub(crate) also_load: Option<PathBuf>,

    /// In place of --ops: captures CUDA graphs and launches them in many ways. Each rank captures one, makes
    /// FILE.ready.R, and goes on when FILE is there; what it has launched is in FILE.R
    #[arg(long, value_name = "FILE", requires = "cuda")]
    pub(crate) graphs: Option<PathBuf>,

    /// The double of CUDA's driver, for --graphs
    #[arg(long, value_name = "PATH")]
    pub(crate) cuda: Option<PathBuf>,

    /// Notes what NCCL allocates and frees, a line each, in PATH.PID of each process
    #[arg(long, value_name = "PATH")]
    pub(crate) allocations: Option<PathBuf>,

    /// The NVML double; by default libnvidia_ml.so beside this program
    #[arg(long, value_name = "PATH")]
    pub(crate) nvml: Option<PathBuf>,

    /// Ranks of each communicator
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) ranks: u32,

    /// All ranks as threads of one process, or a process each
    #[arg(long, value_enum, default_value_t = Mode::Threads)]
    pub(crate) mode: Mode,

    /// Nodes with one NIC, so that NCCL sends this through other ranks' proxies (PXN); processes only
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) nodes: Option<Through>,

    /// What to run in each iteration, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_value = "allreduce")]
    pub(crate) ops: Vec<OpKind>,

    /// Payload: of the whole vector for allreduce, broadcast and reduce, of one rank's part for the others
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    pub(crate) bytes: usize,

    /// Type of the elements
    #[arg(long, value_enum, default_value_t = DataType::Float32)]
    pub(crate) dtype: DataType,

    /// How often to run the list of operations
    #[arg(long, default_value_t = 1)]
    pub(crate) iters: u32,

    /// Algorithm (NCCL_ALGO)
    #[arg(long, value_enum, default_value_t = Algo::Ring)]
    pub(crate) algo: Algo,

    /// Protocol (NCCL_PROTO)
    #[arg(long, value_enum, default_value_t = Proto::Simple)]
    pub(crate) proto: Proto,

    /// Number of channels (NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS); NCCL's choice without it
    #[arg(long, value_name = "K")]
    pub(crate) channels: Option<u32>,

    /// Communicators per process over the same ranks; operations take turns on them
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) comms: u32,

    /// Operations per ncclGroupStart/End
    #[arg(long, value_name = "G", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) group: u32,

    /// The GPU of each rank computes so long before the operations of each iteration, in the same stream
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = parse_ms)]
    pub(crate) compute_ms: f64,

    /// A pipeline of so many stages of neighbouring ranks: sendstage goes from each to the next, returnstage
    /// back; all other operations are among the ranks of one; processes only
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(2..=16))]
    pub(crate) stages: Option<u32>,

    /// Slow ranks, a line each, read before each iteration: `RANK gpu PERCENT`, `RANK host MS [EVERY]`
    #[arg(long, value_name = "FILE")]
    pub(crate) faults: Option<PathBuf>,

    /// When the GPUs begin each iteration (CLOCK_MONOTONIC, ns), a line each in FILE.rank<R>; with --compute-ms
    #[arg(long, value_name = "FILE")]
    pub(crate) iteration_log: Option<PathBuf>,

    /// Pause after each group
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub(crate) interval_ms: u64,

    /// Wait until this file exists before the first operation
    #[arg(long, value_name = "FILE")]
    pub(crate) wait_file: Option<PathBuf>,

    /// After the operations wait until this file exists before the communicators are destroyed
    #[arg(long, value_name = "FILE")]
    pub(crate) hold_file: Option<PathBuf>,

    /// RANK=FILE: the kernels of this rank make no progress while the file exists
    #[arg(long, value_name = "RANK=FILE", value_parser = parse_stall)]
    pub(crate) stall: Vec<(u32, PathBuf)>,

    /// RANK=FILE: while the file exists, the GPU of this rank runs another kernel first, which uses its memory
    #[arg(long, value_name = "RANK=FILE", value_parser = parse_stall)]
    pub(crate) compute: Vec<(u32, PathBuf)>,

    /// RANK=FILE: while the file exists, the GPU of this rank runs another kernel first: one warp, without memory
    #[arg(long, value_name = "RANK=FILE", value_parser = parse_stall)]
    pub(crate) spin: Vec<(u32, PathBuf)>,

    /// RANK=FILE: while the file exists, the kernels of this rank do not begin, as behind an event
    #[arg(long, value_name = "RANK=FILE", value_parser = parse_stall)]
    pub(crate) hold: Vec<(u32, PathBuf)>,

    /// What the emulated GPUs do, for the NVML double (NVML_DOUBLE_STATES)
    #[arg(long, value_name = "FILE")]
    pub(crate) gpu_states: Option<PathBuf>,

    /// RANK@N: before its operation N the first thread of this rank computes for the rest of the run
    #[arg(long, value_name = "RANK@N", value_parser = parse_absent)]
    pub(crate) busy: Option<(u32, u64)>,

    /// RANK@N: before its operation N the first thread of this rank ends, and another one lives on
    #[arg(long, value_name = "RANK@N", value_parser = parse_absent)]
    pub(crate) ends_thread: Option<(u32, u64)>,

    /// RANK@N: before its operation N the first thread of this rank sleeps in the kernel so that no signal wakes it
    #[arg(long, value_name = "RANK@N", value_parser = parse_absent)]
    pub(crate) unwakeable: Option<(u32, u64)>,

    /// RANK@N: this rank calls its operation N in a group, and does not end the group
    #[arg(long, value_name = "RANK@N", value_parser = parse_absent)]
    pub(crate) open_group: Option<(u32, u64)>,

    /// RANK@N: before its operation N this rank writes a file for the rest of the run
    #[arg(long, value_name = "RANK@N", value_parser = parse_absent)]
    pub(crate) checkpoint: Option<(u32, u64)>,

    /// Before some operations a rank, or all, computes, evaluates or writes a checkpoint for up to so long, and goes on
    #[arg(long, value_name = "SECS")]
    pub(crate) phases: Option<f64>,

    /// RANK[@N]: this rank joins the first N operations (none) and then no more
    #[arg(long, value_name = "RANK[@N]", value_parser = parse_absent)]
    pub(crate) absent: Option<(u32, u64)>,

    /// RANK[@N]: this rank does not come to the set-up of communicator N (the first is 0), and sleeps. The first line comes
    /// before the communicators are up, without their hashes
    #[arg(long, value_name = "RANK[@N]", value_parser = parse_absent)]
    pub(crate) stays_out: Option<(u32, u64)>,

    /// Each rank makes a unique id of its own, so that the communicators are never up
    #[arg(long)]
    pub(crate) own_ids: bool,

    /// RANK=OTHER: this rank calls itself by the number of another one
    #[arg(long, value_name = "RANK=OTHER", value_parser = parse_pair)]
    pub(crate) claims: Option<(u32, u32)>,

    /// RANK=N: this rank is told that there are N ranks
    #[arg(long, value_name = "RANK=N", value_parser = parse_pair)]
    pub(crate) told_size: Option<(u32, u32)>,

    /// RANK,…=CALL:COMM@N: before their operation N these ranks make a call that all ranks of communicator COMM must make
    /// (split, split-out without a colour, finalize, destroy), and then sleep
    #[arg(long, value_name = "RANKS=CALL:COMM@N", value_parser = common_calls::parse)]
    pub(crate) makes: Vec<common_calls::CommonCall>,

    /// RANK=N: this rank may open N files more than it has when it comes to the set-up
    #[arg(long, value_name = "RANK=N", value_parser = parse_pair)]
    pub(crate) few_files: Option<(u32, u32)>,

    /// RANK@N: before its operation N this rank writes into a pipe that nobody reads
    #[arg(long, value_name = "RANK@N", value_parser = parse_absent)]
    pub(crate) full_pipe: Option<(u32, u64)>,

    /// RANK@N: before its operation N this rank looks ten times a second for a lock file to go, which stays
    #[arg(long, value_name = "RANK@N", value_parser = parse_absent)]
    pub(crate) polls: Option<(u32, u64)>,

    /// This rank runs its operations in a thread of its own, for which its first thread waits
    #[arg(long, value_name = "RANK")]
    pub(crate) worker: Option<u32>,

    /// This rank has a thread that does nothing with NCCL, and spins
    #[arg(long, value_name = "RANK")]
    pub(crate) spinner: Option<u32>,

    /// RANK@N: before its operation N this rank aborts its communicators, and sleeps
    #[arg(long, value_name = "RANK@N", value_parser = parse_absent)]
    pub(crate) leaves: Option<(u32, u64)>,

    /// RANK=BYTES@N: operation N has another size on this rank; results are not checked then
    #[arg(long, value_name = "RANK=BYTES@N", value_parser = parse_size_of)]
    pub(crate) size_of: Option<(u32, usize, u64)>,

    /// RANK@N: this rank runs operations N and N+1 in the other order; results are not checked then
    #[arg(long, value_name = "RANK@N", value_parser = parse_absent)]
    pub(crate) swap: Option<(u32, u64)>,

    /// From its launch N on, the pages with a launch's arguments are not in a process's memory when the launch returns
    #[arg(long, value_name = "N")]
    pub(crate) hide_arguments: Option<u64>,

    /// Memory that each process fills besides, as a training process does
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    pub(crate) ballast: usize,

    /// Memory that each process maps besides, and has read some of: it takes address space, and no memory
    #[arg(long, value_name = "GIB", default_value_t = 0)]
    pub(crate) mapped: usize,

    /// Fork a child that does nothing once the communicators are up, as data loaders do: with processes each rank, whose
    /// children outlive it
    #[arg(long)]
    pub(crate) fork: bool,

    /// Wait for each group's results before the next one is issued
    #[arg(long)]
    pub(crate) sync: bool,

    /// Wait for the results of each iteration before the next one is issued
    #[arg(long)]
    pub(crate) sync_iterations: bool,

    /// Each rank in the network namespace PREFIX<R>; processes only
    #[arg(long, value_name = "PREFIX")]
    pub(crate) namespaces: Option<String>,

    /// When the process of a rank dies, or NCCL answers with an error, the other ranks stay until their time
    /// is up
    #[arg(long)]
    pub(crate) survive: bool,

    /// NCCL_DEBUG=INFO into this file (a pattern of NCCL_DEBUG_FILE: %h host, %p process)
    #[arg(long, value_name = "FILE")]
    pub(crate) debug_file: Option<PathBuf>,

    /// What the emulated kernels moved, as JSON lines in FILE.rank<R>
    #[arg(long, value_name = "FILE")]
    pub(crate) transfer_log: Option<PathBuf>,

    /// Every call of NCCL's API with its result and its time, as JSON lines in FILE.<pid>
    #[arg(long, value_name = "FILE")]
    pub(crate) call_log: Option<PathBuf>,

    /// Each rank begins with calls that NCCL must refuse: a wrong data type, no communicator
    #[arg(long)]
    pub(crate) invalid_calls: bool,

    /// The process of each rank gets RANK, WORLD_SIZE and LOCAL_RANK, as from torchrun; processes only
    #[arg(long)]
    pub(crate) rank_variables: bool,

    /// Name of the communicators (NCCL 2.27 and later)
    #[arg(long, value_name = "NAME")]
    pub(crate) comm_name: Option<String>,

    /// KEY=VALUE in NCCL's environment, over the bed's own settings
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_variable)]
    pub(crate) env: Vec<(String, String)>,

    /// Bound of each phase: init, operations, tear-down
    #[arg(long, value_name = "SECS", default_value_t = 300)]
    pub(crate) timeout: u64,

    /// Bound of each wait for a file
    #[arg(long, value_name = "SECS", default_value_t = 600)]
    pub(crate) file_timeout: u64,

    /// Kernels complete at once and move nothing; results are not checked
    #[arg(long)]
    pub(crate) no_emulate: bool,

    /// This process is one rank of a parent
    #[arg(long, value_name = "RANK", hide = true)]
    pub(crate) child: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    Threads,
    Processes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum OpKind {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    /// ncclBcast, in place
    Bcast,
    Reduce,
    /// To the next rank, from the previous one
    SendRecv,
    /// From the first rank of each node of three to the last of the next; the others do nothing
    SendAcross,
    /// From each stage of `--stages` to the next, rank by rank; the last one sends nothing
    SendStage,
    /// From each stage of `--stages` to the one before
    ReturnStage,
    /// ncclAlltoAll where the library has it, sends and receives in a group where not
    AllToAll,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataType {
    Uint8,
    Int32,
    Int64,
    Float32,
    Float64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Algo {
    Ring,
    /// All-reduces; the others on rings
    Tree,
    /// All-gathers and reduce-scatters; the others on rings (2.24 and later)
    Pat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum Proto {
    Simple,
    Ll,
    Ll128,
}

impl Options {
    /// What clap cannot check by itself.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.bytes == 0 || !self.bytes.is_multiple_of(self.dtype.size()) {
            bail!("--bytes must be a positive multiple of the element size, {}", self.dtype.size());
        }
        if self.algo == Algo::Pat && self.proto != Proto::Simple {
            bail!("--algo pat: NCCL has PAT with the protocol SIMPLE only");
        }
        if self.ranks > GPUS && self.mode != Mode::Processes {
            bail!(
                "--ranks: NCCL tells hosts apart by process, and one has {GPUS} GPUs; add --mode processes"
            );
        }
        if self.nodes.is_some() && self.mode != Mode::Processes {
            bail!("--nodes: NCCL tells nodes apart by process; add --mode processes");
        }
        if (self.stages.is_some() || self.namespaces.is_some()) && self.mode != Mode::Processes {
            bail!("--stages, --namespaces: add --mode processes");
        }
        if self.stages.is_some_and(|stages| !self.ranks.is_multiple_of(stages) || self.ranks / stages < 2) {
            bail!("--stages: each must have as many ranks, two or more");
        }
        let is_of_stage = |op: &OpKind| matches!(op, OpKind::SendStage | OpKind::ReturnStage);
        if self.ops.iter().any(is_of_stage) && self.stages.is_none() {
            bail!("--ops sendstage, returnstage: add --stages");
        }
        if self.stages.is_some() && self.comms > 1 {
            bail!("--stages: the communicators are those of the stages, and one of all ranks");
        }
        if self.phases.is_some() && self.gpu_states.is_none() {
            bail!("--phases: an evaluation can be seen on the GPU only; add --gpu-states FILE");
        }
        let of_ranks = [
            ("absent", self.absent.map(|(rank, _)| rank)),
            ("stays-out", self.stays_out.map(|(rank, _)| rank)),
            ("swap", self.swap.map(|(rank, _)| rank)),
            ("busy", self.busy.map(|(rank, _)| rank)),
            ("checkpoint", self.checkpoint.map(|(rank, _)| rank)),
            ("size-of", self.size_of.map(|(rank, ..)| rank)),
            ("claims", self.claims.map(|(rank, _)| rank)),
            ("told-size", self.told_size.map(|(rank, _)| rank)),
            ("makes", self.makes.iter().flat_map(|call| &call.ranks).max().copied()),
            ("few-files", self.few_files.map(|(rank, _)| rank)),
            ("leaves", self.leaves.map(|(rank, _)| rank)),
        ];
        for (option, rank) in of_ranks {
            if let Some(rank) = rank.filter(|rank| *rank >= self.ranks) {
                bail!("--{option} {rank}: there are only {} ranks", self.ranks);
            }
        }
        if let Some((_, bytes, _)) = self.size_of
            && (bytes == 0 || !bytes.is_multiple_of(self.dtype.size()))
        {
            bail!(
                "--size-of: the bytes must be a positive multiple of the element size, {}",
                self.dtype.size()
            );
        }
        let by_file =
            [("stall", &self.stall), ("compute", &self.compute), ("spin", &self.spin), ("hold", &self.hold)];
        for (option, files) in by_file {
            if let Some((rank, _)) = files.iter().find(|(rank, _)| *rank >= self.ranks) {
                bail!("--{option} {rank}: there are only {} ranks", self.ranks);
            }
        }
        Ok(())
    }

    /// The device that `rank` runs on. As NCCL takes one rank a device, further ranks are on other hosts for it.
    pub(crate) fn device_of(&self, rank: u32) -> u32 {
        rank % self.nodes.map_or(GPUS, Through::size)
    }

    /// Number of ranks whose collectives are together: those of a stage, or all.
    pub(crate) fn ranks_of_stage(&self) -> u32 {
        self.ranks / self.stages.unwrap_or(1)
    }

    /// Whether the communicators are never up.
    pub(crate) fn never_connects(&self) -> bool {
        self.stays_out.is_some()
            || self.own_ids
            || self.claims.is_some()
            || self.told_size.is_some()
            || self.few_files.is_some()
    }

    /// Number by which this rank calls itself, and the number of ranks that it is told.
    pub(crate) fn called(&self, rank: u32) -> (u32, u32) {
        let other = |of: Option<(u32, u32)>| of.filter(|(one, _)| *one == rank).map(|(_, other)| other);
        (other(self.claims).unwrap_or(rank), other(self.told_size).unwrap_or(self.ranks))
    }

    /// Where the library's symbols and debugging information are.
    pub(crate) fn symbols(&self) -> &Path {
        self.symbols.as_deref().unwrap_or(&self.library)
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Whether all ranks do the same, so that results can be checked.
    pub(crate) fn is_consistent(&self) -> bool {
        self.size_of.is_none() && self.swap.is_none()
    }

    /// Payload of operation `op` on `rank`.
    pub(crate) fn bytes_of(&self, rank: u32, op: u64) -> usize {
        match self.size_of {
            Some((other, bytes, at)) if (other, at) == (rank, op) => bytes,
            _ => self.bytes,
        }
    }

    /// The operation that `rank` runs as its `index`th.
    pub(crate) fn op_at(&self, rank: u32, index: u64) -> u64 {
        match self.swap {
            Some((other, at)) if other == rank && index == at => at + 1,
            Some((other, at)) if other == rank && index == at + 1 => at,
            _ => index,
        }
    }

    pub(crate) fn file_timeout(&self) -> Duration {
        Duration::from_secs(self.file_timeout)
    }
}

impl DataType {
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Uint8 => 1,
            Self::Int32 | Self::Float32 => 4,
            Self::Int64 | Self::Float64 => 8,
        }
    }
}
