//! The metrics of the host's GPUs, as their driver reports them. A host without a GPU has none.

use std::{fmt, sync::Arc};

use flow::schema::GpuRow;
use prometheus_client::{
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

use super::families::Families;
use inspect::gpu::{GpuSamples, GpuTotals, Traffic};

type Labels<'a> = ([(&'static str, u32); 1], [(&'static str, &'a str); 1]);

fn labels(row: &GpuRow) -> Labels<'_> {
    ([("gpu", row.gpu)], [("gpu_uuid", row.gpu_uuid.as_deref().unwrap_or_default())])
}

pub(super) fn encode(families: &mut Families<'_>, samples: &GpuSamples) -> fmt::Result {
    let (rows, totals) = (samples.latest(), samples.totals());
    if totals.is_empty() {
        return Ok(());
    }
    gauges(families, &rows)?;
    counters(families, &rows, |row| totals.get(&row.gpu).copied().unwrap_or_default())
}

/// Returns a series for each GPU with that value.
fn each(
    rows: &[Arc<GpuRow>],
    value: impl Fn(&GpuRow) -> Option<f64>,
) -> impl Iterator<Item = (Labels<'_>, ConstGauge<f64>)> {
    rows.iter().filter_map(move |row| Some((labels(row), ConstGauge::new(value(row)?))))
}

fn gauges(families: &mut Families<'_>, rows: &[Arc<GpuRow>]) -> fmt::Result {
    let [ratio, watts, hertz] = ["ratio", "watts", "hertz"].map(|unit| Unit::Other(unit.to_owned()));
    let part = |percent: Option<u32>| percent.map(|percent| f64::from(percent) / 100.0);
    let help = "Measured by the driver: part of its last period in which a kernel ran; one of NCCL that waits counts.";
    families.family("gpu_busy", Some(&ratio), help, each(rows, |row| part(row.sm_percent)))?;
    let help =
        "Measured by the driver: part of its last period in which the GPU's memory was read or written.";
    families.family("gpu_memory_busy", Some(&ratio), help, each(rows, |row| part(row.memory_percent)))?;
    gpm_gauges(families, &ratio, rows)?;
    let help = "Measured by the driver: power that the GPU takes.";
    let power = each(rows, |row| row.power_mw.map(|power| f64::from(power) / 1e3));
    families.family("gpu_power", Some(&watts), help, power)?;
    let help = "Measured by the driver: temperature.";
    let temperature = each(rows, |row| row.temperature.map(f64::from));
    families.family("gpu_temperature", Some(&Unit::Celsius), help, temperature)?;
    let help = "Measured by the driver: clock of the SMs.";
    let clock = each(rows, |row| row.sm_clock_mhz.map(|clock| f64::from(clock) * 1e6));
    families.family("gpu_sm_clock", Some(&hertz), help, clock)?;
    let help = "Why the GPU's clocks are low, by NVML's names; there is no series where they are not.";
    let throttled = rows.iter().flat_map(|row| {
        let reasons = row.throttled_by.iter();
        reasons.map(|reason| ((labels(row), [("reason", &**reason)]), ConstGauge::new(1.0)))
    });
    families.family("gpu_throttled", None, help, throttled)
}

/// Writes what GPUs say by their own counters, of Hopper and later.
fn gpm_gauges(families: &mut Families<'_>, ratio: &Unit, rows: &[Arc<GpuRow>]) -> fmt::Result {
    type Value = fn(&GpuRow) -> Option<f64>;
    let gauges: [(&str, &str, Value); 5] = [
        ("gpu_graphics_active", "time in which it ran anything", |row| row.graphics_active_percent),
        ("gpu_sm_active", "SMs that had a warp", |row| row.sm_active_percent),
        ("gpu_sm_occupancy", "places for warps that were taken", |row| row.sm_occupancy_percent),
        ("gpu_tensor_active", "cycles in which tensor cores computed", |row| row.tensor_active_percent),
        ("gpu_dram_active", "cycles in which its memory was used", |row| row.dram_active_percent),
    ];
    for (name, what, value) in gauges {
        let help = format!("Measured by the GPU's own counters over the last second: part of the {what}.");
        families.family(name, Some(ratio), &help, each(rows, |row| Some(value(row)? / 100.0)))?;
    }
    Ok(())
}

fn counters(
    families: &mut Families<'_>,
    rows: &[Arc<GpuRow>],
    totals: impl Fn(&GpuRow) -> GpuTotals,
) -> fmt::Result {
    let directions = |row, traffic: Traffic| {
        let bytes = [("send", traffic.sent), ("recv", traffic.received)];
        bytes.map(|(direction, bytes)| ((labels(row), [("direction", direction)]), ConstCounter::new(bytes)))
    };
    let help = "Measured by the driver: bytes over all NVLinks of the GPU since the session began.";
    let nvlink = rows.iter().filter(|row| row.nvlink_sent.is_some());
    let nvlink = nvlink.flat_map(|row| directions(row, totals(row).nvlink));
    families.family("gpu_nvlink", Some(&Unit::Bytes), help, nvlink)?;
    let help = "Measured by the driver: bytes over PCIe since the session began.";
    let pcie = rows.iter().filter(|row| row.pcie_sent.is_some());
    let pcie = pcie.flat_map(|row| directions(row, totals(row).pcie));
    families.family("gpu_pcie", Some(&Unit::Bytes), help, pcie)?;
    let help = "Errors (Xids) that the driver reported since the session began.";
    let xids = rows.iter().map(|row| (labels(row), ConstCounter::new(totals(row).xids)));
    families.family("gpu_xids", None, help, xids)
}
