//! What is printed, on standard output and standard error. All of it goes through [`PlainWriter`]: much of it
//! are names and paths that a tenant chose.

use std::{
    fmt,
    io::{Stderr, StdoutLock, Write as _, stderr, stdout},
};

use crate::text::PlainWriter;

/// Standard output, for text and for JSON by [`write_json`](super::write_json).
pub(super) fn out() -> PlainWriter<StdoutLock<'static>> {
    PlainWriter::new(stdout().lock())
}

/// Standard error.
pub(super) fn err() -> PlainWriter<Stderr> {
    PlainWriter::new(stderr())
}

/// A line on standard error, for people. Nobody may be there to read it, and that is no reason to stop.
pub(super) fn tell(line: fmt::Arguments<'_>) {
    // In one piece, that lines of several threads do not mix.
    let _ = err().write_all(format!("{line}\n").as_bytes());
}
