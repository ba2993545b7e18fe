//! Ranks of communicators.

/// A rank of a communicator in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankKey {
    /// `commHash`; before 2.18 there is none.
    pub hash: Option<u64>,
    /// 0, or the number of communicators with the same hash and rank that were seen before this one.
    pub instance: u32,
    pub rank: i32,
    /// In ncclflow's own PID namespace.
    pub pid: u32,
}

impl RankKey {
    /// The communicator as the folders of a recording are called.
    pub fn comm_name(&self) -> String {
        let hash = comm_hash_name(self.hash);
        if self.instance == 0 { hash } else { format!("{hash}-{}", self.instance) }
    }
}

/// `commHash` as text; before 2.18 there is none.
pub fn comm_hash_name(hash: Option<u64>) -> String {
    hash.map_or_else(|| "no-hash".to_owned(), |hash| format!("0x{hash:016x}"))
}

/// The hash of such a text; `None` of whatever else it is.
pub fn comm_hash_of_name(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("0x")?, 16).ok()
}

row! {
    /// A rank of a communicator that was seen, and the lines that were written for it.
    #[derive(Default)]
    pub struct CommunicatorReport {
        /// `commHash`.
        "commHash": Identity, comm_hash: String;
        /// Its folder: `commHash`, and a number if there are several of that hash.
        "folder": Identity, folder: String;
        /// This rank.
        "rank": Identity, rank: i32;
        /// Size of the communicator.
        "nRanks": Identity, n_ranks: i32;
        /// Its process, as ncclflow sees it.
        "pid": Identity, pid: u32;
        /// Lines of `proxy_flow`: ops times channels.
        "proxyFlowLines": Measured, proxy_flow_lines: u64;
        /// Lines of `flow_steps`: messages.
        "flowStepsLines": Measured, flow_steps_lines: u64;
        /// Lines of `api`: calls.
        "apiLines": Measured, #[serde(default)] api_lines: u64;
        /// Lines that could not be written.
        "lostLines": Measured, lost_lines: u64;
        /// The name that the program gave the communicator (NCCL 2.27 and later); NCCL keeps its address, so
        /// of a name that the program has freed it is what lies there now, or `null`.
        "commName": Identity, #[serde(default)] comm_name: Option<String>;
        /// Of the ranks of this communicator on its node, which one this is; NCCL's count.
        "localRank": Identity, #[serde(default)] local_rank: Option<u32>;
        /// Its node among those of the communicator; NCCL's count.
        "node": Identity, #[serde(default)] node: Option<u32>;
        /// Nodes of the communicator.
        "nNodes": Identity, #[serde(default)] n_nodes: Option<u32>;
        /// Its GPU, by the process's own count, which `CUDA_VISIBLE_DEVICES` changes.
        "cudaDev": Identity, #[serde(default)] cuda_dev: Option<u32>;
        /// The GPU by NVML's count (2.18.3 and later): as `nvidia-smi` shows it in the process's container,
        /// which may see some of the host's GPUs only.
        "nvmlDev": Identity, #[serde(default)] nvml_dev: Option<u32>;
        /// The GPU's PCI address, the same in every container: `0000:3b:00.0`. The parts of a divided GPU
        /// (MIG) have one address.
        "busId": Identity, #[serde(default)] bus_id: Option<String>;
        /// Its UUID, as the recording host's driver has it for that address; of a divided GPU, that of the
        /// whole.
        "gpuUuid": Identity, #[serde(default)] gpu_uuid: Option<String>;
        /// The GPU as the recording host's driver numbers it, whatever a container sees: the N of
        /// `/dev/nvidiaN`.
        "gpuMinor": Identity, #[serde(default)] gpu_minor: Option<u32>;
        /// GPU instances (MIG) that it is divided into, as the recording host's driver says; 0: it is not
        /// divided. Which of them this rank has is not known.
        "gpuInstances": Identity, #[serde(default)] gpu_instances: Option<u32>;
        /// Rank in the job: see `job` of `targets`. Of a process with several GPUs for which nobody says one,
        /// that of this GPU.
        "jobRank": Identity, #[serde(default)] job_rank: Option<u32>;
        /// Who says it: `RANK`, `SLURM_PROCID` …, a variable of the process's initial environment;
        /// `rank-map`; or
        /// `derived`: nobody, it is the rank in the GPU's largest communicator that was seen.
        "jobRankSource": Identity, #[serde(default)] job_rank_source: Option<String>;
        /// By `--job`, or else `SLURM_JOB_ID`.
        "jobName": Identity, #[serde(default)] job_name: Option<String>;
    }
}
