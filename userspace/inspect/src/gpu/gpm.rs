//! Samples of NVML's GPM (GPU performance monitoring; Hopper and later): what kernels take of a GPU between
//! two samples.

use std::{collections::BTreeMap, mem, ptr};

use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION, NvmlLib, nvmlDevice_t,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_OCCUPANCY as SM_OCCUPANCY,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL as SM_UTIL, nvmlGpmMetricsGet_t, nvmlGpmSample_t,
    nvmlGpmSupport_t,
};

use super::{
    nvml::{NOT_FOUND, SUCCESS},
    reading::Residency,
};

/// The latest sample of each GPU that has them, by its number.
#[derive(Default)]
pub(super) struct GpmSamples(BTreeMap<u32, nvmlGpmSample_t>);

impl GpmSamples {
    /// Takes a sample of a GPU. Returns what ran there since the sample before.
    pub(super) fn take(&mut self, lib: &NvmlLib, index: u32, device: nvmlDevice_t) -> Option<Residency> {
        if !self.0.contains_key(&index) && !is_supported(lib, device) {
            return None;
        }
        let later = sample(lib, device)?;
        let earlier = self.0.insert(index, later)?;
        let residency = between(lib, earlier, later);
        free(lib, earlier);
        residency
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

fn between(lib: &NvmlLib, earlier: nvmlGpmSample_t, later: nvmlGpmSample_t) -> Option<Residency> {
    let function = lib.nvmlGpmMetricsGet.as_ref().ok()?;
    // SAFETY: integers, floating-point numbers and pointers, of which 0 is a value.
    let mut asked: Box<nvmlGpmMetricsGet_t> = Box::new(unsafe { mem::zeroed() });
    asked.version = NVML_GPM_METRICS_GET_VERSION;
    (asked.sample1, asked.sample2) = (earlier, later);
    asked.numMetrics = 2;
    for (metric, id) in asked.metrics.iter_mut().zip([SM_UTIL, SM_OCCUPANCY]) {
        // A metric that NVML does not answer keeps this, and is not taken.
        (metric.metricId, metric.nvmlReturn) = (id, NOT_FOUND);
    }
    // SAFETY: NVML fills as many metrics as it is told, of which there is room for more.
    if unsafe { function(&raw mut *asked) } != SUCCESS {
        return None;
    }
    let value = |number: usize| {
        let metric = asked.metrics.get(number)?;
        (metric.nvmlReturn == SUCCESS && metric.value.is_finite()).then_some(metric.value.clamp(0.0, 100.0))
    };
    Some(Residency { multiprocessors_percent: value(0)?, warps_percent: value(1)? })
}
