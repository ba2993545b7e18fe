//! Loads the eBPF object into the kernel; attaches, arms, counts and detaches probes. Only this module and
//! [`crate::kernel::stream`] use aya.
//!
//! aya 0.16 has links to many uprobes. It reads the kind of link from the names of the programs' sections
//! (aya-obj `src/obj.rs`, `ProgramSection`). The object has `uprobe.multi`; for links to performance events
//! `object` cuts the name to `uprobe`, in the strings of ELF and BTF. aya loads programs from objects only,
//! so the idle program is an object of its own. A program refers to maps by descriptors and may be loaded
//! late, so all maps stay in the `Ebpf`; the drain reads the ring buffers through descriptors of its own.
//!
//! All probes are attached first and stay silent. One word in a map opens the session, and closes it before
//! the probes are detached, which takes 0.1 s. Hits in between are `disarmed`.
//!
//! Hits share no memory: a task can preempt a uprobe program and run the same program on the same CPU. So
//! records are built in place, each in its own reservation, and counters are atomic. The verifier wants
//! reservations of constant size: there are three, and a plan uses the smallest that fits. For the perf event
//! array, which copies records, a program claims one of eight scratch slots of its CPU; a hit that finds none
//! is lost, and counted.

mod attachment;
mod buffer;
mod link;
mod link_call;
mod map_values;
mod object;
mod programs;
mod trial;
mod warm_up;

#[cfg(test)]
mod tests;

pub use attachment::{ArmedProbe, AttachError, Attachment, StoredParts};
pub use buffer::{Buffer, best_buffer};
pub use link::{Link, LinkError, best_links, detach, prepared, tells_returns_apart};
pub use object::{LoadedObject, OBJECT_SHA256};
pub use programs::Program;
pub use trial::{Trial, TrialError, try_uprobe};
