//! What a rank does instead of its next operation, on the thread that launches, for the rest of the run: it computes, writes a
//! file, as for a checkpoint, or waits for something else.

use std::hint::black_box;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::options::Options;

pub(crate) fn go(options: &Options, rank: u32, ops: Range<u64>, deadline: Instant) -> Result<()> {
    let is_now = |at: &(u32, u64)| at.0 == rank && ops.contains(&at.1);
    if options.busy.as_ref().is_some_and(is_now) {
        compute(deadline);
    }
    if options.ends_thread.as_ref().is_some_and(is_now) {
        std::thread::Builder::new().name("loader".to_owned()).spawn(move || {
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        })?;
        // SAFETY: ends this thread alone, which holds nothing that another one waits for.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    if options.unwakeable.as_ref().is_some_and(is_now) {
        sleep_unwakeable();
    }
    if options.full_pipe.as_ref().is_some_and(is_now) {
        let (_reader, mut writer) = std::io::pipe()?;
        loop {
            writer.write_all(&[b'.'; 4096])?;
        }
    }
    if options.polls.as_ref().is_some_and(is_now) {
        // As FileBaton.wait() of torch/utils/file_baton.py.
        while Instant::now() < deadline && std::fs::exists("/proc/self/exe")? {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    if options.checkpoint.as_ref().is_some_and(is_now) {
        let mut file = std::fs::File::options().write(true).open("/dev/null")?;
        let part = vec![0_u8; 1 << 20];
        while Instant::now() < deadline {
            file.write_all(&part)?;
            file.seek(SeekFrom::Start(0))?;
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// Computes until the time is up.
pub(crate) fn compute(deadline: Instant) {
    let mut value = 1_u64;
    while Instant::now() < deadline {
        for _ in 0..100_000 {
            value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
}

/// Sleeps until a child ends that this makes, and that waits for ever: as after vfork(2), in state D.
fn sleep_unwakeable() {
    extern "C" fn waits(_nothing: *mut libc::c_void) -> libc::c_int {
        // SAFETY: asks for a signal when the parent ends, and waits for it. The child shares the memory, and changes none
        // of it.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
    }
    let mut stack = vec![0_u8; 64 << 10];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child has a stack of its own, which lives as long as this thread sleeps here.
    unsafe { libc::clone(waits, stack.as_mut_ptr_range().end.cast(), flags, std::ptr::null_mut()) };
}
