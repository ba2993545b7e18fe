//! Types and constants that the eBPF side and the user side of ncclflow share, byte for byte.
//!
//! The eBPF object knows nothing of NCCL. User space compiles what a probe copies into a [`FetchPlan`]; the
//! object runs the plan and sends a record: a [`RecordHeader`] and the bytes that the plan asked for.
#![cfg_attr(not(target_arch = "bpf"), no_std)]

mod counters;
mod gate;
mod plan;
mod python;
mod record;
mod share;
mod walk;

pub use counters::ProbeCounters;
pub use gate::{CLOSED, MAX_ADMITTED, OPEN, OPEN_TO_ADMITTED};
pub use plan::{
    ARG_SLOTS, COOKIE_BITS, FetchPlan, MAX_COPY, MAX_PROBES, MAX_STEPS, SLOTS, STACK_POINTER_SLOT, Step,
    StepOp, TEMP_SLOTS,
};
pub use python::{
    COPIES_AT_ONCE, COPY_EVERY_NS, ENTERS_BEFORE_LEFT_OUT, ENTERS_EACH, FRAME_BYTES, LARGEST_STACK,
    MAX_CODE_WORDS, MAX_PIECES, MAX_PYTHONS, MAX_SLOT_LISTS, MAX_SLOTS, MAX_STACK_FRAMES, MAX_STACKS,
    MAX_STATE_BYTES, MAX_THREADS_WALKED, NAME_BYTES, NO_INSTRUCTION, NO_OFFSET, NO_VERSION, NOT_HASHED,
    PIECE_BYTES, PIECE_RECORD, PIECE_REGISTERS, PieceHead, PythonWalk, RawFrame, ReturnSlots, STACK_COOKIE,
    STACK_CUT, STACK_FRAMES, STACK_KNOWN, STACK_NATIVE, STACK_NO_THREAD, STACK_NOT_COPIED, STACK_PIECE,
    STACK_RECORD, STACK_UNREADABLE, SentStack, StackHead, StringHead, TAKES_NATIVE, TAKES_PYTHON,
    VERSION_OF_CODE, VERSION_OF_NAMES, mix, mix_begun,
};
pub use record::{
    LARGEST_RECORD, LOSS_MARK, LOSS_SLOTS, MAX_RINGS, RECORD_CLASSES, RecordClass, RecordHeader,
    SCRATCH_SLOTS, WIRE_VERSION, loss_slot, ring_of, wakeup_bytes,
};
pub use share::{MAX_SHARERS, MAX_TENANT_PROCESSES, ShareTaken, common_bytes, own_tenant, share_key};
pub use walk::{
    CUT, Fan, GATE_TAGS, Gate, MAX_GATES, MAX_NODES, MAX_QUEUES, MAX_ROWS, MAX_TRIES, NODE_BYTES_AT,
    NODE_GIVEN, NOWHERE, ONE_NODE, PACK_BYTES, PACKED, PACKED_BYTES, PART_SLOTS, Queue, ROW_GIVEN, SENT,
    SHORT_COPIES, SHORT_HEADS, Seen, Short, ShortCopy, Walk,
};
