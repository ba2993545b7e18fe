//! What every test of ncclflow shares, unit, integration and end to end: skipping loudly, waiting for
//! something, the NCCL libraries of the cache, the CPython interpreters of the machine, files that are damaged at random,
//! the commands of the documentation.

mod cpu_time;
pub mod damage;
pub mod documents;
mod heartbeat;
pub mod hostile_file;
mod libraries;
mod pythons;
mod readers;
mod skip;
mod tool;
mod torch_double;
pub mod train;
mod wait;

pub use cpu_time::cpu_time;
pub use heartbeat::Heartbeat;
pub use libraries::{cache, is_long, libraries, nccl};
pub use pythons::{Interpreter, interpreter, need_pythons, pythons};
pub use readers::{has_browser, hooks, torch_analyser};
pub use skip::{need, root, skip, skip_always};
pub use tool::tool;
pub use torch_double::{TorchJob, torch_double};
pub use wait::{eventually, wait_until};
