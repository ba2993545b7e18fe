//! Functions of libc on which NCCL spins while it waits. Where jobs give way they sleep for a moment: on a
//! machine with few processors a thread that spins keeps the one that it waits for from running, and programs
//! that look at both.
//!
//! A linker exports what a shared library on its command line defines, too: so NCCL finds these before libc's.

use std::{
    cell::Cell,
    ffi::c_void,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use libc::{c_int, c_long, size_t, ssize_t};

/// Calls in a row that had nothing to do, after which a thread sleeps.
const RECEIVES: u32 = 4;
const YIELDS: u32 = 16;
/// Length of the first sleep, and of the longest: a message that comes meanwhile waits for so long.
const NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_micros(300);
/// Sleeps after which they are longer by as much as the first one.
const NAPS: u32 = 8;
/// Time without a call after which a thread has done something.
const BUSY: Duration = Duration::from_micros(500);

thread_local! {
    /// Calls in a row that had nothing to do, and when the latest of them ended.
    static IDLE: Cell<(u32, Option<Instant>)> = const { Cell::new((0, None)) };
}

fn gives_way() -> bool {
    static GIVES_WAY: OnceLock<bool> = OnceLock::new();
    *GIVES_WAY.get_or_init(ncclflow_bed::gives_way)
}

/// Sleeps if so many calls in a row had nothing to do, the longer the more they were. Returns whether it did.
fn naps(after: u32) -> bool {
    if !gives_way() {
        return false;
    }
    let (before, ended) = IDLE.get();
    let is_going_on = ended.is_some_and(|ended| ended.elapsed() < BUSY);
    let idle = if is_going_on { before.saturating_add(1) } else { 1 };
    if let Some(naps) = idle.checked_sub(after) {
        thread::sleep((NAP * (1 + naps / NAPS)).min(LONGEST_NAP));
    }
    IDLE.set((idle, Some(Instant::now())));
    idle >= after
}

/// As sched_yield(2).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn sched_yield() -> c_int {
    if naps(YIELDS) {
        return 0;
    }
    // SAFETY: it has no arguments.
    let result = unsafe { libc::syscall(libc::SYS_sched_yield) };
    c_int::try_from(result).unwrap_or(-1)
}

/// As recv(2).
///
/// # Safety
/// `buffer` is valid for writes of `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recv(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    let none = std::ptr::null_mut::<c_void>();
    // SAFETY: as the caller promises; no address of a sender is asked for.
    let received = unsafe { libc::syscall(libc::SYS_recvfrom, fd, buffer, length, flags, none, none) };
    naps_if_nothing_came(received);
    ssize_t::try_from(received).unwrap_or(-1)
}

/// As accept(2).
///
/// # Safety
/// `address` and `length` are null, or valid for what the kernel writes there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn accept(
    fd: c_int,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: as the caller promises.
    let accepted = unsafe { libc::syscall(libc::SYS_accept, fd, address, length) };
    naps_if_nothing_came(accepted);
    c_int::try_from(accepted).unwrap_or(-1)
}

/// Sleeps after a call in vain, and keeps its `errno`.
fn naps_if_nothing_came(result: c_long) {
    // SAFETY: `errno` of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let why = unsafe { *errno };
    if result < 0 && why == libc::EAGAIN {
        naps(RECEIVES);
        // SAFETY: as above. The sleep may have changed it.
        unsafe { *errno = why };
    } else {
        IDLE.set((0, None));
    }
}
