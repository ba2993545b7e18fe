//! Recordings on disk, rows out of them, and sinks that take rows. No kernel and no processes: a recording is
//! read on any machine.

pub mod resource_exhaustion;

pub mod sinks;

pub mod format;

pub mod rows;
