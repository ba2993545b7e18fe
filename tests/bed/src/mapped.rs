//! Much memory that a process maps and looks at, but never fills: all of it is the kernel's one page of zeros. It is what a
//! process of that size looks like to whoever searches it.

use std::ptr;

use anyhow::{Result, bail};

/// A page of zeros can be as large (transparent huge pages).
const LARGE_PAGE: usize = 2 << 20;

/// Maps so many bytes for as long as the process lives, and reads one in each large page.
pub(crate) fn map_and_look(bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, which nobody else knows of and which is never unmapped.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        bail!("mapping {} GiB: {}", bytes >> 30, std::io::Error::last_os_error());
    }
    // SAFETY: the mapping above; where there are no large pages, nothing changes.
    unsafe { libc::madvise(at, bytes, libc::MADV_HUGEPAGE) };
    for offset in (0..bytes).step_by(LARGE_PAGE) {
        // SAFETY: inside the mapping.
        unsafe { at.cast::<u8>().add(offset).read_volatile() };
    }
    Ok(())
}
