//! The kernel: the eBPF object is loaded, probes are attached, armed, counted and detached. The only module, with
//! [`crate::stream`], that knows aya.

mod attachment;
mod buffer;
mod object;
mod trial;

pub use attachment::{ArmedProbe, AttachError, Attachment, Link, StoredParts};
pub use buffer::{Buffer, BufferKind};
pub use object::LoadedObject;
pub use trial::{Trial, TrialError, try_uprobe};
