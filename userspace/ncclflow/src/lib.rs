//! ncclflow attaches to running NCCL jobs from outside and records, per rank, what NCCL decided and did.
//!
//! What is known of a libnccl is in `nccl_library`; what records mean is in `flow`. Here is what touches the system:
//! processes, the kernel, files, the network and the terminal.

pub mod capture;
pub mod check;
#[cfg(feature = "program")]
pub mod cli;
pub mod clock;
pub mod doctor;
pub mod dump;
pub mod kernel;
pub mod layout_cache;
pub mod memory;
pub mod ps;
pub mod record;
pub mod sinks;
pub mod target;
pub mod text;
pub mod threads;
#[cfg(feature = "program")]
pub mod views;
