//! What every test of ncclflow shares, unit, integration and end to end: skipping loudly, waiting for
//! something, the NCCL libraries of the cache, files that are damaged at random.

mod cpu_time;
pub mod damage;
mod libraries;
mod skip;
mod tool;
mod wait;

pub use cpu_time::cpu_time;
pub use libraries::{cache, is_long, libraries, nccl};
pub use skip::{need, root, skip};
pub use tool::tool;
pub use wait::{eventually, wait_until};
