//! ncclflow attaches to running NCCL jobs from outside and records, per rank, what NCCL decided and did.
//!
//! What is known of a libnccl is in `nccl_library`; what records mean is in `flow`. Here is what
//! touches the system: processes, the kernel, files, the network and the terminal. Modules are in the
//! order of the data's way.

// The program's own memory and descriptors.
pub mod allocator;
mod descriptor_table;

// What there is to trace: processes, and the layouts of their libraries.
pub mod target;

// Who looks at what belongs to tenants, and can be lost.
pub mod resolver;
mod shortage;

pub mod layout_cache;

// From a hit to a record, in the kernel and out of it.
pub mod kernel;

pub mod clock;
mod host;
pub mod text;

// Whether a session is well, and what tests break.
mod fault;
pub mod health;
mod privileges;

// From records to files.
pub mod record;

pub mod capture;
pub mod recording;
pub mod sinks;

// Whose processes and communicators they are.
pub mod who;
// From recordings to files.
pub mod export;
pub mod flight_recorder;

// From files to verdicts.
pub mod check;

// What is read from memory, without a probe.
pub mod memory;

pub mod threads;

pub mod gpu;

pub mod dump;
pub mod history;
pub mod ps;
pub mod torch_notes;

// Who called it.
mod native;
pub mod python;
pub mod stacks;

// Whether this host can trace.
pub mod doctor;

// What people see.
#[cfg(feature = "program")]
pub mod views;

#[cfg(feature = "program")]
pub mod report;

#[cfg(feature = "program")]
pub mod cli;
