//! Reasons why something of a process is not known.

use thiserror::Error;

/// Reason why something of an interpreter, or of torch, could not be read. It is an answer: nothing is
/// guessed instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unknown {
    /// No memory there, at this address.
    #[error("nothing can be read at {0:#x}")]
    Unreadable(u64),
    /// The version of this program is not known.
    #[error("the version of its {0} is not known")]
    NoVersion(&'static str),
    /// No layouts are known of this version; they are of others.
    #[error("the layouts of {of} {version} are not known; {known} are")]
    Version { of: &'static str, version: String, known: &'static str },
    /// The memory does not have what is looked for, and could have it at another time.
    #[error("{0}")]
    NotThere(&'static str),
    /// The memory contradicts itself: it changed while it was read, the layouts do not fit, or it was forged.
    #[error("its memory contradicts itself: {0}")]
    Contradiction(&'static str),
    /// The memory has more of something than any real program has.
    #[error("{0}")]
    TooMuch(&'static str),
}
