//! Samples of NVML's GPM (GPU performance monitoring; Hopper and later): the state of a GPU's own counters,
//! and what it did between two of them.
//!
//! The counters add up, so the mean between two samples is exact however far apart they are: one sample for
//! each reading is enough, and more of them would say nothing more of its period. On an H200 a sample takes
//! 0.04 to 0.09 ms of processor time, the metrics of two samples 1.0 to 1.9 ms, of which `GRAPHICS_UTIL`
//! takes all but 0.01: with a reading a second 1.1 % of a core for eight busy GPUs, 1.5 for idle ones.

use std::{collections::BTreeMap, mem, ptr};

use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION, NvmlLib, nvmlDevice_t,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_ANY_TENSOR_UTIL as TENSOR_UTIL,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL as DRAM_UTIL,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL as GRAPHICS_UTIL,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_RX_PER_SEC as PCIE_RECEIVED,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_TX_PER_SEC as PCIE_SENT,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_OCCUPANCY as SM_OCCUPANCY,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL as SM_UTIL, nvmlGpmMetricsGet_t, nvmlGpmSample_t,
    nvmlGpmSupport_t,
};
use rustix::time::ClockId;

use super::{
    nvml::{NOT_FOUND, SUCCESS},
    reading::Activity,
    report::Traffic,
};
use crate::clock::now_ns;

/// Metrics that are asked for. NVLink's bytes are not among them: the links' counters say them exactly, and
/// that a GPU has no links. Of 40,960 MiB copied over NVLink in 0.3 s they said 40,960, these metrics 43,826.
const METRICS: [u32; 7] =
    [GRAPHICS_UTIL, SM_UTIL, SM_OCCUPANCY, TENSOR_UTIL, DRAM_UTIL, PCIE_SENT, PCIE_RECEIVED];

/// The latest sample of each GPU that has them, by its number, and its time.
#[derive(Default)]
pub(super) struct GpmSamples(BTreeMap<u32, (nvmlGpmSample_t, u64)>);

impl GpmSamples {
    /// Takes a sample of a GPU. Returns what it did since the sample before.
    pub(super) fn take(&mut self, lib: &NvmlLib, index: u32, device: nvmlDevice_t) -> Option<Activity> {
        if !self.0.contains_key(&index) && !is_supported(lib, device) {
            return None;
        }
        let later = (sample(lib, device)?, now_ns(ClockId::Monotonic));
        let earlier = self.0.insert(index, later)?;
        let values = between(lib, earlier.0, later.0);
        free(lib, earlier.0);
        Some(activity(values?, later.1.saturating_sub(earlier.1)))
    }
}

/// Names the values of [`METRICS`] over this time.
fn activity(values: [Option<f64>; METRICS.len()], period_ns: u64) -> Activity {
    let [graphics, sm, occupancy, tensor, dram, sent, received] = values;
    let percent = |value: Option<f64>| value.map(|value| value.clamp(0.0, 100.0));
    #[expect(clippy::cast_precision_loss, reason = "a time between two readings, far below 2^53 ns")]
    let seconds = period_ns as f64 / 1e9;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
    // NVML says MiB a second.
    let bytes = |rate: f64| (rate * seconds * f64::from(1 << 20)) as u64;
    Activity {
        graphics_percent: percent(graphics),
        sm_percent: percent(sm),
        occupancy_percent: percent(occupancy),
        tensor_percent: percent(tensor),
        dram_percent: percent(dram),
        pcie: sent
            .zip(received)
            .map(|(sent, received)| Traffic { sent: bytes(sent), received: bytes(received) }),
    }
}

fn is_supported(lib: &NvmlLib, device: nvmlDevice_t) -> bool {
    let mut support = nvmlGpmSupport_t { version: NVML_GPM_SUPPORT_VERSION, isSupportedDevice: 0 };
    let Ok(function) = &lib.nvmlGpmQueryDeviceSupport else { return false };
    // SAFETY: a device of NVML's, and a place that lives until it returns.
    let code = unsafe { function(device, &raw mut support) };
    code == SUCCESS && support.isSupportedDevice != 0
}

fn sample(lib: &NvmlLib, device: nvmlDevice_t) -> Option<nvmlGpmSample_t> {
    let (alloc, get) = (lib.nvmlGpmSampleAlloc.as_ref().ok()?, lib.nvmlGpmSampleGet.as_ref().ok()?);
    let mut sample: nvmlGpmSample_t = ptr::null_mut();
    // SAFETY: a place that lives until it returns.
    if unsafe { alloc(&raw mut sample) } != SUCCESS || sample.is_null() {
        return None;
    }
    // SAFETY: a device and a sample of NVML's.
    if unsafe { get(device, sample) } != SUCCESS {
        free(lib, sample);
        return None;
    }
    Some(sample)
}

/// Frees a sample, which is not used again.
fn free(lib: &NvmlLib, sample: nvmlGpmSample_t) {
    if let Ok(function) = &lib.nvmlGpmSampleFree {
        // SAFETY: a sample of NVML's that nobody uses after this.
        unsafe { function(sample) };
    }
}

/// Returns the values of [`METRICS`] between two samples; `None` for one that NVML does not know.
fn between(
    lib: &NvmlLib,
    earlier: nvmlGpmSample_t,
    later: nvmlGpmSample_t,
) -> Option<[Option<f64>; METRICS.len()]> {
    let function = lib.nvmlGpmMetricsGet.as_ref().ok()?;
    // SAFETY: integers, floating-point numbers and pointers, of which 0 is a value.
    let mut asked: Box<nvmlGpmMetricsGet_t> = Box::new(unsafe { mem::zeroed() });
    asked.version = NVML_GPM_METRICS_GET_VERSION;
    (asked.sample1, asked.sample2) = (earlier, later);
    asked.numMetrics = u32::try_from(METRICS.len()).ok()?;
    for (metric, id) in asked.metrics.iter_mut().zip(METRICS) {
        // A metric that NVML does not answer keeps this, and is not taken.
        (metric.metricId, metric.nvmlReturn) = (id, NOT_FOUND);
    }
    // SAFETY: NVML fills as many metrics as it is told, of which there is room for more.
    if unsafe { function(&raw mut *asked) } != SUCCESS {
        return None;
    }
    let mut values = [None; METRICS.len()];
    for (value, metric) in values.iter_mut().zip(&asked.metrics) {
        let is_known = metric.nvmlReturn == SUCCESS && metric.value.is_finite();
        *value = is_known.then_some(metric.value);
    }
    Some(values)
}
