//! ELF files, read without trusting them.
//!
//! The file belongs to whoever runs the job: it may be hostile, and it may change while it is read. So it is
//! never mapped (a truncation would end this process with `SIGBUS`); every byte comes through `pread` into
//! memory whose size was checked first, and counts against a [`Budget`].

mod address;
mod budget;
mod build_id;
mod compressed;
mod error;
mod gnu_hash;
mod image;
mod symbol_table;

pub use address::{ElfVaddr, FileOffset, RuntimeAddr};
pub use budget::Budget;
pub use build_id::BuildId;
pub use error::{Error, ErrorKind};
pub use gnu_hash::may_export;
pub use image::{Image, Machine, Section};
pub use symbol_table::{Symbol, SymbolTable, TableKind};
