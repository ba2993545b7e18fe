//! What this process may take for itself.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Two files a rank and one descriptor a probe are soon more than the usual soft limit of 1,024.
pub(super) fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it there is an error where descriptors run out.
    let _ = setrlimit(Resource::Nofile, limit);
}
