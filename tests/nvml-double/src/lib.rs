//! A double of NVML for machines without a GPU: the functions that NCCL looks up by name and, where a file says
//! what the GPUs do (`states.rs`), those that ncclflow asks.
//!
//! It reports [`DEVICES`] devices of compute capability 9.0 without NVLink, peer access, fabric or
//! confidential computing. The PCI addresses agree with the bed's replacement of the CUDA runtime
//! (`tests/bed/src/runtime/device.rs`): device `i` sits on bus [`FIRST_BUS`]` + i`.

pub mod events;
pub mod gpm;
pub mod states;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

const DEVICES: usize = 32;
const FIRST_BUS: usize = 0x10;
const PCI_DEVICE_AND_VENDOR: c_uint = 0x2330_10de;

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;
const P2P_STATUS_NOT_SUPPORTED: c_int = 5;

/// A device handle is the device's index plus one, so that it is never null.
fn handle(index: usize) -> *mut c_void {
    ptr::without_provenance_mut(index + 1)
}

fn index_of(device: *mut c_void) -> Option<usize> {
    device.addr().checked_sub(1).filter(|index| *index < DEVICES)
}

fn bus_id(index: usize, domain_digits: usize) -> String {
    format!("{:0domain_digits$x}:{:02x}:00.0", 0, FIRST_BUS + index)
}

/// Writes `value` when the caller gave a place for it.
///
/// # Safety
/// `place` is null or valid for a write of `T`.
unsafe fn put<T>(place: *mut T, value: T) -> c_int {
    if place.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, and valid by this function's contract.
    unsafe { place.write(value) };
    SUCCESS
}

fn to_uint(value: usize) -> c_uint {
    c_uint::try_from(value).unwrap_or(c_uint::MAX)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    let text: &CStr = match code {
        SUCCESS => c"success",
        INVALID_ARGUMENT => c"invalid argument",
        NOT_SUPPORTED => c"not supported by the NVML double",
        NOT_FOUND => c"not found",
        _ => c"unknown error",
    };
    text.as_ptr()
}

/// # Safety
/// As in NVML: `count` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(count, to_uint(DEVICES)) }
}

/// # Safety
/// As in NVML: `count` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount(count: *mut c_uint) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(count, to_uint(DEVICES)) }
}

/// # Safety
/// As in NVML: `device` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut *mut c_void) -> c_int {
    match usize::try_from(index) {
        // SAFETY: the caller's pointer.
        Ok(index) if index < DEVICES => unsafe { put(device, handle(index)) },
        _ => INVALID_ARGUMENT,
    }
}

/// # Safety
/// As in NVML: `device` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut *mut c_void) -> c_int {
    // SAFETY: the same contract.
    unsafe { nvmlDeviceGetHandleByIndex_v2(index, device) }
}

/// # Safety
/// As in NVML: `bus_id` is a C string, `device` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    wanted: *const c_char,
    device: *mut *mut c_void,
) -> c_int {
    if wanted.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, and a C string by NVML's contract.
    let wanted = unsafe { CStr::from_ptr(wanted) }.to_string_lossy().to_lowercase();
    // Domains have four or eight digits, depending on who formats them.
    let wanted = wanted.trim_start_matches('0');
    match (0..DEVICES).find(|index| bus_id(*index, 1).trim_start_matches('0') == wanted) {
        // SAFETY: the caller's pointer.
        Some(index) => unsafe { put(device, handle(index)) },
        None => NOT_FOUND,
    }
}

/// # Safety
/// As in NVML: `bus_id` is a C string, `device` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId(
    wanted: *const c_char,
    device: *mut *mut c_void,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { nvmlDeviceGetHandleByPciBusId_v2(wanted, device) }
}

/// # Safety
/// As in NVML: `index` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(device: *mut c_void, index: *mut c_uint) -> c_int {
    match index_of(device) {
        // SAFETY: the caller's pointer.
        Some(found) => unsafe { put(index, to_uint(found)) },
        None => INVALID_ARGUMENT,
    }
}

/// # Safety
/// As in NVML: the pointers are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    _device: *mut c_void,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_int {
    // SAFETY: the caller's pointers.
    unsafe { put(major, 9) | put(minor, 0) }
}

/// # Safety
/// As in NVML: `status` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    _first: *mut c_void,
    _second: *mut c_void,
    _what: c_int,
    status: *mut c_int,
) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(status, P2P_STATUS_NOT_SUPPORTED) }
}

/// NVML's `nvmlPciInfo_t` as `nvmlDeviceGetPciInfo_v3` fills it.
#[repr(C)]
#[derive(Debug)]
pub struct PciInfo {
    bus_id_legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_and_vendor: c_uint,
    subsystem: c_uint,
    bus_id: [u8; 32],
}

/// NVML's `nvmlPciInfoExt_v1_t`.
#[repr(C)]
#[derive(Debug)]
pub struct PciInfoExt {
    version: c_uint,
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_and_vendor: c_uint,
    subsystem: c_uint,
    base_class: c_uint,
    sub_class: c_uint,
    bus_id: [u8; 32],
}

fn text<const N: usize>(value: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let length = value.len().min(N - 1);
    bytes[..length].copy_from_slice(&value.as_bytes()[..length]);
    bytes
}

/// # Safety
/// As in NVML: `info` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: *mut c_void, info: *mut PciInfo) -> c_int {
    let Some(index) = index_of(device) else { return INVALID_ARGUMENT };
    let value = PciInfo {
        bus_id_legacy: text(&bus_id(index, 4)),
        domain: 0,
        bus: to_uint(FIRST_BUS + index),
        device: 0,
        device_and_vendor: PCI_DEVICE_AND_VENDOR,
        subsystem: 0,
        bus_id: text(&bus_id(index, 8)),
    };
    // SAFETY: the caller's pointer.
    unsafe { put(info, value) }
}

/// # Safety
/// As in NVML: `info` is null, or writable with its version filled in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfoExt(device: *mut c_void, info: *mut PciInfoExt) -> c_int {
    let Some(index) = index_of(device) else { return INVALID_ARGUMENT };
    if info.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, and readable by NVML's contract.
    let version = unsafe { (*info).version };
    let value = PciInfoExt {
        version,
        domain: 0,
        bus: to_uint(FIRST_BUS + index),
        device: 0,
        device_and_vendor: PCI_DEVICE_AND_VENDOR,
        subsystem: 0,
        base_class: 3,
        sub_class: 2,
        bus_id: text(&bus_id(index, 8)),
    };
    // SAFETY: the caller's pointer.
    unsafe { put(info, value) }
}

/// # Safety
/// As in NVML: `speed` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPcieLinkMaxSpeed(_device: *mut c_void, speed: *mut c_uint) -> c_int {
    // SAFETY: the caller's pointer. 32 GT/s: PCIe generation 5.
    unsafe { put(speed, 32_000) }
}

/// # Safety
/// As in NVML: `generation` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrPcieLinkGeneration(
    _device: *mut c_void,
    generation: *mut c_uint,
) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(generation, 5) }
}

/// # Safety
/// As in NVML: `width` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrPcieLinkWidth(_device: *mut c_void, width: *mut c_uint) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(width, 16) }
}

/// # Safety
/// `place` is null or has room for `length` bytes.
unsafe fn put_text(place: *mut c_char, length: c_uint, value: &CStr) -> c_int {
    let bytes = value.to_bytes_with_nul();
    if place.is_null() || usize::try_from(length).unwrap_or(0) < bytes.len() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's buffer is long enough.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), place, bytes.len()) };
    SUCCESS
}

/// # Safety
/// As in NVML: `name` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(_device: *mut c_void, name: *mut c_char, length: c_uint) -> c_int {
    // SAFETY: the caller's buffer.
    unsafe { put_text(name, length, c"ncclflow bed GPU") }
}

/// # Safety
/// As in NVML: `version` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> c_int {
    // SAFETY: the caller's buffer.
    unsafe { put_text(version, length, c"580.00") }
}

/// Functions that exist and answer "not supported", whatever their arguments are: under the C calling
/// convention of x86-64 and aarch64 a callee may ignore them.
macro_rules! not_supported {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            NOT_SUPPORTED
        }
    )*};
}

not_supported! {
    nvmlDeviceGetNvLinkState
    nvmlDeviceGetNvLinkRemotePciInfo
    nvmlDeviceGetNvLinkRemotePciInfo_v2
    nvmlDeviceGetNvLinkCapability
    nvmlDeviceGetNvLinkRemoteDeviceType
    nvmlDeviceGetMemoryErrorCounter
    nvmlDeviceGetGpuFabricInfoV
    nvmlDeviceGetPlatformInfo
    nvmlSystemGetConfComputeState
    nvmlSystemGetConfComputeSettings
}
