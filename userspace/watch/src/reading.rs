//! Readings of processes, as the rest of this crate takes them: data alone.

use std::{collections::BTreeMap, sync::Arc};

pub use dump::watched::Steps;
use dump::{
    Counting,
    watched::{Counts, Growth},
};
use flow::schema::GpuRow;
use inspect::adapters::Port;

/// Properties that the ranks of a communicator have in common. A tenant can write any hash into its own
/// memory, so the user belongs to it, and the tenant where two of one user cannot both be right.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommKey {
    /// `0x` and 16 hex digits.
    pub hash: String,
    pub n_ranks: u32,
    pub uid: u32,
    /// The tenant ([`ProcessInfo::whose`]), where two claim one rank; [`crate::Book`] sets it.
    pub tenant: Option<String>,
}

impl CommKey {
    /// Tells whether two keys are equal but for the tenant.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (&self.hash, self.n_ranks, self.uid) == (&other.hash, other.n_ranks, other.uid)
    }
}

/// A process; the number alone can come again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessKey {
    pub pid: u32,
    /// Start in clock ticks since boot; 0 where it is not known.
    pub started: u64,
}

/// Facts about a process that do not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    pub key: ProcessKey,
    /// The kernel's name of the program.
    pub name: String,
    pub user: String,
    /// `SLURM_JOB_ID` of the initial environment.
    pub job: Option<String>,
    pub container: Option<String>,
    /// UID of the Kubernetes pod.
    pub pod: Option<String>,
}

impl ProcessInfo {
    /// Returns the tenant, where something is shared out: the pod, the container, or the user.
    pub fn whose(&self) -> &str {
        self.pod.as_deref().or(self.container.as_deref()).unwrap_or(&self.user)
    }
}

/// Facts about a rank that do not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankInfo {
    pub comm: Arc<CommKey>,
    /// The communicator's name, which programs give: torch, the process group's.
    pub name: Option<String>,
    pub rank: u32,
    /// Number of the GPU, as NVML numbers them.
    pub gpu: Option<u32>,
    /// PCI address of the GPU.
    pub bus_id: Option<String>,
    /// The rings go through the proxy: an operation that is not done is in flight there.
    pub has_proxy: Option<bool>,
    /// How NCCL counts the rank's launches.
    pub counting: Counting,
    /// Names of NCCL's functions, by number.
    pub functions: Vec<String>,
}

/// A rank at one moment.
#[derive(Clone, Debug)]
pub struct RankReading {
    pub info: Arc<RankInfo>,
    pub state: RankCounts,
    /// Mark of the steps of its proxy; `None` if they were not looked at.
    pub steps: Option<Steps>,
    /// Name of the failure that NCCL reports.
    pub failure: Option<String>,
}

/// Counters of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankCounts {
    Read(Counts),
    /// The process has no such communicator any more.
    Ended,
    /// The process did not let itself be read.
    Unread,
}

/// A process at one moment.
#[derive(Clone, Debug)]
pub struct ProcessReading {
    pub info: Arc<ProcessInfo>,
    pub is_live: bool,
    pub ranks: Vec<RankReading>,
    /// Processor time since the look before; looks are seldom.
    pub processor: Option<Growth>,
}

/// Processor time of the processes that were looked at.
pub(crate) type ProcessorGrowths = BTreeMap<ProcessKey, Growth>;

/// What is read beside processes.
#[derive(Clone, Debug, Default)]
pub struct HostReading {
    pub gpus: Vec<GpuState>,
    /// Ports of adapters; `None` while they do not let themselves be read.
    pub ports: Option<Vec<Port>>,
}

/// A GPU at one moment.
#[derive(Clone, Debug, Default)]
pub struct GpuState {
    pub bus_id: String,
    /// Part of the driver's last period in which a kernel ran, in percent.
    pub busy_percent: Option<u32>,
    /// Errors (Xids) since the moment before.
    pub xids: Vec<u64>,
    /// Rows since the moment before, in the order of time.
    pub rows: Vec<Arc<GpuRow>>,
}
