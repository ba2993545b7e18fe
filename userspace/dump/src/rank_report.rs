//! Data of one rank of a communicator, a part of the schema of `--json` (docs/DUMP.md): read from memory, but
//! for its motion.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{AbsentRank, NicReport, OneSided, Pending, ProcessState, RankGpu, SetUp, pxn::OpForOther};
use nccl_library::nccl::{Direction, NcclVersion};
use torch_history::Noted;

/// A process, by host and PID.
pub(super) type ProcessId<'a> = (&'a str, u32);

/// A rank of a communicator, as its own process has it.
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
    /// Address of the `ncclComm` in the process.
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
    /// Network devices that the connections and the ops in flight go over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicReport>,
    /// Channels on which a kernel was launched that is not through with its work, by the counters that the
    /// GPU writes for the host. NCCL has them up to 2.25, and only for work that goes through its FIFO; null
    /// otherwise.
    pub kernel_channels: Option<Vec<u32>>,
    /// Another communicator of the process counts its ops together with this one, so that the numbers of ops
    /// can differ from rank to rank.
    #[serde(default)]
    pub shares_resources: bool,
    /// PCI address of the GPU, as NCCL and the kernel write it: `0000:3b:00.0`.
    pub bus_id: Option<String>,
    /// Operations that the communicator was asked for and has not launched.
    pub pending: Option<Pending>,
    /// One-sided operations that the CPU makes (2.30 and later); null where there are none, or where the layouts
    /// are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_sided: Option<OneSided>,
    /// Progress of the communicator's set-up; null where it is done, or where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_up: Option<SetUp>,
    /// Activity of the rank's GPU between the readings, by the driver; null without NVML.
    pub gpu: Option<RankGpu>,
    /// Ranks that no process that was read has, with their places; only the first rank of each host has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<AbsentRank>,
    /// torch's notes of the rank; null without torch, or where it is not known which process group it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noted: Option<Noted>,
    /// The same of each of several process groups, of which one is this communicator and nothing tells which.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub noted_twins: Vec<Noted>,
    pub motion: Motion,
    /// Ops in the list of this rank's proxy that are other ranks'. They are given to those before anything is
    /// judged.
    #[serde(skip)]
    pub ops_for_others: Vec<OpForOther>,
    /// Remarks on what was not read, or may be incomplete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// Progress of a rank, by NCCL's own counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// Collectives launched, by function; those replayed from CUDA graphs are not counted. NCCL counts always
    /// only from 2.26 on, so empty before.
    pub seq_number: BTreeMap<String, u64>,
    /// Collectives launched: of this communicator (2.24 and later; from 2.27 on only of plans that use the
    /// proxy), or of all that share its resources.
    pub coll_op_count: Option<u64>,
    /// [`Self::coll_op_count`] counts for several communicators.
    pub coll_op_count_is_shared: bool,
    /// Point-to-point batches launched, over all channels.
    pub p2p_op_count: Option<u64>,
    /// `ncclComm.opCount`: launches that woke the proxy (2.27 and later), all launches before.
    pub op_count: Option<u64>,
    /// Plans that CUDA graphs hold. While there are any, NCCL counts launches later on ranks with ops for the
    /// proxy than on others, or not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph_plans: Option<u64>,
}

impl Counters {
    /// Returns the number of collectives launched on this communicator, by the best counter there is; equal
    /// when nobody lags on all ranks of one [`RankReport::counting`].
    pub fn launched(&self) -> Option<u64> {
        if self.seq_number.is_empty() {
            self.coll_op_count.filter(|_| !self.coll_op_count_is_shared)
        } else {
            Some(self.seq_number.values().copied().fold(0, u64::saturating_add))
        }
    }

    /// Returns the number of collectives, modulo 2^64, that were launched without a number (`opCount`): from
    /// 2.27 on those without an op for the rank's proxy. A small one can have ops on some ranks only, because
    /// it uses few channels. Replays of CUDA graphs count the other way.
    pub(super) fn unnumbered(&self) -> u64 {
        match (self.coll_op_count, self.coll_op_count_is_shared, self.seq_number.is_empty()) {
            (Some(numbered), false, false) => {
                self.seq_number.values().copied().fold(0, u64::wrapping_add).wrapping_sub(numbered)
            }
            _ => 0,
        }
    }
}

/// How NCCL counts the launches of a rank. Those of ranks that are counted in other ways say nothing of each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counting {
    /// Each launch that is not replayed from a graph.
    #[default]
    Always,
    /// Launches with ops for the proxy when the stream comes to them, and those of graphs; of the others, up
    /// to 2.26, none while a graph holds plans, or with CUDA_LAUNCH_BLOCKING=1 (src/enqueue.cc,
    /// ncclLaunchPrepare and ncclLaunchKernelAfter_NoCuda).
    ByProxy(bool),
}

impl RankReport {
    pub(super) fn counting(&self) -> Counting {
        let is_new = self.version().is_none_or(|version| (version.major, version.minor) >= (2, 27));
        match self.counters.graph_plans {
            None | Some(0) if is_new => Counting::Always,
            _ => Counting::ByProxy(!self.connections.is_empty() || self.proxy.carries_rings == Some(true)),
        }
    }

    pub(super) fn process(&self) -> ProcessId<'_> {
        (&self.host, self.pid)
    }

    pub(super) fn version(&self) -> Option<NcclVersion> {
        self.nccl_version.as_deref()?.parse().ok()
    }

    /// Returns the result, other than success, that NCCL keeps of the communicator or of its proxy.
    pub fn failure(&self) -> Option<&str> {
        let results = [&self.status.async_result, &self.status.proxy_result];
        let mut results = results.into_iter().filter_map(|result| result.as_deref());
        results.find(|result| !matches!(*result, "ncclSuccess" | "ncclInProgress"))
    }

    pub(super) fn channel(&self, number: u32) -> Option<&ChannelReport> {
        self.channels.iter().find(|channel| channel.channel == number)
    }

    pub(super) fn connection(
        &self,
        channel: u32,
        direction: Direction,
        peer: u32,
    ) -> Option<&ConnectionReport> {
        let wanted = (channel, direction, peer);
        self.connections.iter().find(|known| (known.channel, known.direction, known.peer) == wanted)
    }

    /// Returns the numbers of the network devices that connections and ops in flight go over.
    pub(super) fn net_devs(&self) -> BTreeSet<u32> {
        let connections = self.connections.iter().filter_map(|connection| connection.net_dev);
        connections.chain(self.proxy.ops.iter().filter_map(|op| op.net_dev)).collect()
    }
}

/// States that NCCL keeps of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommStatus {
    /// An `ncclResult_t` by name; `ncclSuccess` once the communicator is set up.
    pub init: Option<String>,
    pub async_result: Option<String>,
    /// The `ncclResult_t` of its proxy thread.
    pub proxy_result: Option<String>,
    /// Value behind `abortFlag`: 1 after `ncclCommAbort` or an error that ends the communicator.
    pub abort: Option<bool>,
    pub finalize_called: Option<bool>,
    pub destroying: Option<bool>,
    pub revoked: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChannelReport {
    pub channel: u32,
    pub ring_prev: i32,
    pub ring_next: i32,
    /// Rank above this one in the tree; -1 at the root.
    pub tree_up: i32,
    pub tree_down: Vec<i32>,
}

impl ChannelReport {
    pub(super) fn neighbours(&self) -> impl Iterator<Item = u32> {
        let up = [self.ring_prev, self.ring_next, self.tree_up];
        up.into_iter().chain(self.tree_down.iter().copied()).filter_map(|rank| u32::try_from(rank).ok())
    }
}

/// A network connection for collectives, seen from one of its ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionReport {
    pub channel: u32,
    pub direction: Direction,
    pub peer: u32,
    /// FIFO steps of all ops that its proxy thread has begun since it was connected. Both ends count the
    /// same, if both do the same.
    pub steps: u64,
    /// Network device of [`RankReport::nics`] that it goes over.
    #[serde(default)]
    pub net_dev: Option<u32>,
}

/// Ops that the proxy thread of a rank has in flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyReport {
    pub state: ProxyListState,
    /// The rank's rings go through the proxy. `false`: data moves by other ways (NVLink, shared memory) and
    /// cannot be seen.
    pub carries_rings: Option<bool>,
    pub ops: Vec<OpReport>,
}

/// Outcome of reading the list of ops in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProxyListState {
    /// The list was read, and was the same when read again.
    Read,
    /// The process changed it each time while it was read.
    Torn,
    /// No proxy yet: nothing was ever sent through one.
    #[default]
    None,
    /// Addresses or values in the list do not fit this version of NCCL, or a newer ncclflow says something
    /// else.
    #[serde(other)]
    Unreadable,
}

/// A proxy op in flight with one peer. Steps are slots of the connection's FIFO, counted from the op's
/// beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpReport {
    /// NCCL's number of the op: collectives and point-to-point batches are counted apart (`p2p`).
    pub op_count: u64,
    pub p2p: bool,
    pub coll: Option<String>,
    pub pattern: Option<String>,
    pub protocol: Option<String>,
    pub channel: u32,
    pub direction: Direction,
    /// Peer; null where neither NCCL keeps it (before 2.23) nor the connection tells.
    pub peer: Option<u32>,
    pub transport: Option<String>,
    /// Network device of [`RankReport::nics`] that it goes over.
    #[serde(default)]
    pub net_dev: Option<u32>,
    /// The proxy thread has begun the op; all steps are 0 before.
    pub begun: bool,
    pub nsteps: u64,
    /// SEND: slots offered to the GPU; RECV: receives given to the network.
    pub posted: u64,
    /// RECV: messages that arrived.
    pub received: u64,
    /// RECV over CollNet: flushed to the GPU's memory. The other transports do not count it.
    pub flushed: Option<u64>,
    /// SEND: given to the network; RECV: offered to the GPU.
    pub transmitted: u64,
    /// SEND: taken by the network; RECV: consumed by the GPU.
    pub done: u64,
    /// The GPU's own count, where its memory can be read: SEND: slots filled; RECV: slots emptied.
    pub gpu: Option<u64>,
    /// RECV that was not posted, into a buffer that is registered with the network: the GPU has said that the
    /// buffer may be written (`connFifo[].size`). Null for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_ready: Option<bool>,
    pub chunk_steps: u64,
    pub slice_steps: u64,
    /// Seconds for which the op did not move, over the readings.
    #[serde(default)]
    pub still_seconds: f64,
}

impl OpReport {
    pub(super) fn is_unfinished(&self) -> bool {
        self.done < self.nsteps
    }

    /// Names the op: `RECV from 1 (AllReduce, op 5, channel 0)`.
    pub(super) fn label(&self) -> String {
        let preposition = match self.direction {
            Direction::Send => "to",
            Direction::Recv => "from",
        };
        let peer = self.peer.map_or_else(|| "?".to_owned(), |peer| peer.to_string());
        let (direction, coll) = (self.direction.name(), self.coll.as_deref().unwrap_or("op"));
        format!("{direction} {preposition} {peer} ({coll}, op {}, channel {})", self.op_count, self.channel)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Motion {
    pub readings: u32,
    /// Seconds from the first reading to the last.
    pub seconds: f64,
    /// An op in flight made a step, came or went.
    pub steps_moved: bool,
    pub counters_moved: bool,
}

impl Motion {
    pub fn is_still(&self) -> bool {
        self.readings > 1 && !self.steps_moved && !self.counters_moved
    }
}
