//! ncclflow attaches to running NCCL jobs from outside and records, per rank, what NCCL decided and did.
//!
//! The modules stand in the order of the data's way: a target's library is opened ([`elf`]), its functions and struct
//! layouts are resolved, probes are planned and attached, records come back, become events, a model and files.

pub mod analysis;
pub mod capture;
pub mod cli;
pub mod clock;
pub mod decode;
pub mod doctor;
pub mod dump;
pub mod dwarf;
pub mod elf;
pub mod layout_cache;
pub mod live;
pub mod loader;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod nccl;
pub mod probe;
pub mod ps;
pub mod record;
pub mod sink;
pub mod stream;
pub mod symbols;
pub mod target;
pub mod threads;
pub mod top;
