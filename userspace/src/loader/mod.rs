//! The kernel: the eBPF object is loaded, probes are attached, armed, counted and detached. The only module, with
//! [`crate::stream`], that knows aya.

mod attachment;
mod object;

pub use attachment::{ArmedProbe, AttachError, Attachment, StoredParts};
pub use object::LoadedObject;
