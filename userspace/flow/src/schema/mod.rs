//! Rows that are written and read.

mod host;

pub use host::HostInfo;
