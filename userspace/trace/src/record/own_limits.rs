//! Resources of this process itself.

use std::{fs::File, io};

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit of descriptors: two files a rank and one descriptor a probe soon exceed the usual 1,024.
pub(super) fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this fails there is an error where descriptors run out.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Returns how many descriptors there may be.
pub(super) fn descriptors() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// Takes so many descriptors, for a time at which others may be left.
pub(super) fn spare_descriptors(count: usize) -> impl Iterator<Item = io::Result<File>> {
    (0..count).map(|_| File::open("/dev/null"))
}
