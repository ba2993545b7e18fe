//! Pages with a launch's arguments, and what NCCL has beside them, are taken out of the process's page table, as the
//! kernel does when it needs memory. Whoever touches one has it again. A program at a probe may not wait for it.

use std::{
    collections::HashSet,
    ffi::c_void,
    io,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

const PAGE: usize = 4096;

/// From which launch of the process on.
static FROM: AtomicU64 = AtomicU64::new(u64::MAX);

/// Pages whose content is in a file in memory already.
static IN_FILES: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

/// Has pages hidden from this launch of the process on.
pub(crate) fn hide_from(launch: u64) {
    FROM.store(launch, Ordering::Relaxed);
}

/// Hides the pages of these bytes, if it is time. They are NCCL's, and only the thread that launches uses them now.
pub(super) fn hide(launch: u64, at: *const u8, size: usize) {
    if launch < FROM.load(Ordering::Relaxed) || size == 0 {
        return;
    }
    let mut in_files = IN_FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let in_files = in_files.get_or_insert_default();
    let first = at.addr() / PAGE * PAGE;
    for page in (first..at.addr() + size).step_by(PAGE) {
        let place = at.with_addr(page).cast_mut().cast::<c_void>();
        if in_files.insert(page)
            && let Err(error) = put_into_a_file(place)
        {
            crate::say(&format!("hiding a page: {error}"));
        }
        // SAFETY: a page of a shared mapping of a file in memory: its content stays in the file.
        unsafe { libc::madvise(place, PAGE, libc::MADV_DONTNEED) };
    }
}

/// Puts a file in memory with the page's content into its place. A file for each: what is around a page that is touched
/// would come back with it.
fn put_into_a_file(page: *mut c_void) -> io::Result<()> {
    // SAFETY: a string that ends with 0.
    let file = unsafe { libc::memfd_create(c"hidden".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page is the caller's, and mapped.
    let written = unsafe { libc::write(file, page, PAGE) };
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    let done = if usize::try_from(written).ok() == Some(PAGE) {
        // SAFETY: the same content comes into the place of the page, which no other thread writes to now.
        unsafe { libc::mmap(page, PAGE, rights, flags, file, 0) }
    } else {
        libc::MAP_FAILED
    };
    let error = io::Error::last_os_error();
    // SAFETY: ours; the mapping holds the file.
    unsafe { libc::close(file) };
    if done == libc::MAP_FAILED { Err(error) } else { Ok(()) }
}
