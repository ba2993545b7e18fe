//! From probes in the kernel to a recording on disk: the only crate that loads and attaches.

// From a hit to a record, in the kernel and out of it.
pub mod kernel;

pub mod health;

// Owners of processes and communicators.
pub mod identity;

// Call stacks of NCCL's calls.
mod call_stacks;

// Processor time of threads that launch.
mod launch_threads;

// A session, from its first look to its files.
pub mod record;
