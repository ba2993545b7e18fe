//! Errors: why a library could not be read, where, and what to do about it.

use std::fmt;
use std::io;

/// Kind of a failure, for a caller that goes another way on some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The operating system refused, or the file changed while it was read.
    Io,
    NotElf,
    /// Well-formed, but of a kind that ncclflow does not read.
    Unsupported,
    Malformed,
    /// More memory or work is asked for than a real NCCL needs.
    TooLarge,
}

#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    place: String,
    what: String,
    advice: &'static str,
    source: Option<io::Error>,
}

impl Error {
    /// Creates an error. `place` is the file and the part of it, `what` says what is wrong there.
    pub fn new(kind: ErrorKind, place: impl Into<String>, what: impl Into<String>) -> Self {
        let advice = match kind {
            ErrorKind::Io => "check that the file can be read and is not being replaced",
            ErrorKind::NotElf => "give the path of a `libnccl.so` or of a program that contains NCCL",
            ErrorKind::Unsupported => "use a 64-bit little-endian build",
            ErrorKind::Malformed => {
                "the file is damaged or not what it claims to be: compare it with the package it came from"
            }
            ErrorKind::TooLarge => {
                "this is no ordinary NCCL build: inspect the file with `readelf` before tracing it"
            }
        };
        Self { kind, place: place.into(), what: what.into(), advice, source: None }
    }

    pub fn io(place: impl Into<String>, source: io::Error) -> Self {
        Self { source: Some(source), ..Self::new(ErrorKind::Io, place, "cannot be read") }
    }

    #[must_use]
    pub fn with_advice(mut self, advice: &'static str) -> Self {
        self.advice = advice;
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)?;
        if let Some(source) = &self.source {
            write!(f, " ({source})")?;
        }
        write!(f, "; {}", self.advice)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
