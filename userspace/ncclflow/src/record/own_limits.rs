//! What this process may take for itself.

use std::{fs::File, os::fd::OwnedFd};

use rustix::process::{Resource, getrlimit, setrlimit};

/// Two files a rank and one descriptor a probe are soon more than the usual soft limit of 1,024.
pub(super) fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it there is an error where descriptors run out.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Descriptors that are kept for the end of a recording, so that it ends whole where there are no others left.
#[derive(Debug)]
pub(super) struct SpareDescriptors(#[expect(dead_code, reason = "they are held")] Vec<OwnedFd>);

impl SpareDescriptors {
    /// `session.json` and its temporary, a segment, a file that takes its place; the rest is for threads.
    const COUNT: usize = 8;

    pub(super) fn take() -> Self {
        // The thread that reads what each CPU counted opens a file for it the first time, which may be at the end.
        let _ = aya::util::nr_cpus();
        Self((0..Self::COUNT).filter_map(|_| Some(File::open("/dev/null").ok()?.into())).collect())
    }
}
