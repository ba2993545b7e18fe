//! Has tenants' files asked for, and read, by processes that may be lost.
//!
//! A file that a process has mapped belongs to whoever runs the process. Its file system may not answer, and
//! then the process that asked sleeps in the kernel, out of the reach of SIGKILL. Its content may be made to
//! take memory and time, or to use a fault in a parser. So such files are asked for by children of this
//! program, and this program reads their answers, bounded, from a socket:
//!
//! - the *opener* reads `/proc/PID`, takes hold of mapped files and opens them. It has no descriptor but its
//!   socket, no BPF, cannot write, and keeps the capabilities that reading takes;
//! - the *reader*, its child, gets open files and parses them. It has no capability, no network, no path, and
//!   limits on memory, processor time and wall time. A new one comes after each library.
//!
//! A child that does not answer in time is left behind, counted, and never waited for; the file that it was
//! at is not asked for again. What this program itself holds of a file is a descriptor that cannot be read
//! from (`O_PATH`): not even closing it asks the file system. Only of files on local disks and in memory this
//! program asks itself whether they have changed, in a way that does not wait (`nonblocking_read`): that
//! happens several times a second.
//!
//! Two more children can be lost in the same way: the *memory copier*, which copies memory of processes, and
//! the
//! *event holder*, which waits for the kernel where opening a performance event does (`perf_event_holder`).
//!
//! Programs that use this library without [`serve_if_asked`] in their `main`, as tests do, do all of it in
//! their own process.

mod child;
mod error;
mod frame;
mod helper;
mod memory_copier;
mod nonblocking_read;
mod opener;
mod page_map;
mod parser;
mod perf_event;
mod perf_event_holder;
mod protocol;
mod questions;
mod sandbox;
mod service;
mod silent_processes;
mod validate;

pub use child::serve_if_asked;
pub use error::ResolverError;
pub use memory_copier::{filled, is_silent, peek};
pub(crate) use perf_event::{open_event, time_on_processors};
pub(crate) use perf_event_holder::FirstEvent;
pub use protocol::{ProcFile, Status, Symbol, What};
pub use questions::{
    Unseen, check, driver, interpreter, libraries, look, look_through, maps, nccl_processes, open_mapping,
    package_version, proc_bytes, resolve, symbols, take_hold,
};
pub use service::{allow_fuse, lost, prepare};
