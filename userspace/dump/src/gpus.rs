//! The GPUs of a dump: those of this host over the readings, and as text.

use std::{collections::BTreeSet, fmt::Write as _};

use rustix::time::{ClockId, clock_gettime};

use super::{DumpReport, ProcessId};
use flow::text::write_paragraph;
use inspect::gpu::{self, GpuReport, GpuSurvey, Traffic, kernel_xids};

/// Returns the reports of the GPUs, and remarks on what is not known of them. A host without an NVIDIA driver
/// has neither.
pub(super) fn of_host(host: &str, survey: GpuSurvey) -> (Vec<GpuReport>, Vec<String>) {
    let GpuSurvey { readings, missing } = survey;
    let remark = |what: String| format!("{host}: {what}");
    let mut remarks: Vec<String> = missing.map(remark).into_iter().collect();
    if readings.is_empty() {
        return (Vec::new(), remarks);
    }
    remarks.extend(gpu::not_known().map(|what| remark(what.to_owned())));
    let xids = kernel_xids().unwrap_or_else(|why| {
        remarks.push(remark(why));
        Vec::new()
    });
    // The clock of the kernel's log stands while the host is suspended.
    let now = clock_gettime(ClockId::Monotonic);
    #[expect(clippy::cast_precision_loss, reason = "seconds since the start")]
    let uptime = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
    (gpu::over(host, &readings, &xids, uptime), remarks)
}

/// Returns the GPUs that a rank uses, and those with errors.
pub(super) fn used(report: &DumpReport) -> Vec<&GpuReport> {
    let ranks = report.communicators.iter().flat_map(|communicator| &communicator.ranks);
    let used: BTreeSet<_> = ranks.map(|rank| (&rank.host, rank.bus_id.as_ref())).collect();
    let is_used = |gpu: &&GpuReport| used.contains(&(&gpu.host, gpu.bus_id.as_ref())) || !gpu.xids.is_empty();
    report.gpus.iter().filter(is_used).collect()
}

/// Tells whether a rank of one of these processes uses the GPU.
pub(super) fn is_of(gpu: &GpuReport, report: &DumpReport, processes: &BTreeSet<ProcessId<'_>>) -> bool {
    let mut ranks = report.communicators.iter().flat_map(|communicator| &communicator.ranks);
    ranks.any(|rank| {
        (&rank.host, rank.bus_id.as_ref()) == (&gpu.host, gpu.bus_id.as_ref())
            && processes.contains(&rank.process())
    })
}

/// Tells whether something is the matter with a GPU.
pub(super) fn is_remarkable(gpu: &GpuReport) -> bool {
    let errors = gpu.ecc_uncorrected.is_some_and(|errors| errors > 0);
    errors || !gpu.xids.is_empty() || !gpu.throttled_by.is_empty()
}

pub(super) fn write(out: &mut String, gpus: &[&GpuReport]) -> std::fmt::Result {
    for gpu in gpus {
        write_paragraph(out, &line(gpu), 0)?;
        if let Some(xid) = gpu.xids.last() {
            let ago = xid.seconds_ago.round();
            write_paragraph(out, &format!("Xid {} {ago} s ago: {}", xid.xid, xid.text), 2)?;
        }
    }
    Ok(())
}

/// Describes a GPU:
/// `GPU 0 (0000:3b:00.0) on host: 99 % busy, 0 % memory, NVLink still, 120 of 700 W, 41 of 87 °C`
fn line(gpu: &GpuReport) -> String {
    let bus_id = gpu.bus_id.as_deref().unwrap_or("no PCI address");
    let used = match (gpu.used.sm_percent, gpu.used.memory_percent) {
        (Some(sm), Some(memory)) => format!(" {sm} % busy, {memory} % memory"),
        (Some(sm), None) => format!(" {sm} % busy"),
        (None, _) if !gpu.instances.is_empty() => {
            format!(" divided into {} instances (MIG), how busy is not known", gpu.instances.len())
        }
        (None, _) => " how busy is not known".to_owned(),
    };
    let mut line = format!("GPU {} ({bus_id}) on {}:{used}", gpu.index, gpu.host);
    match gpu.nvlink {
        None => {}
        Some(Traffic { sent: 0, received: 0 }) => line.push_str(", NVLink still"),
        Some(Traffic { sent, received }) => {
            _ = write!(line, ", NVLink {} MiB out, {} MiB in", sent >> 20, received >> 20);
        }
    }
    if let (Some(power), Some(limit)) = (gpu.power_watts, gpu.power_limit_watts) {
        _ = write!(line, ", {power:.0} of {limit:.0} W");
    }
    if let (Some(now), Some(limit)) = (gpu.temperature, gpu.temperature_limit) {
        _ = write!(line, ", {now} of {limit} °C");
    }
    if !gpu.throttled_by.is_empty() {
        _ = write!(line, ", slowed by {}", gpu.throttled_by.join(", "));
    }
    if let Some(errors) = gpu.ecc_uncorrected.filter(|errors| *errors > 0) {
        _ = write!(line, ", {errors} uncorrected memory errors");
    }
    line
}
