//! What is known of one CPython interpreter, and how the stacks of its threads are read from outside.
//!
//! CPython has one global variable, `_PyRuntime`. From there lists lead to interpreters, threads and frames,
//! and each frame to the code object that knows function, file and lines. Nothing of it needs the GIL or the
//! interpreter's help, and no thread is stopped.
//!
//! The modules stand in the order in which one builds on the other: which [`Version`] it is; where its
//! structs' fields are ([`Offsets`], from shipped tables or from CPython's own `_Py_DebugOffsets`); where
//! `_PyRuntime` is in a file ([`locate`]); bounded reads of a process's memory ([`Memory`]); strings, line
//! tables and code objects; and the [`Walker`].
//!
//! The memory belongs to a tenant, and changes while it is read. Every list, string and table is bounded, so is the
//! work of one walker, and whatever contradicts itself ends in [`Unknown`].

mod code;
mod debug_offsets;
mod interned;
mod lines;
pub mod locate;
mod memory;
mod offsets;
pub mod pthread;
mod tables;
mod text;
mod unknown;
mod version;
mod walker;

pub use code::CodeObject;
pub use debug_offsets::{COOKIE, DEBUG_OFFSETS_SIZE, from_debug_offsets};
pub use interned::{DICT_VERSION, Statics, interned};
pub use lines::{LineTable, line_at};
pub use memory::{Memory, Unreadable};
pub use offsets::{
    BytesOffsets, CodeOffsets, FrameOffsets, FrameRoot, Instruction, InterpreterOffsets, ObjectOffsets,
    Offsets, RuntimeOffsets, TextOffsets, ThreadOffsets,
};
pub use tables::{ShippedRow, shipped, shipped_rows};
pub use unknown::Unknown;
pub use version::Version;
pub use walker::{
    MAX_FRAMES, MAX_INTERPRETERS, MAX_THREADS, PyFrame, Python, RawFrame, RawStack, StackEnd, ThreadState,
    Walker,
};
