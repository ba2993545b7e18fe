//! Probes of a session, the libraries that they are on, and the buffers behind them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::schema::CpuReport;
use nccl_library::{elf::BuildId, nccl::NcclVersion, symbols::SymbolSource};

/// Depth at which a session looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Level {
    /// Every call of NCCL's API; each costs one probe hit
    Api,
    /// Every operation that NCCL plans, on each channel, with algorithm, size and peers
    Flow,
    /// Also each message over the network: when it was ready, sent, received and consumed, and its size
    /// (sizes from NCCL 2.27 on)
    Steps,
}

impl Level {
    /// Returns the name by which the level is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Flow => "flow",
            Self::Steps => "steps",
        }
    }
}

/// Place of a probe in its function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbePlace {
    /// At the entry: one trap a hit.
    #[default]
    Entry,
    /// At the return: one trap more at the entry, to divert the return, unless a probe is there anyway.
    Return,
}

/// Place at which NCCL's operations are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum ProbeStrategy {
    /// One probe hit for each kernel launch: NCCL's plan for it is read (2.23 and later)
    Plan,
    /// Two probe hits for each operation and peer: this slows launches down
    ///
    /// The functions are `ncclProxySaveOp` and `SaveProxy`.
    PerCall,
}

/// Functions at which the calls of the API are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallSource {
    /// `ncclEnqueueCheck`, which all calls pass, with the communicator's identity.
    EnqueueCheck,
    /// The exported functions, by their arguments: the communicator's address is known, and nothing else of
    /// it. For libraries whose layouts are not known.
    ExportedFunctions,
}

/// A probe that this library does not allow.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MissingProbe {
    pub function: String,
    pub why: String,
    pub lost: String,
}

/// The states of a message that are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum StepDetail {
    /// What the waits follow from: ready, sent and done; arrived and consumed
    ///
    /// A send's buffer is ready, the network took it, it is done; a receive's data is there, the GPU has
    /// consumed it. When a message could begin follows from the others: the slot that it takes was free.
    #[default]
    Waits,
    /// Every state that NCCL tells, at more than half as many probe hits again
    ///
    /// Also: offered to the GPU, asked of the network, handed to the GPU.
    Transitions,
}

/// The two kinds of buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum BufferKind {
    /// BPF ring buffers: up to eight, which the processes share
    ///
    /// Linux 5.8 and later.
    #[default]
    Ring,
    /// Perf event array: a buffer per CPU
    Perf,
}

/// The two kinds of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum LinkKind {
    /// One kernel link for all probes that run the same program in the same process and library
    Multi,
    /// One performance event for each probe: on Linux 6.12 and later each takes 0.1 s to detach
    Perf,
}

/// A library whose file was changed while probes were on it. They were taken away at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangedLibrary {
    /// Index into `libraries`.
    pub library: usize,
    pub path: String,
    /// Time when the change was seen, by the records' clock.
    pub seen_ns: u64,
    /// The change that was found.
    pub what: String,
    /// The processes that had it mapped. They are not traced any more: what their memory has of the file is a
    /// mixture of both contents.
    pub pids: Vec<u32>,
    /// Time from which the probes could have been on other instructions, by the records' clock: the last look
    /// that found the file as it was resolved.
    pub unchanged_until_ns: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LibraryReport {
    pub path: String,
    pub deleted: bool,
    pub device: u64,
    pub inode: u64,
    pub build_id: Option<BuildId>,
    pub nccl_version: Option<NcclVersion>,
    pub cuda_version: Option<(u32, u32)>,
    pub symbols: SymbolSource,
    pub cached: bool,
    /// Probes of ops: whole plans at their launch, or call by call.
    pub probes: Option<ProbeStrategy>,
    /// Probes of the API's calls; `None` if calls are not recorded.
    pub calls: Option<CallSource>,
    pub missing_probes: Vec<MissingProbe>,
}

/// Buffers between the kernel and the files.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BufferReport {
    pub kind: BufferKind,
    /// Size of the kernel's buffers, all CPUs together.
    pub bytes: u64,
    /// Most bytes of records that wait to be written into the recording.
    pub queue_bytes: u64,
    /// Most bytes that waited at a time.
    pub queue_peak_bytes: u64,
}

/// A probe's account: `hits = delivered + lost + dropped + disarmed`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeReport {
    pub function: String,
    pub symbol: String,
    pub at: ProbePlace,
    /// Content of a part, if this is no probe but a part of those that walk lists.
    pub part: Option<Cow<'static, str>>,
    /// Process that it is limited to; parts serve all processes that use the library.
    pub pid: Option<u32>,
    /// Index into `libraries`.
    pub library: usize,
    pub hits: u64,
    /// Records that came into the recording's thread.
    pub delivered: u64,
    /// Lost in the kernel, as its buffer was full.
    pub lost: u64,
    /// Records taken out of the kernel, and dropped as writing the recording had not kept up and the queue
    /// was full.
    pub dropped: u64,
    /// Hits before the session opened and after it closed.
    pub disarmed: u64,
    /// Records delivered although memory of the target could not be read.
    pub faulted: u64,
    /// CPUs on which something was lost or dropped.
    pub cpus: Vec<CpuReport>,
}

/// Times until hits were recorded, in milliseconds since the start of the program.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AttachReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<LinkKind>,
    /// Processes and libraries are found, and the libraries' symbols and layouts known.
    pub resolved_ms: f64,
    /// The eBPF object is in the kernel, with the programs that are likely to be needed.
    pub loaded_ms: f64,
    /// The first probe is in the kernel; `attached_ms`: all are.
    pub first_probe_ms: f64,
    pub attached_ms: f64,
    /// The session is open: hits are recorded from here on.
    pub armed_ms: f64,
    /// Time of `armed_ms` by the records' clock.
    pub armed_monotonic_ns: Option<u64>,
}
