//! Errors of questions to children.

use std::{io, time::Duration};

use thiserror::Error;

/// Reason for which nothing is known of a file or process.
#[derive(Debug, Error)]
pub enum ResolverError {
    /// The child answered that it cannot be done, and why.
    #[error("{0}")]
    Refused(io::Error),
    /// The child did not answer within this time, and is left behind.
    #[error(
        "no answer within {} s: its file system, or the process, does not respond; it is not asked again",
        .0.as_secs()
    )]
    Lost(Duration),
    /// The child ended; the text says how.
    #[error(
        "the helper process that read it ended ({0}): it takes more memory or time than any NCCL library, or \
         ncclflow has a fault; it is not read again"
    )]
    Died(String),
    /// The answer was impossible.
    #[error("what was read from it cannot be right: {0}")]
    Garbage(String),
    /// The file or process was given up, and is not asked about again.
    #[error("it did not answer before, and is not asked again")]
    GivenUp,
    /// No child could be started, or too many were lost.
    #[error("files of other processes cannot be read: {0}")]
    Unavailable(String),
}

impl ResolverError {
    pub(super) fn refused(why: &str) -> Self {
        Self::Refused(io::Error::other(crate::process::printable(why)))
    }
}

impl From<ResolverError> for io::Error {
    fn from(error: ResolverError) -> Self {
        match error {
            ResolverError::Refused(error) => error,
            error @ (ResolverError::Lost(_) | ResolverError::GivenUp) => {
                Self::new(io::ErrorKind::TimedOut, error)
            }
            error => Self::other(error),
        }
    }
}
