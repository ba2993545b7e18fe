//! The kernel: the eBPF object is loaded, probes are attached, armed, counted and detached. The only module, with
//! [`crate::kernel::stream`], that knows aya.

mod attachment;
mod bpf;
mod buffer;
mod image;
mod link;
mod object;
#[cfg(test)]
mod stack_depth;
mod trial;

pub use attachment::{ArmedProbe, AttachError, Attachment, StoredParts};
pub use buffer::{Buffer, BufferKind};
pub use link::{Link, LinkError, LinkKind, detach};
pub use object::{LoadedObject, Program};
pub use trial::{Trial, TrialError, try_uprobe};
