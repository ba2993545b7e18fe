//! One GPU at one moment.

use std::time::Instant;

use serde::{Deserialize, Serialize};

/// What the driver says of a GPU. What it does not say is not there.
#[derive(Clone, Debug)]
pub struct GpuReading {
    pub at: Instant,
    /// NVML's number of it, by PCI address.
    pub index: u32,
    /// As `nvidia-smi -L` has it.
    pub uuid: Option<String>,
    /// As NCCL and the kernel write it: `0000:3b:00.0`.
    pub bus_id: Option<String>,
    pub name: Option<String>,
    /// Of all processes together, over the driver's last period of 1/6 to 1 s.
    pub used: Utilisation,
    /// Processes with compute contexts; `None` if the driver does not say.
    pub processes: Option<Vec<GpuProcess>>,
    /// Bytes over all its NVLinks since the driver was loaded: sent, received. NVML counts them in KiB.
    pub nvlink: Option<[u64; 2]>,
    /// Bytes over PCIe since the driver was loaded: sent, received.
    pub pcie: Option<[u64; 2]>,
    pub sm_clock_mhz: Option<u32>,
    pub sm_clock_max_mhz: Option<u32>,
    /// Why its clocks are low, by NVML's names; empty if they are not.
    pub throttled_by: Vec<String>,
    /// Memory errors that were not corrected, since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// The temperature from which on it slows down.
    pub temperature_limit: Option<u32>,
    /// Milliwatts.
    pub power: Option<u32>,
    pub power_limit: Option<u32>,
    /// UUIDs of the instances (MIG) that it is divided into.
    pub instances: Vec<String>,
    /// Errors (Xids) since the reading before, where they are watched.
    pub xids: Vec<u64>,
}

impl GpuReading {
    /// One of which nothing is known yet but where it is.
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

    /// Numbers can change while the driver runs; addresses and UUIDs do not.
    pub(super) fn is_same_gpu(&self, other: &Self) -> bool {
        (&self.bus_id, &self.uuid) == (&other.bus_id, &other.uuid)
    }
}

/// Percent of a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Utilisation {
    /// In which a kernel ran, however small.
    pub sm_percent: Option<u32>,
    /// In which the GPU's memory was read or written.
    pub memory_percent: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuProcess {
    /// In the PID namespace that the driver answers in: of the host, or of the container that asks.
    pub pid: u32,
    /// Of the GPU's memory.
    pub memory_bytes: Option<u64>,
    #[serde(flatten)]
    pub used: Utilisation,
}
