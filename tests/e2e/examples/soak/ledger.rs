//! Counts in memory that all tenants share with the soak: how often NCCL was called, told by those who called.
//!
//! A call is counted when it begins and when it has ended. A process that is killed in between leaves the two apart by
//! one for each of its threads, and what the kernel counted must lie between.

use std::{
    fs::File,
    io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context as _, Result};

const SLOTS: usize = 4;

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    /// Calls on the library that stays as it is.
    Begun,
    Ended,
    /// Calls that NCCL did not refuse as it must refuse a call without a communicator.
    Wrong,
    /// Processes that have called.
    Callers,
}

/// Lives as long as the program.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    counts: &'static [AtomicU64; SLOTS],
    path: PathBuf,
}

impl Ledger {
    /// Makes it, in a new file.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        file.set_len(4096)?;
        Self::of(&file, path)
    }

    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::of(&File::options().read(true).write(true).open(path)?, path)
    }

    fn of(file: &File, path: &Path) -> Result<Self> {
        // SAFETY: a new mapping of a file that nobody makes shorter, shared with processes that use it as atomic
        // counters only. It is never unmapped.
        let mapped = unsafe {
            libc::mmap(
                ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).context("mapping the ledger");
        }
        // SAFETY: a page is aligned, larger than the array, and stays mapped.
        let counts = unsafe { &*mapped.cast::<[AtomicU64; SLOTS]>() };
        Ok(Self { counts, path: path.to_path_buf() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn add(&self, slot: Slot, more: u64) {
        self.counts[slot as usize].fetch_add(more, Ordering::SeqCst);
    }

    pub(crate) fn get(&self, slot: Slot) -> u64 {
        self.counts[slot as usize].load(Ordering::SeqCst)
    }
}
