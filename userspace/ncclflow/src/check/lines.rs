//! Lines of `proxy_flow` and `flow_steps` as readers see them: the keys that are used here, as docs/OUTPUT.md has them.

use serde::Deserialize;

use nccl_library::nccl::Direction;

/// A line of `proxy_flow`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowLine {
    pub seq: u64,
    pub rank: i32,
    pub channel: u32,
    pub pattern: String,
    pub dtype: Option<String>,
    pub red_op: Option<String>,
    pub coll: Option<String>,
    pub coll_api: Option<String>,
    #[serde(default)]
    pub root: i32,
    pub n_ranks: i32,
    pub posted: bool,
    #[serde(rename = "ts_ns", default)]
    pub ts_ns: u64,
    #[serde(default)]
    pub count: Option<u64>,
    #[serde(default)]
    pub bytes: Option<u64>,
    #[serde(default)]
    pub incomplete: bool,
    #[serde(default)]
    pub captured_seq: Option<u64>,
    /// What became of its messages, where they were measured.
    #[serde(default)]
    pub measured: Option<String>,
    #[serde(default)]
    pub peers: Vec<PeerEntry>,
}

/// One of a line's `peers`.
#[derive(Clone, Debug, Deserialize)]
pub struct PeerEntry {
    pub op: Direction,
    pub peer: i32,
}

impl FlowLine {
    pub fn is_p2p(&self) -> bool {
        matches!(self.pattern.as_str(), "SEND" | "RECV")
    }
}

/// A line of `flow_steps`.
#[derive(Clone, Debug, Deserialize)]
pub struct StepLine {
    pub seq: u64,
    pub channel: u32,
    pub step: u64,
    pub op: Direction,
    pub peer: i32,
    pub bytes: u64,
    #[serde(default)]
    pub stage: String,
    #[serde(rename = "loop", default)]
    pub loop_index: u64,
    #[serde(rename = "ringStep", default)]
    pub ring_step: Option<u64>,
    #[serde(default)]
    pub slice: u64,
    #[serde(default)]
    pub transport: String,
    #[serde(default)]
    pub t_start_ns: Option<u64>,
    #[serde(default)]
    pub t_posted_ns: Option<u64>,
    #[serde(default)]
    pub t_ready_ns: Option<u64>,
    #[serde(default)]
    pub t_sent_ns: Option<u64>,
    #[serde(default)]
    pub t_arrived_ns: Option<u64>,
    #[serde(default)]
    pub t_end_ns: Option<u64>,
    #[serde(default)]
    pub t_slot_free_ns: Option<u64>,
    #[serde(default)]
    pub bytes_measured: Option<u64>,
    #[serde(default)]
    pub wait_gpu_ready_ns: Option<u64>,
    #[serde(default)]
    pub wait_peer_buffer_ns: Option<u64>,
    #[serde(default)]
    pub wait_gpu_ready_or_peer_buffer_ns: Option<u64>,
    #[serde(default)]
    pub wait_network_ns: Option<u64>,
    #[serde(default)]
    pub wait_flush_ns: Option<u64>,
    #[serde(default)]
    pub wait_gpu_consume_ns: Option<u64>,
    #[serde(default)]
    pub wait_flush_or_gpu_consume_ns: Option<u64>,
}

impl StepLine {
    /// When it could begin: measured if it was, or else when its slot was free.
    pub fn begin(&self) -> Option<u64> {
        match self.op {
            Direction::Send => self.t_start_ns.or(self.t_slot_free_ns),
            Direction::Recv => self.t_posted_ns.or(self.t_slot_free_ns),
        }
    }

    /// The line was made with `--level steps`.
    pub fn is_measured(&self) -> bool {
        self.t_slot_free_ns.is_some() || self.t_end_ns.is_some()
    }
}
