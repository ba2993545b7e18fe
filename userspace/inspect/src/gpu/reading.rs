//! Reading of one GPU at one moment.

use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Values that the driver states of a GPU; one that it does not state is `None`.
#[derive(Clone, Debug)]
pub struct GpuReading {
    pub at: Instant,
    /// NVML's number of the GPU, by PCI address.
    pub index: u32,
    /// UUID as `nvidia-smi -L` prints it.
    pub uuid: Option<String>,
    /// PCI address as NCCL and the kernel write it: `0000:3b:00.0`.
    pub bus_id: Option<String>,
    pub name: Option<String>,
    /// Use by all processes together, over the driver's last period of 1/6 to 1 s.
    pub used: Utilisation,
    /// Processes with compute contexts; `None` if the driver does not list them.
    pub processes: Option<Vec<GpuProcess>>,
    /// Bytes over all its NVLinks since the driver was loaded: sent, received. NVML counts them in KiB.
    pub nvlink: Option<[u64; 2]>,
    /// Bytes over PCIe since the driver was loaded: sent, received.
    pub pcie: Option<[u64; 2]>,
    pub sm_clock_mhz: Option<u32>,
    pub sm_clock_max_mhz: Option<u32>,
    /// Reasons for low clocks, by NVML's names; empty if the clocks are not low.
    pub throttled_by: Vec<String>,
    /// Memory errors that were not corrected, since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// Temperature in degrees Celsius.
    pub temperature: Option<u32>,
    /// Temperature in degrees Celsius from which on the GPU slows down.
    pub temperature_limit: Option<u32>,
    /// Power in milliwatts.
    pub power: Option<u32>,
    pub power_limit: Option<u32>,
    /// UUIDs of the instances (MIG) that the GPU is divided into.
    pub instances: Vec<String>,
    /// Errors (Xids) since the reading before, where errors are watched.
    pub xids: Vec<u64>,
}

impl GpuReading {
    /// Makes a reading of which nothing is known yet but the GPU's number and address.
    pub(super) fn unknown(index: u32, bus_id: Option<String>) -> Self {
        Self {
            at: Instant::now(),
            index,
            uuid: None,
            bus_id,
            name: None,
            used: Utilisation::default(),
            processes: None,
            nvlink: None,
            pcie: None,
            sm_clock_mhz: None,
            sm_clock_max_mhz: None,
            throttled_by: Vec::new(),
            ecc_uncorrected: None,
            temperature: None,
            temperature_limit: None,
            power: None,
            power_limit: None,
            instances: Vec::new(),
            xids: Vec::new(),
        }
    }

    /// Tells whether both readings are of one GPU. Numbers can change while the driver runs; addresses and
    /// UUIDs do not.
    pub(super) fn is_same_gpu(&self, other: &Self) -> bool {
        (&self.bus_id, &self.uuid) == (&other.bus_id, &other.uuid)
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
