//! Reads the memory of a process that keeps running: nothing is stopped, attached to or written.
//!
//! Memory can change while it is read, so no more than a single word is consistent. Callers prove what they
//! read field by field, and read again if fields contradict each other.

mod pages;
mod reader;
mod regions;
mod scan;

pub use reader::{Memory, ReadError};
pub use regions::{AddressSpace, Region};
pub use scan::{Needle, ScanEnd, ScanLimits, ScanProgress, ScanReport, search};
