//! The few driver functions that NCCL asks the runtime for by name.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use super::{INVALID_VALUE, SUCCESS, Status, device, entry, launch, put};

pub(super) fn functions() -> Vec<(&'static str, usize)> {
    vec![
        entry!("cudaGetDriverEntryPoint", get_driver_entry_point),
        entry!("cudaGetDriverEntryPointByVersion", get_driver_entry_point_by_version),
    ]
}

/// The functions that NCCL needs. Every other is "not found", and NCCL does without it.
fn driver_function(name: &CStr) -> Option<usize> {
    let all = [
        entry!("cuInit", cu_init),
        entry!("cuGetErrorString", cu_error_string),
        entry!("cuGetErrorName", cu_error_string),
        entry!("cuDeviceGet", cu_device_get),
        entry!("cuDeviceGetCount", cu_device_get_count),
        entry!("cuDeviceGetAttribute", cu_device_get_attribute),
        entry!("cuDeviceGetUuid", cu_device_get_uuid),
        entry!("cuDevicePrimaryCtxRetain", cu_primary_ctx_retain),
        entry!("cuDevicePrimaryCtxRelease", cu_init),
        entry!("cuCtxGetCurrent", cu_ctx_get_current),
        entry!("cuCtxSetCurrent", cu_ctx_set_current),
        entry!("cuCtxGetDevice", cu_ctx_get_device),
        entry!("cuMemGetAllocationGranularity", cu_mem_get_allocation_granularity),
        entry!("cuLaunchKernel", launch::cu_launch_kernel),
        entry!("cuLaunchKernelEx", launch::cu_launch_kernel_ex),
    ];
    all.iter().find(|(known, _)| known.as_bytes() == name.to_bytes()).map(|(_, address)| *address)
}

unsafe extern "C" fn get_driver_entry_point(
    name: *const c_char,
    place: *mut *const c_void,
    _flags: u64,
    result: *mut c_int,
) -> Status {
    const FOUND: c_int = 0;
    const SYMBOL_NOT_FOUND: c_int = 1;
    if name.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: a C string by CUDA's contract.
    let function = driver_function(unsafe { CStr::from_ptr(name) });
    // SAFETY: the caller's pointers.
    unsafe {
        put(place, function.unwrap_or(0) as *const c_void);
        put(result, if function.is_some() { FOUND } else { SYMBOL_NOT_FOUND });
    }
    SUCCESS
}

unsafe extern "C" fn get_driver_entry_point_by_version(
    name: *const c_char,
    place: *mut *const c_void,
    _version: c_uint,
    flags: u64,
    result: *mut c_int,
) -> Status {
    // SAFETY: the same contract.
    unsafe { get_driver_entry_point(name, place, flags, result) }
}

unsafe extern "C" fn cu_error_string(code: Status, place: *mut *const c_char) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(place, device::error_string(code)) };
    SUCCESS
}

unsafe extern "C" fn cu_device_get(place: *mut c_int, ordinal: c_int) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(place, ordinal) };
    SUCCESS
}

unsafe extern "C" fn cu_device_get_attribute(place: *mut c_int, what: c_int, ordinal: c_int) -> Status {
    // The driver's numbers are the runtime's.
    // SAFETY: the caller's pointer.
    unsafe { put(place, device::attribute(what, ordinal)) };
    SUCCESS
}

unsafe extern "C" fn cu_device_get_uuid(place: *mut [u8; 16], ordinal: c_int) -> Status {
    let mut uuid = *b"ncclflow-bed-\0\0\0";
    uuid[15] = ordinal.to_le_bytes()[0];
    // SAFETY: the caller's pointer.
    unsafe { put(place, uuid) };
    SUCCESS
}

extern "C" fn cu_init() -> Status {
    SUCCESS
}

unsafe extern "C" fn cu_device_get_count(place: *mut c_int) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(place, device::DEVICES) };
    SUCCESS
}

/// The primary context of a device: the device's number plus one, so that it is never null.
fn context_of(ordinal: c_int) -> *mut c_void {
    ptr::without_provenance_mut(ordinal as usize + 1)
}

unsafe extern "C" fn cu_primary_ctx_retain(place: *mut *mut c_void, ordinal: c_int) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(place, context_of(ordinal)) };
    SUCCESS
}

unsafe extern "C" fn cu_ctx_get_current(place: *mut *mut c_void) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(place, context_of(device::current())) };
    SUCCESS
}

extern "C" fn cu_ctx_set_current(context: *mut c_void) -> Status {
    if let Some(ordinal) = context.addr().checked_sub(1) {
        device::set_current(ordinal as c_int);
    }
    SUCCESS
}

unsafe extern "C" fn cu_ctx_get_device(place: *mut c_int) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(place, device::current()) };
    SUCCESS
}

/// NCCL 2.30 asks it before it finds out that there is no virtual memory management.
unsafe extern "C" fn cu_mem_get_allocation_granularity(
    place: *mut usize,
    _properties: *const c_void,
    _option: c_uint,
) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(place, 2 << 20) };
    SUCCESS
}
