//! Knowledge of one libnccl: where its functions are, how their parameters arrive, how its structs lie, and
//! what NCCL's numbers mean.
//!
//! Each module builds on those before it: an ELF file ([`elf`]); struct layouts and parameter locations as
//! plain data ([`layouts`], [`parameter`]); the debugging information that states them ([`dwarf`]); NCCL's
//! vocabulary and versions ([`nccl`]); each struct field that ncclflow uses ([`fields`]); and [`symbols`],
//! which resolves a library by the best source that it has. Nothing here knows of processes, probes or the
//! kernel.

mod hex;

// Blank lines keep this order: rustfmt sorts modules that stand together.
pub mod elf;

pub mod layouts;

pub mod parameter;

pub mod dwarf;

pub mod nccl;

pub mod fields;

pub mod symbols;
