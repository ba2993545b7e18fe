//! Errors of questions to children.

use std::{fmt, io, time::Duration};

/// Reason for which nothing is known of a file or process.
#[derive(Debug)]
pub enum ResolverError {
    /// The child answered that it cannot be done, and why.
    Refused(io::Error),
    /// The child did not answer within this time, and is left behind.
    Lost(Duration),
    /// The child ended; the text says how.
    Died(String),
    /// The answer was impossible.
    Garbage(String),
    /// The file or process was given up, and is not asked about again.
    GivenUp,
    /// No child could be started, or too many were lost.
    Unavailable(String),
}

impl fmt::Display for ResolverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => why.fmt(f),
            Self::Lost(after) => write!(
                f,
                "no answer within {} s: its file system, or the process, does not respond; it is not \
                 asked again",
                after.as_secs()
            ),
            Self::Died(how) => write!(
                f,
                "the helper process that read it ended ({how}): it takes more memory or time than any \
                 NCCL library, or ncclflow has a fault; it is not read again"
            ),
            Self::Garbage(what) => write!(f, "what was read from it cannot be right: {what}"),
            Self::GivenUp => f.write_str("it did not answer before, and is not asked again"),
            Self::Unavailable(why) => write!(f, "files of other processes cannot be read: {why}"),
        }
    }
}

impl std::error::Error for ResolverError {}

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
