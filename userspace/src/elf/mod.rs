//! ELF files, read without trusting them.

mod address;

pub use address::{ElfVaddr, FileOffset, RuntimeAddr};
