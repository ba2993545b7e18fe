//! Loads the eBPF object into the kernel; attaches, arms, counts and detaches probes. Only this module and
//! [`crate::kernel::stream`] use aya.

mod attachment;
mod buffer;
mod link;
mod link_call;
mod object;
mod programs;
mod trial;
mod warm_up;

#[cfg(test)]
mod tests;

pub use attachment::{ArmedProbe, AttachError, Attachment, StoredParts};
pub use buffer::{Buffer, BufferKind};
pub use link::{Link, LinkError, LinkKind, detach};
pub use object::LoadedObject;
pub use programs::Program;
pub use trial::{Trial, TrialError, try_uprobe};
