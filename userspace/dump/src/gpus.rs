//! The GPUs of this host over the readings of a dump.

use rustix::time::{ClockId, clock_gettime};

use inspect::gpu::{self, GpuReport, GpuSurvey, kernel_xids};

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
