//! Resources of this process itself.

use std::{fs::File, os::fd::OwnedFd};

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit of descriptors: two files a rank and one descriptor a probe soon exceed the usual 1,024.
pub(super) fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this fails there is an error where descriptors run out.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Descriptors reserved for the end of a recording, so that it ends whole where no others are left.
#[derive(Debug)]
pub(super) struct SpareDescriptors(#[expect(dead_code, reason = "they are held")] Vec<OwnedFd>);

impl SpareDescriptors {
    /// Descriptors: `session.json` and its temporary, a segment and its successor; the rest for threads.
    const COUNT: usize = 8;

    pub(super) fn take() -> Self {
        // The first read of per-CPU counters opens a file, and that may be at the end.
        let _ = aya::util::nr_cpus();
        Self((0..Self::COUNT).filter_map(|_| Some(File::open("/dev/null").ok()?.into())).collect())
    }
}
