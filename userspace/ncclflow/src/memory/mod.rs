//! Reads the memory of a process that keeps running: nothing is stopped, attached to or written.
//!
//! What is read may change under the reading, so nothing here vouches for more than single words: callers prove what they
//! read field by field, and read again what does not hold together.

mod pages;
mod reader;
mod regions;
mod scan;

pub use reader::{Memory, ReadError};
pub use regions::{AddressSpace, Region};
pub use scan::{Needle, ScanEnd, ScanLimits, ScanProgress, ScanReport, Scanner};
