//! Makes links by system calls of its own, so that a thread that may be lost can do it: aya's programs belong
//! to the object, and to the thread that has it.

use std::{
    ffi::CStr,
    fs, io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

use aya_obj::generated::{
    PERF_FLAG_FD_CLOEXEC,
    bpf_attach_type::{BPF_PERF_EVENT, BPF_TRACE_UPROBE_MULTI},
    bpf_cmd::BPF_LINK_CREATE,
    perf_event_attr,
};

/// `link_create` of `union bpf_attr` with its `uprobe_multi` (include/uapi/linux/bpf.h); `perf_event` has its
/// cookie where the path is.
#[derive(Default)]
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path_or_cookie: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    pid: u32,
    padding: u32,
}

/// `BPF_F_UPROBE_MULTI_RETURN`
const MULTI_RETURN: u32 = 1;
/// Directory in which the kernel says how uprobes are opened as performance events.
const UPROBE_EVENTS: &str = "/sys/bus/event_source/devices/uprobe";

fn number(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

fn link_create(attr: &LinkCreate) -> io::Result<OwnedFd> {
    // SAFETY: the structure is as long as it is said to be, and what it points to lives until the call
    // returns: both callers borrow it.
    let made = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_LINK_CREATE as libc::c_int,
            &raw const *attr,
            size_of::<LinkCreate>(),
        )
    };
    owned(made)
}

fn owned(made: libc::c_long) -> io::Result<OwnedFd> {
    let made = i32::try_from(made).ok().filter(|made| *made >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: a system call has just made it; nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Makes one link to many uprobes: in process `pid`, or in all processes if that is 0.
pub(super) fn multi(
    program: BorrowedFd<'_>,
    path: &CStr,
    offsets: &[u64],
    cookies: &[u64],
    pid: u32,
    is_return: bool,
) -> io::Result<OwnedFd> {
    link_create(&LinkCreate {
        prog_fd: number(program),
        attach_type: BPF_TRACE_UPROBE_MULTI as u32,
        path_or_cookie: path.as_ptr().expose_provenance() as u64,
        offsets: offsets.as_ptr().expose_provenance() as u64,
        cookies: cookies.as_ptr().expose_provenance() as u64,
        count: u32::try_from(offsets.len().min(cookies.len())).map_err(io::Error::other)?,
        multi_flags: if is_return { MULTI_RETURN } else { 0 },
        pid,
        ..LinkCreate::default()
    })
}

/// Opens a uprobe as a performance event.
pub(super) fn event(path: &CStr, offset: u64, pid: Option<u32>, is_return: bool) -> io::Result<OwnedFd> {
    // SAFETY: integers and unions of integers, of which zeroes are values.
    let mut attr = unsafe { std::mem::zeroed::<perf_event_attr>() };
    attr.size = u32::try_from(size_of::<perf_event_attr>()).map_err(io::Error::other)?;
    attr.type_ =
        fs::read_to_string(format!("{UPROBE_EVENTS}/type"))?.trim().parse().map_err(io::Error::other)?;
    if is_return {
        let format = fs::read_to_string(format!("{UPROBE_EVENTS}/format/retprobe"))?;
        let bit = format.trim().strip_prefix("config:").and_then(|bit| bit.parse::<u32>().ok());
        let bit =
            bit.filter(|bit| *bit < 64).ok_or_else(|| io::Error::other("no bit for returns is known"))?;
        attr.config = 1 << bit;
    }
    attr.__bindgen_anon_3.config1 = path.as_ptr().expose_provenance() as u64;
    attr.__bindgen_anon_4.config2 = offset;
    // For all processes the kernel wants one CPU; the breakpoint is hit on all.
    let (pid, cpu) = match pid {
        Some(pid) => (i32::try_from(pid).map_err(io::Error::other)?, -1),
        None => (-1, 0),
    };
    // SAFETY: the structure is as long as it says, and the path lives until the call returns.
    owned(unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC)
    })
}

/// Links a program to a performance event. The link keeps the event.
pub(super) fn to_event(program: BorrowedFd<'_>, event: BorrowedFd<'_>, cookie: u64) -> io::Result<OwnedFd> {
    link_create(&LinkCreate {
        prog_fd: number(program),
        target_fd: number(event),
        attach_type: BPF_PERF_EVENT as u32,
        path_or_cookie: cookie,
        ..LinkCreate::default()
    })
}
