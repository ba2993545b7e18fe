//! Reasons why a stack, or a whole interpreter, is not known.

use std::fmt;

use crate::Version;

/// Reason why something of an interpreter could not be read. It is an answer: nothing is guessed instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// No memory there, at this address.
    Unreadable(u64),
    /// The version is not known, or no layouts are known of it.
    Version(Option<Version>),
    /// `_PyRuntime` has no interpreter: Python is not initialised, or has ended.
    NotInitialised,
    /// The memory contradicts itself: it changed while it was read, the layouts do not fit, or it was forged.
    Contradiction(&'static str),
    /// The memory has more of something than any real program has.
    TooMuch(&'static str),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(address) => write!(f, "nothing can be read at {address:#x}"),
            Self::Version(None) => f.write_str("the version of its Python is not known"),
            Self::Version(Some(version)) => {
                write!(f, "the layouts of Python {version} are not known; 3.8 to 3.15 are")
            }
            Self::NotInitialised => f.write_str("its Python is not initialised, or has ended"),
            Self::Contradiction(what) => write!(f, "its memory contradicts itself: {what}"),
            Self::TooMuch(what) => write!(f, "{what}"),
        }
    }
}

impl std::error::Error for Unknown {}
