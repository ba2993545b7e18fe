//! What is known of one torch build, and what its flight recorder holds, read from outside the process.
//!
//! torch keeps notes of the latest collectives of each process: a ring of entries with process group,
//! sequence numbers, sizes, state and Python frames (`c10d::FlightRecorder`), and for each process group what
//! was enqueued, started and completed last (`c10d::ProcessGroupStatus`). They stand in ordinary memory of
//! the process. Nothing of it needs torch's help, the GIL or a lock, and nothing is stopped.
//!
//! The modules stand in the order in which one builds on the other: which [`Version`] it is; where its
//! structs' fields are ([`Offsets`], from a shipped table); bounded reads of a process's memory
//! ([`Patience`]); C++ containers as libstdc++ and c10 lay them out; where a ring is ([`find`]); and the ring
//! itself ([`read`]).
//!
//! The memory belongs to a tenant, and changes while it is read. Every list, string and map is bounded, so is
//! the work of one look, and whatever contradicts itself ends in [`Unknown`]. A wrong layout shows: a ring's
//! fields, its maps and each of its entries must agree with each other.
//!
//! No wheel exports the pointer to a ring. It stands in the part of a library's data that begins as zeros, so
//! each pointer there is followed, in batches of 1,024 reads. The structs of all entries are read before and
//! after what they lead to: one that is the same entry both times owned it all the while. Layouts go by
//! torch's minor version.

mod containers;
mod dtype;
mod entry;
pub mod flight_recorder;
mod locate;
mod maps;
mod memory;
mod offsets;
mod recorder;
mod status;
mod tables;
mod traceback;
mod version;

pub use cpython::Unknown;
pub use locate::{Found, NO_RECORDER, find};
pub use memory::Patience;
pub use offsets::{
    EntryOffsets, GroupOffsets, Offsets, RecorderOffsets, StatusOffsets, TracebackOffsets, WorkOffsets,
};
pub use recorder::{MAX_ENTRIES, RingReport, read};
pub use tables::{ShippedRow, Tried, shipped, shipped_rows};
pub use traceback::{MAX_FRAMES, shown};
pub use version::{Version, release_of};
