//! Errors (Xids) as events: a GPU has one whenever the seventh word of its slot (`states.rs`) changes to a number.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{DEVICES, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, handle, put, states};

const TIMEOUT: c_int = 10;
const XID: c_ulonglong = 8;

/// What was told last, by device.
static TOLD: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];

/// `nvmlEventData_t`
#[repr(C)]
#[derive(Debug)]
pub struct EventData {
    device: *mut c_void,
    kind: c_ulonglong,
    data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// # Safety
/// As in NVML: `set` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(set: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's pointer. No set is ever looked at.
    unsafe { put(set, ptr::dangling_mut()) }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(_: *mut c_void, kinds: c_ulonglong, _: *mut c_void) -> c_int {
    if kinds == XID { SUCCESS } else { INVALID_ARGUMENT }
}

/// Does not wait.
///
/// # Safety
/// As in NVML: `event` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(_: *mut c_void, event: *mut EventData, _: c_uint) -> c_int {
    for (index, told) in TOLD.iter().enumerate() {
        let Some(xid) = states::xid(index) else { return NOT_SUPPORTED };
        if xid != 0 && told.swap(xid, Ordering::Relaxed) != xid {
            let device = handle(index);
            let data = EventData {
                device,
                kind: XID,
                data: xid,
                gpu_instance: u32::MAX,
                compute_instance: u32::MAX,
            };
            // SAFETY: the caller's pointer.
            return unsafe { put(event, data) };
        }
    }
    TIMEOUT
}
