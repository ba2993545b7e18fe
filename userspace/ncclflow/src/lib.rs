//! ncclflow attaches to running NCCL jobs from outside and records, per rank, what NCCL decided and did.
//!
//! Knowledge of libnccl is in `nccl_library`, the meaning of records in `flow`. This crate touches the
//! system: processes, the kernel, files, the network and the terminal. Modules are in the order of the data's
//! way.

// The program's own memory and descriptors.
pub mod allocator;
mod descriptor_table;

// Targets of tracing: processes, and the layouts of their libraries.
pub mod target;

// Threads and children that look at what may not answer, and can be lost.
mod unresponsive;

pub mod resolver;
mod shortage;

pub mod layout_cache;

// From a hit to a record, in the kernel and out of it.
pub mod kernel;

pub mod clock;
mod host;

// Health of a session, and faults that tests put in.
mod fault;
pub mod health;
mod privileges;

// From records to files.
pub mod record;

pub mod recording;
pub mod rows;
pub mod sinks;

// Owners of processes and communicators.
pub mod who;
// From recordings to files.
pub mod export;
pub mod flight_recorder;

// From files to verdicts.
pub mod check;

// Memory that is read without a probe.
pub mod memory;

pub mod threads;

pub mod gpu;

pub mod dump;
pub mod history;
pub mod ps;
pub mod torch_notes;

// Call stacks of NCCL's calls.
mod call_stacks;
pub mod python;
pub mod stacks;

// Check whether this host can trace.
pub mod doctor;

// Output for people.
#[cfg(feature = "program")]
pub mod views;

#[cfg(feature = "program")]
pub mod report;

#[cfg(feature = "program")]
pub mod cli;
