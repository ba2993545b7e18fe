//! What a dump says, as data: the schema of `--json` (docs/DUMP.md), and what `--merge` reads back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::verdict::Verdict;
use crate::{memory::ScanReport, threads::Thread};
use nccl_library::symbols::{LayoutSource, SymbolSource};

/// Version of the schema. Fields may be added within one version; none changes its meaning.
pub const SCHEMA: u32 = 1;

/// A whole dump, of one host or of several.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DumpReport {
    pub schema: u32,
    pub hosts: Vec<String>,
    /// Unix time of the last reading, in seconds.
    pub unix_time: u64,
    pub processes: Vec<ProcessReport>,
    pub communicators: Vec<CommunicatorReport>,
}

/// A process that was read, or that could not be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessReport {
    pub host: String,
    /// In the PID namespace of the dump.
    pub pid: u32,
    pub name: String,
    pub state: ProcessState,
    pub libraries: Vec<LibraryReport>,
    pub scan: Option<ScanReport>,
    /// Communicators found in it.
    pub communicators: usize,
    /// Seconds since the process was started, at the last reading.
    #[serde(default)]
    pub age_seconds: Option<f64>,
    /// Threads inside NCCL, and with `--stacks` the first thread.
    #[serde(default)]
    pub threads: Vec<Thread>,
    /// Its communicators are copies that it was forked with, from this process that was read too; they are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<u32>,
    /// Why it was not read, or not to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What the kernel's scheduler says of a process: `State:` in /proc/PID/status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessState {
    /// It runs or sleeps, as processes do.
    Running,
    /// Stopped by a signal or by a debugger.
    Stopped,
    Exited,
    #[default]
    Unknown,
}

/// An NCCL library of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LibraryReport {
    pub path: String,
    pub version: Option<String>,
    pub build_id: Option<String>,
    /// How good its symbols are, and where its struct layouts are from.
    #[serde(default)]
    pub symbols: Option<SymbolSource>,
    #[serde(default)]
    pub layouts_from: Option<LayoutSource>,
    /// Why it tells nothing of communicators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
}

/// A communicator over all processes that were read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommunicatorReport {
    pub comm_hash: String,
    pub name: Option<String>,
    pub n_ranks: u32,
    pub ranks: Vec<RankReport>,
    pub verdict: Verdict,
}

/// One rank of a communicator, as its own process has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankReport {
    pub comm_hash: String,
    pub comm_name: Option<String>,
    pub n_ranks: u32,
    pub rank: u32,
    pub host: String,
    pub pid: u32,
    pub process_state: ProcessState,
    pub nccl_version: Option<String>,
    /// Of the `ncclComm` in the process.
    pub address: u64,
    pub node: u32,
    pub n_nodes: u32,
    pub local_rank: u32,
    pub cuda_dev: u32,
    pub nvml_dev: Option<u32>,
    pub n_channels: u32,
    pub counters: Counters,
    pub status: CommStatus,
    pub channels: Vec<ChannelReport>,
    pub proxy: ProxyReport,
    /// Network connections with the neighbours in rings and trees.
    #[serde(default)]
    pub connections: Vec<ConnectionReport>,
    /// Channels on which a kernel was launched that is not through with its work, by the counters that the GPU writes for the
    /// host. NCCL has them up to 2.25, and only for work that goes through its FIFO; null otherwise.
    #[serde(default)]
    pub kernel_channels: Option<Vec<u32>>,
    /// Another communicator of the process counts its ops together with this one, so that the numbers of ops can differ
    /// from rank to rank.
    #[serde(default)]
    pub shares_resources: bool,
    pub motion: Motion,
    /// What limits the above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// How much a rank has done, by NCCL's own counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// Collectives launched, by function; those replayed from CUDA graphs are not counted. NCCL counts always only from
    /// 2.26 on, so empty before.
    pub seq_number: BTreeMap<String, u64>,
    /// Collectives launched: of this communicator (2.24 and later; from 2.27 on only of plans that use the proxy), or of all that share
    /// its resources.
    pub coll_op_count: Option<u64>,
    /// [`Self::coll_op_count`] counts for several communicators.
    pub coll_op_count_is_shared: bool,
    /// Point-to-point batches launched, over all channels.
    pub p2p_op_count: Option<u64>,
    /// `ncclComm.opCount`: launches that woke the proxy (2.27 and later), all launches before.
    pub op_count: Option<u64>,
}

impl Counters {
    /// Collectives launched on this communicator, by the best counter there is; equal on all ranks when nobody lags.
    pub fn launched(&self) -> Option<u64> {
        if self.seq_number.is_empty() {
            self.coll_op_count.filter(|_| !self.coll_op_count_is_shared)
        } else {
            Some(self.seq_number.values().sum())
        }
    }
}

impl RankReport {
    /// The result, other than success, that NCCL keeps of the communicator or of its proxy.
    pub fn failure(&self) -> Option<&str> {
        let results = [&self.status.async_result, &self.status.proxy_result];
        let mut results = results.into_iter().filter_map(|result| result.as_deref());
        results.find(|result| !matches!(*result, "ncclSuccess" | "ncclInProgress"))
    }

    pub fn has_failed(&self) -> bool {
        self.failure().is_some()
    }
}

/// The states that NCCL keeps of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommStatus {
    /// An `ncclResult_t` by name; `ncclSuccess` once the communicator is set up.
    pub init: Option<String>,
    /// An `ncclResult_t` by name.
    pub async_result: Option<String>,
    /// The same of its proxy thread.
    pub proxy_result: Option<String>,
    /// Value behind `abortFlag`: 1 after `ncclCommAbort` or an error that ends the communicator.
    pub abort: Option<bool>,
    pub finalize_called: Option<bool>,
    pub destroying: Option<bool>,
    pub revoked: Option<bool>,
}

/// A channel: this rank's neighbours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChannelReport {
    pub channel: u32,
    pub ring_prev: i32,
    pub ring_next: i32,
    /// -1 at the root.
    pub tree_up: i32,
    pub tree_down: Vec<i32>,
}

/// A network connection for collectives, seen from one of its ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionReport {
    pub channel: u32,
    pub direction: OpDirection,
    pub peer: u32,
    /// FIFO steps of all ops that its proxy thread has begun since it was connected. Both ends count the same, if both do the
    /// same.
    pub steps: u64,
}

/// What the proxy thread of a rank has in flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyReport {
    pub state: ProxyListState,
    /// Whether the rank's rings go through the proxy. `false`: what moves there (NVLink, shared memory) cannot be seen.
    pub carries_rings: Option<bool>,
    pub ops: Vec<OpReport>,
}

/// How far the list of ops in flight can be believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProxyListState {
    /// Read, and the same when looked at again.
    Read,
    /// The process changed it every time while it was read.
    Torn,
    /// Not at the places where this version should have it.
    Unreadable,
    /// No proxy yet: nothing was ever sent through one.
    #[default]
    None,
}

/// Which way an op moves data, seen from its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum OpDirection {
    Send,
    Recv,
}

/// A proxy op in flight with one peer. Steps are slots of the connection's FIFO, counted from the op's beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpReport {
    /// NCCL's number: of collectives and of point-to-point batches apart (`p2p`).
    pub op_count: u64,
    pub p2p: bool,
    pub coll: Option<String>,
    pub pattern: Option<String>,
    pub protocol: Option<String>,
    pub channel: u32,
    pub direction: OpDirection,
    /// Not known where neither NCCL keeps it (before 2.23) nor the connection tells.
    pub peer: Option<u32>,
    pub transport: Option<String>,
    /// The proxy thread has begun it; all steps are 0 before.
    pub begun: bool,
    pub nsteps: u64,
    /// SEND: slots offered to the GPU; RECV: receives given to the network.
    pub posted: u64,
    /// RECV: messages that arrived.
    pub received: u64,
    /// RECV over CollNet: flushed to the GPU's memory. The other transports do not count it.
    #[serde(default)]
    pub flushed: Option<u64>,
    /// SEND: given to the network; RECV: offered to the GPU.
    pub transmitted: u64,
    /// SEND: taken by the network; RECV: consumed by the GPU.
    pub done: u64,
    /// What the GPU says itself, where its word can be read: SEND: slots filled; RECV: slots emptied.
    pub gpu: Option<u64>,
    pub chunk_steps: u64,
    pub slice_steps: u64,
    /// Seconds for which it did not move, over the readings.
    #[serde(default)]
    pub still_seconds: f64,
}

/// What changed between the readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Motion {
    pub readings: u32,
    /// Seconds from the first reading to the last.
    pub seconds: f64,
    /// An op in flight made a step, came or went.
    pub steps_moved: bool,
    /// A counter grew.
    pub counters_moved: bool,
}

impl Motion {
    pub fn is_still(&self) -> bool {
        self.readings > 1 && !self.steps_moved && !self.counters_moved
    }
}
