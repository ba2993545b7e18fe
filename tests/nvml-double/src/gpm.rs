//! GPM: samples of what a GPU does, as drivers of Hopper and later have them. A sample is a copy of the GPU's state.
//! A metric that the file tells is the mean of what it told at both samples; one that it counts is that of the time
//! between them; another one is that of the later sample.
//!
//! With `NVML_DOUBLE_WITHOUT_GPM` set, GPUs are older and have none.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::time::Instant;

use super::states::{State, state};
use super::{INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, put};

const GRAPHICS_UTIL: c_uint = 1;
const SM_UTIL: c_uint = 2;
const SM_OCCUPANCY: c_uint = 3;
const ANY_TENSOR_UTIL: c_uint = 5;
const DRAM_BW_UTIL: c_uint = 10;
const PCIE_TX_PER_SEC: c_uint = 20;
const PCIE_RX_PER_SEC: c_uint = 21;

/// `nvmlGpmSupport_t`
#[repr(C)]
#[derive(Debug)]
pub struct Support {
    version: c_uint,
    is_supported: c_uint,
}

/// `nvmlGpmMetric_t`
#[repr(C)]
#[derive(Debug)]
pub struct Metric {
    id: c_uint,
    answer: c_int,
    value: f64,
    names: [*mut c_char; 3],
}

/// `nvmlGpmMetricsGet_t` up to its list.
#[repr(C)]
#[derive(Debug)]
pub struct MetricsGet {
    version: c_uint,
    count: c_uint,
    earlier: *const Sample,
    later: *const Sample,
}

/// A sample, which NVML keeps to itself.
#[derive(Debug, Default)]
pub struct Sample(Option<(State, Instant)>);

/// # Safety
/// As in NVML: `support` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmQueryDeviceSupport(device: *mut c_void, support: *mut Support) -> c_int {
    let has = std::env::var_os("NVML_DOUBLE_WITHOUT_GPM").is_none() && state(device).is_some();
    // SAFETY: the caller's pointer.
    unsafe { put(support, Support { version: 1, is_supported: has.into() }) }
}

/// # Safety
/// As in NVML: `sample` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleAlloc(sample: *mut *mut Sample) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(sample, Box::into_raw(Box::default())) }
}

/// # Safety
/// As in NVML: `sample` came from `nvmlGpmSampleAlloc` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleFree(sample: *mut Sample) -> c_int {
    if sample.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, made by `nvmlGpmSampleAlloc`, and the caller's last use.
    drop(unsafe { Box::from_raw(sample) });
    SUCCESS
}

/// # Safety
/// As in NVML: `sample` came from `nvmlGpmSampleAlloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleGet(device: *mut c_void, sample: *mut Sample) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(sample, Sample(state(device).map(|state| (state, Instant::now())))) }
}

/// # Safety
/// As in NVML: `get` is null, or has two samples and as many metrics behind it as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmMetricsGet(get: *mut MetricsGet) -> c_int {
    if get.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, and the caller's.
    let (version, count, earlier, later) =
        unsafe { ((*get).version, (*get).count, (*get).earlier, (*get).later) };
    if version != 1 || earlier.is_null() || later.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the list is behind the head, which is as long as its alignment wants.
    let metrics = unsafe { std::slice::from_raw_parts_mut(get.add(1).cast::<Metric>(), count as usize) };
    // SAFETY: the caller's samples.
    let (Some(earlier), Some(later)) = (unsafe { ((*earlier).0, (*later).0) }) else { return NOT_SUPPORTED };
    for metric in metrics {
        let value = value(metric.id, earlier, later);
        metric.answer = if value.is_some() { SUCCESS } else { NOT_SUPPORTED };
        metric.value = value.unwrap_or(0.0);
    }
    SUCCESS
}

fn value(metric: c_uint, (earlier, begin): (State, Instant), (later, end): (State, Instant)) -> Option<f64> {
    let (multiprocessors, warps) = later.taken();
    let told_or = |place: usize, of_kernels: f64| {
        let told = earlier.told(place).zip(later.told(place));
        let told = told.map(|(earlier, later)| f64::midpoint(earlier, later));
        Some(told.or_else(|| later.counted(earlier, place)).unwrap_or(of_kernels))
    };
    // MiB a second.
    let rate = |direction: usize| {
        let bytes = later.pcie()[direction].checked_sub(earlier.pcie()[direction])?;
        let kib = f64::from(u32::try_from(bytes >> 10).ok()?);
        Some(kib / 1024.0 / end.duration_since(begin).as_secs_f64())
    };
    match metric {
        GRAPHICS_UTIL => told_or(0, if multiprocessors > 0.0 { 100.0 } else { 0.0 }),
        SM_UTIL => told_or(1, multiprocessors),
        SM_OCCUPANCY => told_or(2, warps),
        // No kernel of NCCL uses tensor cores; what else computes uses them as much as memory.
        ANY_TENSOR_UTIL => told_or(3, later.memory()),
        DRAM_BW_UTIL => told_or(4, later.memory()),
        PCIE_TX_PER_SEC => rate(0),
        PCIE_RX_PER_SEC => rate(1),
        _ => None,
    }
}
