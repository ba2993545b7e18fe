//! A reading of a GPU as a row of `gpus.jsonl`.

use flow::schema::{GpuProcessRow, GpuRow};

use super::{
    reading::{GpuProcess, GpuReading},
    report::Traffic,
};

/// Makes the row of `reading`. `before` is the reading of all GPUs before this one; `ts_ns`, the time at
/// which this one was asked for.
pub(super) fn row_of(reading: &GpuReading, before: &[GpuReading], host: &str, ts_ns: u64) -> GpuRow {
    let before = before.iter().find(|other| other.is_same_gpu(reading));
    let moved =
        |count: fn(&GpuReading) -> Option<[u64; 2]>| Traffic::between(count(before?)?, count(reading)?);
    let nvlink = moved(|reading| reading.nvlink);
    let (gpu, activity) = (&reading.gpu, &reading.activity);
    let pcie = activity.pcie.or_else(|| moved(|reading| reading.pcie));
    GpuRow {
        ts_ns,
        period_ns: before.map(|before| reading.at_ns.saturating_sub(before.at_ns)),
        host: host.to_owned(),
        gpu: gpu.index,
        gpu_uuid: gpu.uuid.clone(),
        bus_id: gpu.bus_id.clone(),
        sm_percent: gpu.used.sm_percent,
        memory_percent: gpu.used.memory_percent,
        graphics_active_percent: rounded(activity.graphics_percent),
        sm_active_percent: rounded(activity.sm_percent),
        sm_occupancy_percent: rounded(activity.occupancy_percent),
        tensor_active_percent: rounded(activity.tensor_percent),
        dram_active_percent: rounded(activity.dram_percent),
        nvlink_sent: nvlink.map(|traffic| traffic.sent),
        nvlink_received: nvlink.map(|traffic| traffic.received),
        pcie_sent: pcie.map(|traffic| traffic.sent),
        pcie_received: pcie.map(|traffic| traffic.received),
        sm_clock_mhz: gpu.sm_clock_mhz,
        throttled_by: gpu.throttled_by.clone(),
        ecc_uncorrected: gpu.ecc_uncorrected.filter(|errors| *errors > 0),
        temperature: gpu.temperature,
        power_mw: reading.power,
        power_limit_mw: reading.power_limit,
        processes: gpu.processes.as_ref().map(|all| all.iter().map(process_row).collect()),
        xids: reading.xids.clone(),
    }
}

/// Rounds to two decimals: what NVML says beyond them is noise.
fn rounded(percent: Option<f64>) -> Option<f64> {
    percent.map(|percent| (percent * 100.0).round() / 100.0)
}

fn process_row(process: &GpuProcess) -> GpuProcessRow {
    GpuProcessRow {
        pid: process.pid,
        sm_percent: process.used.sm_percent,
        memory_percent: process.used.memory_percent,
        memory_bytes: process.memory_bytes,
    }
}
