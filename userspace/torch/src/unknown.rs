//! Reasons why torch's notes are not known.

use std::fmt;

use crate::Version;

/// Reason why nothing, or not everything, of torch's notes could be read. It is an answer: nothing is guessed
/// instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// No memory there, at this address.
    Unreadable(u64),
    /// The version is not known, or no layouts are known of it.
    Version(Option<Version>),
    /// No ring stands where this version keeps its pointer to it.
    NotFound,
    /// The memory contradicts itself: it changed while it was read, the layouts do not fit, or it was forged.
    Contradiction(&'static str),
    /// The memory has more of something than any real program has.
    TooMuch(&'static str),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(address) => write!(f, "nothing can be read at {address:#x}"),
            Self::Version(None) => f.write_str("the version of its torch is not known"),
            Self::Version(Some(version)) => {
                write!(f, "the layouts of torch {version} are not known; 2.4 to 2.15 are")
            }
            Self::NotFound => f.write_str(
                "it has no flight recorder: no process group was made yet, or torch was built in another way",
            ),
            Self::Contradiction(what) => write!(f, "its memory contradicts itself: {what}"),
            Self::TooMuch(what) => write!(f, "{what}"),
        }
    }
}

impl std::error::Error for Unknown {}
