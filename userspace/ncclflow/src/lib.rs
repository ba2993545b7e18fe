//! ncclflow attaches to running NCCL jobs from outside and records, per rank, what NCCL decided and did.
//!
//! This crate is the command line, and what is shown while a command runs. The work is done by the crates
//! below it: `trace` records, `dump` reads processes, `analysis` reads recordings.

// The program's own memory and descriptors.
pub mod allocator;
mod descriptor_table;

// Many hosts, asked by one command.
pub mod fleet;

// Check whether this host can trace.
pub mod doctor;

// Output for people.
pub mod views;

pub mod cli;
