//! A reading of a GPU as a row of `gpus.jsonl`.

use flow::schema::{GpuProcessRow, GpuRow};

use super::{
    reading::{GpuProcess, GpuReading},
    report::Traffic,
};

/// Makes the row of `gpu`. `before` is the reading of all GPUs before this one; `ts_ns`, the time at which
/// this one was asked for.
pub(super) fn row_of(gpu: &GpuReading, before: &[GpuReading], host: &str, ts_ns: u64) -> GpuRow {
    let before = before.iter().find(|other| other.is_same_gpu(gpu));
    let moved = |count: fn(&GpuReading) -> Option<[u64; 2]>| Traffic::between(count(before?)?, count(gpu)?);
    let (nvlink, pcie) = (moved(|gpu| gpu.nvlink), moved(|gpu| gpu.pcie));
    let period = before.map(|before| gpu.at.saturating_duration_since(before.at));
    GpuRow {
        ts_ns,
        period_ns: period.and_then(|period| u64::try_from(period.as_nanos()).ok()),
        host: host.to_owned(),
        gpu: gpu.index,
        gpu_uuid: gpu.uuid.clone(),
        bus_id: gpu.bus_id.clone(),
        sm_percent: gpu.used.sm_percent,
        memory_percent: gpu.used.memory_percent,
        nvlink_sent: nvlink.map(|traffic| traffic.sent),
        nvlink_received: nvlink.map(|traffic| traffic.received),
        pcie_sent: pcie.map(|traffic| traffic.sent),
        pcie_received: pcie.map(|traffic| traffic.received),
        sm_clock_mhz: gpu.sm_clock_mhz,
        throttled_by: gpu.throttled_by.clone(),
        ecc_uncorrected: gpu.ecc_uncorrected.filter(|errors| *errors > 0),
        temperature: gpu.temperature,
        power_mw: gpu.power,
        power_limit_mw: gpu.power_limit,
        processes: gpu.processes.as_ref().map(|all| all.iter().map(process_row).collect()),
        xids: gpu.xids.clone(),
    }
}

fn process_row(process: &GpuProcess) -> GpuProcessRow {
    GpuProcessRow {
        pid: process.pid,
        sm_percent: process.used.sm_percent,
        memory_percent: process.used.memory_percent,
        memory_bytes: process.memory_bytes,
    }
}
