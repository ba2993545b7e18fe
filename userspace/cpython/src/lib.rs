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
//! The memory belongs to a tenant, and changes while it is read. Every list, string and table is bounded, so
//! is the work of one walker, and whatever contradicts itself ends in [`Unknown`].
//!
//! # Finding threads
//!
//! Where NCCL is called, Python has released the GIL, so the GIL's holder leads nowhere. Threads are found by
//! the list that starts at `_PyRuntime`, and told apart by the kernel's numbers (3.8 to 3.10: by the C
//! library's description of the thread).
//!
//! # Layouts
//!
//! From 3.13 on CPython states its own layouts at `_PyRuntime` (`_Py_DebugOffsets`), in the target's memory,
//! so sizes and offsets are checked. 3.8 to 3.12 have shipped tables (`cargo xtask make python-offsets`). A
//! wrong layout shows: each thread must lead back to its interpreter, and each frame to an object whose type
//! is called `code`.
//!
//! # Torn reads
//!
//! Nothing is stopped, so reads may tear. A stack counts when two readings in a row are equal; otherwise it
//! is `moving`. One walker does at most 200,000 reads, 4,096 threads, and 512 frames a stack.
//!
//! # Code that is known is not read again
//!
//! A tracer that keeps stacks (`ebpf/src/sent.rs`) knows a stack by its code objects. Code that is dropped
//! leaves its address to other code, so a known stack counts only while its code objects are those of before.
//! Reading at each hit what tells them apart takes most of a hit's time. What saves it:
//!
//! - 3.14 and later: each interpreter counts the code objects that it drops (`_code_object_generation`, which
//!   `_Py_DebugOffsets` names for this purpose; CPython's own remote profiler keeps code by it). Code objects
//!   are read again only when the count has changed.
//! - 3.12 and 3.13: no such count. Their numbers (`co_version`) are read each time.
//! - 3.8 to 3.11: code objects have no numbers, and one made where another was dropped can differ in nothing
//!   but what its name says. Names are interned nearly always, and the dictionary of interned strings has a
//!   version that changes whenever a string comes or goes. Names' hashes are read again only when it has
//!   changed. Stripped interpreters have no symbol for the dictionary: `interned` finds it by what it holds.
//!   Where it is not found beyond doubt, or a name is not interned, names are read at each hit.
//!
//! Without the GIL, 3.14 gives each thread its own copy of the bytecode (`co_tlbc`). An instruction in a copy
//! is sent as that of the code object. The copy is looked for at the hit, as its number can be another
//! thread's later; so threads with equal stacks have one id.

mod code;
mod debug_offsets;
mod interned;
mod lines;
mod locals;
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
pub use locals::Value;
pub use memory::{Limits, Memory, Reader, Record, Unreadable};
pub use offsets::{
    BytesOffsets, CodeOffsets, FrameOffsets, Instruction, IntegerOffsets, InterpreterOffsets, ObjectOffsets,
    Offsets, RuntimeOffsets, SequenceOffsets, TextOffsets, ThreadOffsets,
};
pub use tables::{ShippedRow, shipped, shipped_rows};
pub use unknown::Unknown;
pub use version::Version;
pub use walker::{
    MAX_FRAMES, MAX_INTERPRETERS, MAX_THREADS, NOT_INITIALISED, PyFrame, Python, RawFrame, RawStack,
    StackEnd, ThreadState, Walker,
};
