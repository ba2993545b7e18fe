//! Ranks of communicators.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use nccl_library::nccl::{Direction, Name};

/// A rank of a communicator in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankKey {
    /// `commHash`; before 2.18 there is none.
    pub hash: Option<u64>,
    /// 0, or the number of communicators with the same hash and rank that were seen before this one.
    pub instance: u32,
    pub rank: i32,
    /// Process ID in ncclflow's own PID namespace.
    pub pid: u32,
}

impl RankKey {
    /// Returns the communicator's name, which is that of its folder in a recording.
    pub fn comm_name(&self) -> String {
        let hash = comm_hash_name(self.hash);
        if self.instance == 0 { hash } else { format!("{hash}-{}", self.instance) }
    }
}

/// Returns `commHash` as text; before 2.18 there is none.
pub fn comm_hash_name(hash: Option<u64>) -> String {
    hash.map_or_else(|| "no-hash".to_owned(), |hash| format!("0x{hash:016x}"))
}

/// Reads the hash from the text of [`comm_hash_name`]; `None` for any other text.
pub fn comm_hash_of_name(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("0x")?, 16).ok()
}

row! {
    /// A rank of a communicator that was seen, and the lines that were written for it.
    #[derive(Default)]
    pub struct CommunicatorReport {
        /// `commHash` of the communicator.
        "commHash": Identity, comm_hash: String;
        /// Folder of the rank's files: `commHash`, and a number if there are several of that hash.
        "folder": Identity, folder: String;
        /// This rank.
        "rank": Identity, rank: i32;
        /// Size of the communicator.
        "nRanks": Identity, #[serde(default)] n_ranks: i32;
        /// Process ID of the rank, in ncclflow's PID namespace.
        "pid": Identity, pid: u32;
        /// Collectives in these lines, each counted once, whatever channels it has.
        "collectives": Measured, #[serde(default)] collectives: u64;
        /// Sends and receives in these lines, each counted once.
        "sendsReceives": Measured, #[serde(default)] sends_receives: u64;
        /// Launches without proxy ops in these lines (`launch`).
        "launches": Measured, #[serde(default)] launches: u64;
        /// Lines of `proxy_flow`: ops times channels.
        "proxyFlowLines": Measured, #[serde(default)] proxy_flow_lines: u64;
        /// Lines of `flow_steps`: messages.
        "flowStepsLines": Measured, #[serde(default)] flow_steps_lines: u64;
        /// Lines of `api`: calls.
        "apiLines": Measured, #[serde(default)] api_lines: u64;
        /// Lines that could not be written.
        "lostLines": Measured, #[serde(default)] lost_lines: u64;
        /// Name that the program gave the communicator (NCCL 2.27 and later). NCCL keeps only the name's
        /// address: of a name that the program has freed, this is what lies there now, or `null`.
        "commName": Identity, #[serde(default)] comm_name: Option<String>;
        /// Number of this rank among the communicator's ranks on its node; NCCL's count.
        "localRank": Identity, #[serde(default)] local_rank: Option<u32>;
        /// Number of the rank's node among the communicator's nodes; NCCL's count.
        "node": Identity, #[serde(default)] node: Option<u32>;
        /// Nodes of the communicator.
        "nNodes": Identity, #[serde(default)] n_nodes: Option<u32>;
        /// Number of the rank's GPU by the process's own count, which `CUDA_VISIBLE_DEVICES` changes.
        "cudaDev": Identity, #[serde(default)] cuda_dev: Option<u32>;
        /// Number of the GPU by NVML's count (2.18.3 and later): as `nvidia-smi` shows it in the process's
        /// container, which may see only some of the host's GPUs.
        "nvmlDev": Identity, #[serde(default)] nvml_dev: Option<u32>;
        /// PCI address of the GPU, the same in every container: `0000:3b:00.0`. The parts of a divided GPU
        /// (MIG) have one address.
        "busId": Identity, #[serde(default)] bus_id: Option<String>;
        /// UUID of the GPU, as the recording host's driver has it for that address; for a divided GPU, the
        /// UUID of the whole.
        "gpuUuid": Identity, #[serde(default)] gpu_uuid: Option<String>;
        /// Number of the GPU by the recording host's driver, whatever a container sees: the N of
        /// `/dev/nvidiaN`.
        "gpuMinor": Identity, #[serde(default)] gpu_minor: Option<u32>;
        /// GPU instances (MIG) that the GPU is divided into, as the recording host's driver says; 0: it is
        /// not divided. Which of them this rank has is not known.
        "gpuInstances": Identity, #[serde(default)] gpu_instances: Option<u32>;
        /// Network devices of the connections with this rank's neighbours in rings and trees, as they were
        /// when the communicator was first seen: `dev`, NCCL's number; `net`, the network plugin; `name`, the
        /// adapter or interface, if known; `guid`; and for each peer the channels that it sends (`sends`) and
        /// receives (`receives`) over.
        "nics": Identity, #[serde(default)] nics: Vec<NicRow>;
        /// Rank in the job: see `job` of `targets`. In a process with several GPUs for which nobody names a
        /// rank, the rank of this GPU.
        "jobRank": Identity, #[serde(default)] job_rank: Option<u32>;
        /// Source of `jobRank`: `RANK`, `SLURM_PROCID` …, a variable of the process's initial environment;
        /// `rank-map`; or `derived`: nobody names it, and it is the rank in the GPU's largest communicator
        /// that was seen.
        "jobRankSource": Identity, #[serde(default)] job_rank_source: Option<String>;
        /// Name of the job, by `--job`, or else `SLURM_JOB_ID`.
        "jobName": Identity, #[serde(default)] job_name: Option<String>;
    }
}

row! {
    /// A network device of a rank, and what goes over it.
    #[derive(Default, Eq)]
    pub struct NicRow {
        /// Number of the device, as NCCL's network plugin counts them.
        "dev": Identity, dev: u32;
        /// Network plugin: `IB`, `Socket`, or the name of another.
        "net": Identity, net: Option<String>;
        /// Adapter (`mlx5_0`) or interface (`eth0`); null where it is not known.
        "name": Identity, name: Option<String>;
        /// GUID as the plugin tells it, in hex digits; null for sockets.
        "guid": Identity, guid: Option<String>;
        /// Channels that the rank sends over, by peer.
        "sends": Identity, #[serde(deserialize_with = "by_peer")] sends: BTreeMap<i32, Vec<u32>>;
        /// Channels that the rank receives over, by peer.
        "receives": Identity, #[serde(deserialize_with = "by_peer")] receives: BTreeMap<i32, Vec<u32>>;
    }
}

/// Reads lists by peer. JSON's keys are text, and serde takes numbers out of them only where no enum with a
/// tag, like [`Event`](crate::recording::Event), is around.
fn by_peer<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<i32, Vec<u32>>, D::Error> {
    let lists = BTreeMap::<String, Vec<u32>>::deserialize(from)?.into_iter();
    lists.map(|(peer, list)| Ok((peer.parse().map_err(D::Error::custom)?, list))).collect()
}

impl CommunicatorReport {
    /// Returns the network device over which the rank sends to this peer (or receives from it) on this
    /// channel.
    pub fn nic(&self, op: Direction, peer: i32, channel: u32) -> Option<&NicRow> {
        self.nics.iter().find(|nic| {
            let channels = match op {
                Direction::Send => nic.sends.get(&peer),
                Direction::Recv => nic.receives.get(&peer),
            };
            channels.is_some_and(|channels| channels.contains(&channel))
        })
    }
}

impl NicRow {
    pub fn label(&self) -> String {
        device_label(self.dev, self.net.as_deref(), self.name.as_deref())
    }
}

/// Names a network device, as well as it is known: `mlx5_0`, `AWS Libfabric device 3`.
pub fn device_label(dev: u32, net: Option<&str>, name: Option<&str>) -> String {
    name.map_or_else(|| format!("{} device {dev}", net.unwrap_or("network")), str::to_owned)
}

/// Host and process in which an op was seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostInfo {
    pub host: Name,
    /// Process ID in ncclflow's own PID namespace.
    pub pid: u32,
}
