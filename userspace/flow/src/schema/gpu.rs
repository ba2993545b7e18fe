//! Activity of GPUs as their driver reports it: lines of `gpus.jsonl`.

use serde::{Deserialize, Serialize};

/// A process that has a compute context on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcessRow {
    /// Process ID in the PID namespace that the driver answers in: mostly the host's.
    pub pid: u32,
    /// Percent of the driver's last period in which a kernel of the process ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_percent: Option<u32>,
    /// Bytes of the GPU's memory that the process has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

row! {
    /// A line of `gpus.jsonl`: a GPU of the host over about a second.
    #[derive(Default)]
    pub struct GpuRow {
        /// When the driver was asked, on `CLOCK_MONOTONIC`.
        "ts_ns": Measured "ns", ts_ns: u64;
        /// Time since the reading before, in which the bytes of this line passed; left out in the first line.
        "period_ns": Measured "ns", period_ns: Option<u64>, unless is_none;
        /// Host name.
        "host": Identity, host: String;
        /// NVML's number of the GPU, by PCI address.
        "gpu": Identity, gpu: u32;
        /// UUID as `nvidia-smi -L` shows it, the same in every container.
        "gpu_uuid": Identity, gpu_uuid: Option<String>;
        /// PCI address: `0000:3b:00.0`.
        "bus_id": Identity, bus_id: Option<String>;
        /// Part of the driver's last period (1/6 to 1 s) in which a kernel ran, however small. A kernel of
        /// NCCL that waits counts.
        "sm_percent": Measured "%", sm_percent: Option<u32>;
        /// Part of the same period in which the GPU's memory was read or written.
        "memory_percent": Measured "%", memory_percent: Option<u32>;
        /// Part of `period_ns` in which the GPU ran anything (DCGM's GR_ENGINE_ACTIVE), by the GPU's own
        /// counters (GPM; Hopper and later). A kernel of NCCL that waits counts. This and the next four: with
        /// two decimals; left out in the first line, and where the GPU has no such counters.
        "graphics_active_percent": Measured "%", graphics_active_percent: Option<f64>, unless is_none;
        /// Mean part of the SMs that had a warp (SM_ACTIVE). A kernel of NCCL has one SM for each channel.
        "sm_active_percent": Measured "%", sm_active_percent: Option<f64>, unless is_none;
        /// Mean part of the places for warps that were taken (SM_OCCUPANCY).
        "sm_occupancy_percent": Measured "%", sm_occupancy_percent: Option<f64>, unless is_none;
        /// Part of the cycles in which tensor cores computed (PIPE_TENSOR_ACTIVE). NCCL uses none.
        "tensor_active_percent": Measured "%", tensor_active_percent: Option<f64>, unless is_none;
        /// Part of the cycles in which the GPU's memory was read or written (DRAM_ACTIVE).
        "dram_active_percent": Measured "%", dram_active_percent: Option<f64>, unless is_none;
        /// Bytes sent over all NVLinks of the GPU since the reading before; `null` if it has none, or the
        /// driver does not say.
        "nvlink_sent": Measured "bytes", nvlink_sent: Option<u64>;
        /// Bytes received over all NVLinks, as for `nvlink_sent`.
        "nvlink_received": Measured "bytes", nvlink_received: Option<u64>;
        /// Bytes sent over PCIe since the reading before. Before Hopper by a counter of 32 bits: of more than
        /// 4 GiB it shows the rest, or `null`.
        "pcie_sent": Measured "bytes", pcie_sent: Option<u64>;
        /// Bytes received over PCIe, as for `pcie_sent`.
        "pcie_received": Measured "bytes", pcie_received: Option<u64>;
        /// Clock of the SMs.
        "sm_clock_mhz": Measured "MHz", sm_clock_mhz: Option<u32>;
        /// Reasons why clocks are low, by NVML's names; left out if they are not.
        "throttled_by": Measured, throttled_by: Vec<String>, unless is_empty;
        /// Memory errors that were not corrected, since the driver was loaded; left out if there are none.
        "ecc_uncorrected": Measured, ecc_uncorrected: Option<u64>, unless is_none;
        /// Temperature of the GPU.
        "temperature": Measured "°C", temperature: Option<u32>;
        /// Power that the GPU takes.
        "power_mw": Measured "mW", power_mw: Option<u32>;
        /// Power that the GPU may take.
        "power_limit_mw": Measured "mW", power_limit_mw: Option<u32>;
        /// Processes with compute contexts: objects with `pid` and, where the driver says them, `sm_percent`,
        /// `memory_percent` and `memory_bytes`. `null`: the driver does not say which processes there are.
        "processes": Measured, processes: Option<Vec<GpuProcessRow>>;
        /// Errors (Xids) that the driver reported since the reading before; left out if there are none.
        "xids": Measured, xids: Vec<u64>, unless is_empty;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as versions before and after these keys write them.
    #[test]
    fn a_row_is_read_with_and_without_the_gpu_s_own_counters() {
        let old = r#"{"ts_ns":1,"host":"here","gpu":0,"gpu_uuid":null,"bus_id":null,"sm_percent":99,
            "memory_percent":0,"nvlink_sent":null,"nvlink_received":null,"pcie_sent":null,"pcie_received":null,
            "sm_clock_mhz":1980,"temperature":41,"power_mw":690000,"power_limit_mw":null,"processes":null}"#;
        let mut row: GpuRow = serde_json::from_str(old).unwrap();
        assert_eq!((row.sm_percent, row.tensor_active_percent), (Some(99), None));
        let keys = |row: &GpuRow| serde_json::to_value(row).unwrap();
        assert!(keys(&row).get("tensor_active_percent").is_none());
        row.tensor_active_percent = Some(77.46);
        let mut line = Vec::new();
        row.write_json(&mut line).unwrap();
        assert_eq!(keys(&row)["tensor_active_percent"], 77.46);
        assert_eq!(serde_json::from_slice::<GpuRow>(&line).unwrap(), row);
    }
}
