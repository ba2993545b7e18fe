//! Running processes, looked at from outside: nothing is written into them, stopped or waited for.

// What the host is and has.
pub mod clock;
pub mod failpoint;
pub mod host;
pub mod privileges;
mod proc_text;
mod trusted_file;
pub use trusted_file::trusted;

// Threads and children that look at what may not answer, and can be lost.
pub mod unresponsive;

// Processes, and the NCCL libraries that they have mapped.
pub mod process;

pub mod resolver;

pub mod resource_exhaustion;

pub mod layout_cache;

// Memory that is read without a probe.
pub mod memory;

pub mod threads;

pub mod python;

pub mod gpu;

pub mod adapters;

pub mod identity;
