//! Performance events: perf_event_open(2).

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd},
};

/// `PERF_FLAG_FD_CLOEXEC`, include/uapi/linux/perf_event.h.
const FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER3`; [`open`] fills in `size`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attributes {
    pub(crate) kind: u32,
    pub(crate) size: u32,
    pub(crate) config: u64,
    pub(crate) sample_period: u64,
    pub(crate) sample_type: u64,
    pub(crate) read_format: u64,
    pub(crate) flags: u64,
    pub(crate) wakeup_events: u32,
    pub(crate) bp_type: u32,
    pub(crate) config1: u64,
    pub(crate) config2: u64,
    pub(crate) branch_sample_type: u64,
    pub(crate) sample_regs_user: u64,
    pub(crate) sample_stack_user: u32,
    pub(crate) clockid: i32,
}

/// Opens an event of a thread, on whatever CPU it runs; 0 is the caller. It goes with the descriptor.
///
/// # Safety
/// Where this kind of event takes `config1` or `config2` for an address, what lies there is what it wants.
pub(crate) unsafe fn open(attributes: &Attributes, thread: u32) -> io::Result<OwnedFd> {
    let size = u32::try_from(size_of::<Attributes>()).unwrap_or(0);
    let mut attributes = Attributes { size, ..*attributes };
    let thread = libc::pid_t::try_from(thread).map_err(io::Error::other)?;
    // SAFETY: the struct is valid and has its own size in it; of its addresses the caller answers.
    let event = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw mut attributes, thread, -1, -1, FLAG_FD_CLOEXEC)
    };
    let event = i32::try_from(event).ok().filter(|event| *event >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(event) })
}
