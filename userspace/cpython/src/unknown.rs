//! Reasons why something of a process is not known.

use std::fmt;

/// Reason why something of an interpreter, or of torch, could not be read. It is an answer: nothing is guessed
/// instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// No memory there, at this address.
    Unreadable(u64),
    /// The version is not known, or no layouts are known of it.
    Version {
        /// Name of the program, and the versions of which layouts are known.
        of: &'static str,
        known: &'static str,
        version: Option<String>,
    },
    /// The memory does not have what is looked for, and could have it at another time.
    NotThere(&'static str),
    /// The memory contradicts itself: it changed while it was read, the layouts do not fit, or it was forged.
    Contradiction(&'static str),
    /// The memory has more of something than any real program has.
    TooMuch(&'static str),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(address) => write!(f, "nothing can be read at {address:#x}"),
            Self::Version { of, version: None, .. } => write!(f, "the version of its {of} is not known"),
            Self::Version { of, known, version: Some(version) } => {
                write!(f, "the layouts of {of} {version} are not known; {known} are")
            }
            Self::Contradiction(what) => write!(f, "its memory contradicts itself: {what}"),
            Self::NotThere(what) | Self::TooMuch(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Unknown {}
