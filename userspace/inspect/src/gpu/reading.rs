//! Reading of one GPU at one moment.

use rustix::time::ClockId;
use serde::{Deserialize, Serialize};

use super::report::{GpuReport, Traffic};
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
    /// Bytes over PCIe by a counter of 32 bits: sent, received. Not asked where `activity` has them.
    pub pcie: Option<[u64; 2]>,
    /// Activity since the reading before, by the GPU's own counters.
    pub activity: Activity,
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

/// Activity of a GPU in a period by its own counters (GPM; Hopper and later), of all processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    /// Percent of the time in which the GPU ran anything.
    pub graphics_percent: Option<f64>,
    /// Percent of the SMs that had a warp.
    pub sm_percent: Option<f64>,
    /// Percent of the places for warps that were taken.
    pub occupancy_percent: Option<f64>,
    /// Percent of the cycles in which tensor cores computed.
    pub tensor_percent: Option<f64>,
    /// Percent of the cycles in which the GPU's memory was read or written.
    pub dram_percent: Option<f64>,
    /// Bytes over PCIe.
    pub pcie: Option<Traffic>,
}

impl Activity {
    /// Returns the share of the GPU that kernels took.
    pub(super) fn residency(&self) -> Option<Residency> {
        let (multiprocessors_percent, warps_percent) = self.sm_percent.zip(self.occupancy_percent)?;
        Some(Residency { multiprocessors_percent, warps_percent })
    }
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
