//! Resources that the host, or who looks at it, is short of now and can have again soon.

use std::io;

use recording::resource_exhaustion::{is_of_disk, is_of_host};

use crate::resolver::ResolverError;

/// Tells whether one of these is the cause.
pub fn caused(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let is_short = |error: &io::Error| is_of_host(error) || is_of_disk(error);
        let cannot_look = |error: &ResolverError| matches!(error, ResolverError::Unavailable(_));
        cause.downcast_ref().is_some_and(is_short) || cause.downcast_ref().is_some_and(cannot_look)
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn what_the_host_lacks_is_told_from_what_a_file_lacks() {
        let number = |number| Err::<(), _>(io::Error::from_raw_os_error(number)).context("opening it");
        for short in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOSPC, libc::EDQUOT] {
            assert!(caused(&number(short).unwrap_err()), "{short}");
        }
        for other in [libc::ENOENT, libc::EACCES, libc::EROFS, libc::EIO] {
            assert!(!caused(&number(other).unwrap_err()), "{other}");
        }
        let unavailable = anyhow::Error::from(ResolverError::Unavailable("no descriptors".into()));
        assert!(caused(&unavailable.context("looking")) && !caused(&ResolverError::GivenUp.into()));
    }
}
