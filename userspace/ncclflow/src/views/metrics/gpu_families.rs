//! The metrics of the host's GPUs, as their driver reports them. A host without a GPU has none.

use std::fmt;

use flow::schema::GpuRow;
use prometheus_client::registry::Unit;

use super::families::{Families, Labels};
use inspect::gpu::{GpuSamples, GpuTotals, Traffic};

pub(super) fn encode(families: &mut Families<'_>, samples: &GpuSamples) -> fmt::Result {
    let (rows, totals) = (samples.latest(), samples.totals());
    if totals.is_empty() {
        return Ok(());
    }
    let gpus: Vec<Gpu<'_>> = rows
        .iter()
        .map(|row| Gpu {
            row,
            number: row.gpu.to_string(),
            totals: totals.get(&row.gpu).copied().unwrap_or_default(),
        })
        .collect();
    gauges(families, &gpus)?;
    counters(families, &gpus)
}

struct Gpu<'a> {
    row: &'a GpuRow,
    number: String,
    totals: GpuTotals,
}

impl Gpu<'_> {
    fn labels(&self) -> Labels<'_> {
        vec![("gpu", &*self.number), ("gpu_uuid", self.row.gpu_uuid.as_deref().unwrap_or_default())]
    }
}

/// Returns a series for each GPU with that value.
fn each<'g>(
    gpus: &'g [Gpu<'_>],
    value: impl Fn(&GpuRow) -> Option<f64> + 'g,
) -> impl Iterator<Item = (Labels<'g>, f64)> {
    gpus.iter().filter_map(move |gpu| Some((gpu.labels(), value(gpu.row)?)))
}

fn gauges(families: &mut Families<'_>, gpus: &[Gpu<'_>]) -> fmt::Result {
    let ratio = Unit::Other("ratio".to_owned());
    let part = |percent: Option<u32>| percent.map(|percent| f64::from(percent) / 100.0);
    let help = "Measured by the driver: part of its last period in which a kernel ran; one of NCCL that waits counts.";
    families.gauges("gpu_busy", Some(&ratio), help, each(gpus, |row| part(row.sm_percent)))?;
    let help =
        "Measured by the driver: part of its last period in which the GPU's memory was read or written.";
    families.gauges("gpu_memory_busy", Some(&ratio), help, each(gpus, |row| part(row.memory_percent)))?;
    let help = "Measured by the driver: power that the GPU takes.";
    let watts = Unit::Other("watts".to_owned());
    let power = each(gpus, |row| row.power_mw.map(|power| f64::from(power) / 1e3));
    families.gauges("gpu_power", Some(&watts), help, power)?;
    let help = "Measured by the driver: temperature.";
    families.gauges(
        "gpu_temperature",
        Some(&Unit::Celsius),
        help,
        each(gpus, |row| row.temperature.map(f64::from)),
    )?;
    let help = "Measured by the driver: clock of the SMs.";
    let hertz = Unit::Other("hertz".to_owned());
    let clock = each(gpus, |row| row.sm_clock_mhz.map(|clock| f64::from(clock) * 1e6));
    families.gauges("gpu_sm_clock", Some(&hertz), help, clock)?;
    let help = "Why the GPU's clocks are low, by NVML's names; there is no series where they are not.";
    let throttled = gpus.iter().flat_map(|gpu| {
        gpu.row.throttled_by.iter().map(|reason| {
            let mut labels = gpu.labels();
            labels.push(("reason", reason));
            (labels, 1.0)
        })
    });
    families.gauges("gpu_throttled", None, help, throttled)
}

fn counters(families: &mut Families<'_>, gpus: &[Gpu<'_>]) -> fmt::Result {
    fn directions<'g>(gpu: &'g Gpu<'_>, traffic: Traffic) -> [(Labels<'g>, u64); 2] {
        [("send", traffic.sent), ("recv", traffic.received)].map(|(direction, bytes)| {
            let mut labels = gpu.labels();
            labels.push(("direction", direction));
            (labels, bytes)
        })
    }
    let help = "Measured by the driver: bytes over all NVLinks of the GPU since the session began.";
    let nvlink = gpus.iter().filter(|gpu| gpu.row.nvlink_sent.is_some());
    let nvlink = nvlink.flat_map(|gpu| directions(gpu, gpu.totals.nvlink));
    families.counters("gpu_nvlink", Some(&Unit::Bytes), help, nvlink)?;
    let help = "Measured by the driver: bytes over PCIe since the session began.";
    let pcie = gpus.iter().filter(|gpu| gpu.row.pcie_sent.is_some());
    let pcie = pcie.flat_map(|gpu| directions(gpu, gpu.totals.pcie));
    families.counters("gpu_pcie", Some(&Unit::Bytes), help, pcie)?;
    let help = "Errors (Xids) that the driver reported since the session began.";
    let xids = gpus.iter().map(|gpu| (gpu.labels(), gpu.totals.xids));
    families.counters("gpu_xids", None, help, xids)
}
