//! Reading of one GPU at one moment.

use rustix::time::ClockId;
use serde::{Deserialize, Serialize};

use super::report::GpuReport;
use crate::clock::now_ns;

/// Values that the driver states of a GPU; one that it does not state is `None`.
#[derive(Clone, Debug, Default)]
pub struct GpuReading {
    /// `CLOCK_MONOTONIC` of the reading.
    pub at_ns: u64,
    /// Values as a report has them; empty where they are of several readings, or stand below.
    pub gpu: GpuReport,
    /// Bytes over all its NVLinks since the driver was loaded: sent, received. NVML counts them in KiB.
    pub nvlink: Option<[u64; 2]>,
    /// Bytes over PCIe since the driver was loaded: sent, received.
    pub pcie: Option<[u64; 2]>,
    /// Power in milliwatts.
    pub power: Option<u32>,
    pub power_limit: Option<u32>,
    /// Errors (Xids) since the reading before, where errors are watched.
    pub xids: Vec<u64>,
}

impl GpuReading {
    /// Makes a reading of now.
    pub(super) fn now(gpu: GpuReport) -> Self {
        Self { at_ns: now_ns(ClockId::Monotonic), gpu, ..Self::default() }
    }

    /// Tells whether both readings are of one GPU. Numbers can change while the driver runs; addresses and
    /// UUIDs do not.
    pub(super) fn is_same_gpu(&self, other: &Self) -> bool {
        (&self.gpu.bus_id, &self.gpu.uuid) == (&other.gpu.bus_id, &other.gpu.uuid)
    }
}

/// Parts of a period, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Utilisation {
    /// Part in which a kernel ran, however small.
    pub sm_percent: Option<u32>,
    /// Part in which the GPU's memory was read or written.
    pub memory_percent: Option<u32>,
}

/// Share of a GPU that kernels took in a period, by GPM (Hopper and later): of all processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Residency {
    /// Percent of the multiprocessors that had a kernel: a kernel of NCCL's takes one for each of its
    /// channels.
    pub multiprocessors_percent: f64,
    /// Percent of the places for warps that were taken: the occupancy of the GPU.
    pub warps_percent: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuProcess {
    /// PID in the namespace that the driver answers in: the host's, or that of the container that asks.
    pub pid: u32,
    /// GPU memory that the process uses.
    pub memory_bytes: Option<u64>,
    #[serde(flatten)]
    pub used: Utilisation,
}
