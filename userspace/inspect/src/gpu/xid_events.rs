//! Errors of GPUs (Xids) from the driver's events, while a recording goes on. Unlike the kernel's log they
//! need no capability.

use std::{mem, ptr};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeXidCriticalError,
};

use super::nvml::{Nvml, SUCCESS};

/// Maximum number of events that are taken at a time.
const MAX_EVENTS: usize = 64;

/// Set in which the driver keeps its events.
pub(super) struct XidEvents {
    set: nvmlEventSet_t,
}

impl Nvml {
    /// Has the driver keep the errors of these GPUs from now on. Some GPUs and old drivers have no events.
    pub(super) fn watch_xids(&mut self) {
        let Ok(create) = &self.lib.nvmlEventSetCreate else { return };
        let Ok(register) = &self.lib.nvmlDeviceRegisterEvents else { return };
        let mut set = ptr::null_mut();
        // SAFETY: writes the handle of a new set, which lives as long as the process.
        if unsafe { create(&raw mut set) } != SUCCESS {
            return;
        }
        let devices = self.devices();
        let registered = devices.filter(|(_, device)| {
            // SAFETY: both handles came from NVML.
            unsafe { register(*device, u64::from(nvmlEventTypeXidCriticalError), set) == SUCCESS }
        });
        if registered.count() > 0 {
            self.events = Some(XidEvents { set });
        }
    }

    /// Takes the errors since the last time: the GPU's handle and the number of the error.
    pub(super) fn take_xids(&self) -> Vec<(nvmlDevice_t, u64)> {
        let mut found = Vec::new();
        let (Some(XidEvents { set }), Ok(wait)) = (&self.events, &self.lib.nvmlEventSetWait_v2) else {
            return found;
        };
        for _ in 0..MAX_EVENTS {
            // SAFETY: integers and a handle, of which 0 is a value.
            let mut event: nvmlEventData_t = unsafe { mem::zeroed() };
            // SAFETY: the set is NVML's, and the event's place lives until the call returns. It does not
            // wait.
            if unsafe { wait(*set, &raw mut event, 0) } != SUCCESS {
                break;
            }
            if event.eventType == u64::from(nvmlEventTypeXidCriticalError) {
                found.push((event.device, event.eventData));
            }
        }
        found
    }
}
