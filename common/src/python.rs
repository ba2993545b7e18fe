//! Call stacks of Python: where they are in a process's memory, and what is sent of them.
//!
//! The kernel side knows nothing of CPython: it follows the pointers that a [`PythonWalk`] names.

use super::record::{LARGEST_RECORD, RecordHeader};

/// The cookie of stacks, in sessions that have them: the first.
pub const STACK_COOKIE: u32 = 0;

/// Frames of one stack at most.
pub const MAX_STACK_FRAMES: usize = 48;

/// Frames of one stack where nobody asks for another number.
pub const STACK_FRAMES: u8 = 24;

/// Words of a code object that are compared at most.
pub const MAX_CODE_WORDS: usize = 12;

/// An offset that there is none of.
pub const NO_OFFSET: u32 = u32::MAX;

/// Processes whose stacks can be walked.
pub const MAX_PYTHONS: u32 = 1024;

/// Stacks that were sent, and threads whose state is known. What is pushed out is sent, or looked for, again.
pub const MAX_STACKS: u32 = 16_384;

/// Threads and interpreters that are looked at to find the thread of a hit.
pub const MAX_THREADS_WALKED: u32 = 128;

/// Bytes of a frame in which all of its fields are, at most.
pub const FRAME_BYTES: usize = 128;

/// Where the stacks of one process are. Offsets are bytes from the beginning of the structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PythonWalk {
    /// Address of the pointer to the first interpreter.
    pub interpreters: u64,
    /// Device and inode of the PID namespace in which the process knows its threads; an inode of 0: the
    /// initial one.
    pub pid_namespace: [u64; 2],
    pub interpreter_next: u32,
    /// Of the pointer to the interpreter's first thread.
    pub interpreter_threads: u32,
    pub thread_next: u32,
    /// The thread's number as the kernel has it, in 4 bytes.
    pub thread_tid: u32,
    /// If `thread_tid` is [`NO_OFFSET`]: of the pointer to the C library's structure of the thread.
    pub thread_pthread: u32,
    /// In that structure: the thread's number.
    pub pthread_tid: u32,
    /// Of the pointer to the innermost frame, or to what has it.
    pub thread_frame: u32,
    /// In what `thread_frame` points to, the pointer to the innermost frame; [`NO_OFFSET`]: it is the frame.
    pub root_frame: u32,
    /// Below [`FRAME_BYTES`], as the following.
    pub frame_previous: u8,
    pub frame_code: u8,
    pub frame_instr: u8,
    /// Bytes of it: 4 or 8.
    pub instr_len: u8,
    /// What owns a frame, one byte; a frame is left out if its owner is one of the bits of `owners_left_out`.
    pub frame_owner: u8,
    /// Frames to walk; at most [`MAX_STACK_FRAMES`].
    pub depth: u8,
    pub owners_left_out: u16,
    /// Bits of a pointer to code that are none of the address.
    pub code_tags: u64,
    /// Words of a code object by which it is told from another that takes its place.
    pub code_words_at: u16,
    pub code_words: u16,
    /// Of the pointer to the name of the code, if the name's own hash is compared, too; else [`NO_OFFSET`].
    pub code_name: u32,
    /// Of the hash in a string.
    pub string_hash: u32,
    /// Bytes of a frame in which its fields are: at most [`FRAME_BYTES`].
    pub frame_len: u32,
}

/// A frame as it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RawFrame {
    /// Address of the code object.
    pub code: u64,
    /// Where in the code it is, as CPython has it: an address, or an index.
    pub instr: u64,
    /// [`mix`] of what the code object has in its words.
    pub guard: u64,
}

/// What is behind the header of a record of a stack. `n_frames` of [`RawFrame`] follow, innermost first, if
/// the stack was not sent before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StackHead {
    /// [`mix`] of process and frames: the same where the stack is.
    pub id: u64,
    /// [`STACK_CUT`], [`STACK_UNREADABLE`], [`STACK_NO_THREAD`].
    pub flags: u32,
    /// Frames of the stack.
    pub n_frames: u32,
}

/// There are more frames than were walked.
pub const STACK_CUT: u32 = 1;
/// What comes after the frames, or of one without a guard its code, could not be read: the page was not there.
pub const STACK_UNREADABLE: u32 = 2;
/// No state of the interpreter was found for the thread.
pub const STACK_NO_THREAD: u32 = 4;

/// Bytes of a record of a stack that was sent before, and of one that was not.
pub const STACK_RECORD: usize = size_of::<RecordHeader>() + size_of::<StackHead>();
pub const LARGEST_STACK: usize = STACK_RECORD + MAX_STACK_FRAMES * size_of::<RawFrame>();

/// Where a hash of a process's stacks begins.
pub const fn mix_begun(tgid: u32) -> u64 {
    mix(0x243f_6a88_85a3_08d3, tgid as u64)
}

/// Mixes a word into a hash.
#[expect(clippy::inline_always, reason = "the kernel side calls it for each word of a stack")]
#[inline(always)]
pub const fn mix(hash: u64, word: u64) -> u64 {
    let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

const _: () = {
    assert!(size_of::<PythonWalk>() == 88);
    assert!(size_of::<RawFrame>() == 24 && size_of::<StackHead>() == 16);
    assert!(LARGEST_STACK <= LARGEST_RECORD);
};
