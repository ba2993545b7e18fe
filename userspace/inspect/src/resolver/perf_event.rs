//! Opening of the kernel's performance events (perf_event_open(2)).

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd},
};

use aya_obj::generated::{PERF_FLAG_FD_CLOEXEC, perf_event_attr, perf_sw_ids, perf_type_id};

/// Opens an event that follows the calling thread and counts nothing.
pub(super) fn event_of_own_thread() -> io::Result<OwnedFd> {
    let mut attributes = time_on_processors();
    attributes.set_disabled(1);
    attributes.set_exclude_kernel(1);
    open_event(&mut attributes, 0)
}

/// Attributes of an event that counts time on processors, and takes no sample.
pub(crate) fn time_on_processors() -> perf_event_attr {
    // SAFETY: integers, and unions of integers, for which zeroes are a value.
    let mut attributes: perf_event_attr = unsafe { std::mem::zeroed() };
    attributes.size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
    attributes.type_ = perf_type_id::PERF_TYPE_SOFTWARE as u32;
    attributes.config = perf_sw_ids::PERF_COUNT_SW_TASK_CLOCK as u64;
    attributes.set_exclude_hv(1);
    attributes
}

/// Opens an event of `thread`; 0 is the calling one.
pub(crate) fn open_event(attributes: &mut perf_event_attr, thread: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: the struct is valid and has its own size in it; the kernel reads it and gives a descriptor.
    let event = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw mut *attributes, thread, -1, -1, PERF_FLAG_FD_CLOEXEC)
    };
    let event = i32::try_from(event).ok().filter(|event| *event >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(event) })
}
