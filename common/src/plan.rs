//! Fetch plans: descriptions, as data, of what to copy when a probe is hit.

/// Probes that one session can arm. The cookie of a probe is its index, and less than this.
pub const MAX_PROBES: u32 = 1024;

/// Number of low bits of a return probe's cookie that hold the index. The bits above them hold the only
/// process whose returns count, by its number in the first PID namespace; 0: any.
///
/// Links to single events are limited to a process, but before Linux 6.12 (900f362e2062, "tracing/uprobe: Add
/// missing PID filter for uretprobe") the program ran for every process in which the function's return was
/// traced: with two processes, twice for each return.
pub const COOKIE_BITS: u32 = 32;

/// Steps in one plan, and fault bits in a record's header.
pub const MAX_STEPS: usize = 48;

/// Words that a plan can work with.
pub const SLOTS: usize = 32;

/// Number of slots that start as the integer argument registers, in the order of the calling convention
/// (x86-64: rdi rsi rdx rcx r8 r9, then unused; aarch64: x0 to x7). At a return slot 0 is the return value
/// instead, and the others are 0.
pub const ARG_SLOTS: usize = 8;

/// Slot that starts as the stack pointer at the probed instruction; at a return, as the stack pointer after
/// it.
pub const STACK_POINTER_SLOT: u8 = 8;

/// Slots that start as 0 and are free for intermediate values.
pub const TEMP_SLOTS: core::ops::Range<u8> = 9..32;

/// Largest number of bytes that one [`StepOp::Copy`] can copy.
pub const MAX_COPY: usize = 256;

/// Operation of a [`Step`]. `slot[x]` is a 64-bit word, memory is the target's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StepOp {
    /// `slot[dst] = memory[slot[src] + imm .. +len]`, zero-extended; `len` is 1, 2, 4 or 8.
    Load = 1,
    /// `slot[dst] = slot[src] + slot[index] * imm`. The index counts as signed 64 bits.
    Scale = 2,
    /// `slot[dst] = slot[src] + imm`.
    Add = 6,
    /// Leaves out the next `imm` steps if `slot[src]` is 0.
    Skip = 8,
    /// `slot[dst] = slot[src]`, less `slot[index]` if `slot[src]` is at least that.
    Wrap = 7,
    /// `slot[dst]` = the low 32 bits of `slot[src]`, sign-extended: the upper half of a register that carries
    /// an `int` is undefined.
    Int32 = 5,
    /// `record[at .. at+8] = slot[src]`.
    Emit = 3,
    /// `record[at .. at+len] = memory[slot[src] + imm .. +len]`.
    Copy = 4,
    /// [`StepOp::Emit`], then [`StepOp::Copy`] behind it: an address, and the bytes at it.
    EmitAndCopy = 9,
    /// `slot[dst], slot[dst+1] ... = memory[slot[src] + imm .. +len]`, words of 8 bytes: at most half of the
    /// slots, into the first half of them.
    LoadWords = 10,
    /// Keeps `slot[src]` for the thread and for its process, in place of what was kept before.
    Keep = 11,
    /// `slot[dst]` = what was kept for the thread or, where `imm` is not 0, for its process; 0 if nothing is. It is
    /// not kept any longer.
    Take = 12,
}

/// A step of a plan. A read that fails yields zeroes and sets the step's bit in
/// [`crate::RecordHeader::faults`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// A [`StepOp`]; 0 ends the plan.
    pub op: u8,
    pub dst: u8,
    pub src: u8,
    pub index: u8,
    /// Position in the record, counted from the start of the header.
    pub at: u16,
    /// Bytes to read.
    pub len: u16,
    pub imm: i64,
}

/// Description of what a probe copies. The plan of the probe with cookie `c` is element `c` of the map
/// `PLANS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FetchPlan {
    /// Bytes of the whole record, header included; at most the size of its class.
    pub record_len: u16,
    /// Class of the record: an index in [`crate::RECORD_CLASSES`].
    pub class: u16,
    /// Steps in use.
    pub n_steps: u32,
    pub steps: [Step; MAX_STEPS],
}

impl Default for FetchPlan {
    fn default() -> Self {
        Self { record_len: 0, class: 0, n_steps: 0, steps: [Step::default(); MAX_STEPS] }
    }
}

const _: () = {
    assert!(size_of::<Step>() == 16);
    assert!(size_of::<FetchPlan>() == 8 + MAX_STEPS * 16);
    assert!(MAX_STEPS <= 64, "a fault bit per step");
    assert!(TEMP_SLOTS.end as usize == SLOTS && TEMP_SLOTS.start == STACK_POINTER_SLOT + 1);
};
