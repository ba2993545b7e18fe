//! Devices: as many as a node may have, distinct PCI addresses, compute capability 9.0, no peer
//! access, no virtual memory management, no memory pools, no GPUDirect: so NCCL itself turns off
//! what the bed cannot emulate.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use super::{INVALID_VALUE, NOT_FOUND, NOT_READY, PEER_ALREADY_ENABLED, SUCCESS, Status, entry, put};

/// The NVML double (`tests/nvml-double`) has as many, at the same addresses.
pub(crate) const DEVICES: c_int = 32;
const FIRST_BUS: c_int = 0x10;
const TOTAL_MEMORY: usize = 80 << 30;

/// The driver's version as CUDA writes it, 12080 for 12.8.
static VERSION: AtomicI32 = AtomicI32::new(12080);

thread_local! {
    static CURRENT: Cell<c_int> = const { Cell::new(0) };
}

pub(crate) fn set_version(version: c_int) {
    VERSION.store(version, Ordering::Relaxed);
}

pub(crate) fn set_current(device: c_int) {
    CURRENT.set(device);
}

pub(crate) fn current() -> c_int {
    CURRENT.get()
}

pub(super) fn functions() -> Vec<(&'static str, usize)> {
    vec![
        entry!("cudaSetDevice", set_device),
        entry!("cudaGetDevice", get_device),
        entry!("cudaGetDeviceCount", get_device_count),
        entry!("cudaDriverGetVersion", get_version),
        entry!("cudaRuntimeGetVersion", get_version),
        entry!("cudaGetLastError", no_error),
        entry!("cudaPeekAtLastError", no_error),
        entry!("cudaGetErrorString", error_string),
        entry!("cudaGetErrorName", error_string),
        entry!("cudaDeviceGetAttribute", get_attribute),
        entry!("cudaDeviceGetPCIBusId", get_pci_bus_id),
        entry!("cudaDeviceGetByPCIBusId", get_by_pci_bus_id),
        entry!("cudaDeviceCanAccessPeer", can_access_peer),
        entry!("cudaDeviceEnablePeerAccess", enable_peer_access),
        entry!("cudaDeviceDisablePeerAccess", no_error),
        entry!("cudaDeviceSetLimit", no_error),
        // CUDA 12 has both names, with one layout up to the fields that are written here; CUDA 13 has the
        // first.
        entry!("cudaGetDeviceProperties", get_properties),
        entry!("cudaGetDeviceProperties_v2", get_properties),
    ]
}

extern "C" fn no_error() -> Status {
    SUCCESS
}

extern "C" fn set_device(device: c_int) -> Status {
    if !(0..DEVICES).contains(&device) {
        return INVALID_VALUE;
    }
    set_current(device);
    SUCCESS
}

unsafe extern "C" fn get_device(device: *mut c_int) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(device, current()) };
    SUCCESS
}

unsafe extern "C" fn get_device_count(count: *mut c_int) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(count, DEVICES) };
    SUCCESS
}

unsafe extern "C" fn get_version(version: *mut c_int) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(version, VERSION.load(Ordering::Relaxed)) };
    SUCCESS
}

pub(super) extern "C" fn error_string(code: Status) -> *const c_char {
    let text: &CStr = match code {
        SUCCESS => c"no error",
        INVALID_VALUE => c"invalid argument",
        NOT_FOUND => c"named symbol not found",
        NOT_READY => c"device not ready",
        PEER_ALREADY_ENABLED => c"peer access is already enabled",
        801 => c"operation not supported by the bed",
        _ => c"an error of the bed",
    };
    text.as_ptr()
}

/// `enum cudaDeviceAttr`, the numbers that CUDA documents and NCCL asks for.
pub(super) fn attribute(what: c_int, device: c_int) -> c_int {
    match what {
        8 | 81 | 97 => 228 << 10, // shared memory per block, per multiprocessor, per block with opt-in
        10 => 32,                 // warp size
        16 => 16,                 // multiprocessors
        33 => FIRST_BUS + device, // PCI bus
        75 => 9,                  // compute capability
        1 => 1024,                // threads per block
        39 => 2048,               // threads per multiprocessor
        // PCI device and domain, virtual memory management, pools, GPUDirect, DMA-BUF, multicast and all the
        // rest.
        _ => 0,
    }
}

unsafe extern "C" fn get_attribute(value: *mut c_int, what: c_int, device: c_int) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(value, attribute(what, device)) };
    SUCCESS
}

fn bus_id(device: c_int) -> String {
    format!("0000:{:02x}:00.0", FIRST_BUS + device)
}

unsafe extern "C" fn get_pci_bus_id(place: *mut c_char, length: c_int, device: c_int) -> Status {
    let id = bus_id(device);
    if place.is_null() || usize::try_from(length).unwrap_or(0) <= id.len() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's buffer has `length` bytes, more than the text and its NUL.
    unsafe {
        ptr::copy_nonoverlapping(id.as_ptr().cast(), place, id.len());
        place.add(id.len()).write(0);
    }
    SUCCESS
}

unsafe extern "C" fn get_by_pci_bus_id(device: *mut c_int, wanted: *const c_char) -> Status {
    if wanted.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: a C string by CUDA's contract.
    let wanted = unsafe { CStr::from_ptr(wanted) }.to_string_lossy().to_lowercase();
    let Some(found) = (0..DEVICES).find(|device| wanted.ends_with(&bus_id(*device)[4..])) else {
        return INVALID_VALUE;
    };
    // SAFETY: the caller's pointer.
    unsafe { put(device, found) };
    SUCCESS
}

unsafe extern "C" fn can_access_peer(answer: *mut c_int, _device: c_int, _peer: c_int) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(answer, 0) };
    SUCCESS
}

extern "C" fn enable_peer_access(_peer: c_int, _flags: c_uint) -> Status {
    PEER_ALREADY_ENABLED
}

unsafe extern "C" fn get_properties(properties: *mut c_void, _device: c_int) -> Status {
    /// The head of `cudaDeviceProp`, which CUDA 12 (1032 bytes) and CUDA 13 (1008 bytes) share. Nothing is
    /// written behind it: the two differ there, and NCCL reads no more.
    #[repr(C)]
    struct Head {
        name: [u8; 256],
        identity: [u8; 32],
        total_memory: usize,
        limits: [u8; 64],
        major: c_int,
        minor: c_int,
    }
    let mut name = [0; 256];
    name[..16].copy_from_slice(b"ncclflow bed GPU");
    let head =
        Head { name, identity: [0; 32], total_memory: TOTAL_MEMORY, limits: [0; 64], major: 9, minor: 0 };
    // SAFETY: the caller's struct is longer than its head.
    unsafe { put(properties.cast(), head) };
    SUCCESS
}
