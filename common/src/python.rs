//! Call stacks: where those of Python are in a process's memory, and what is sent of them and of native ones.
//!
//! The kernel side knows nothing of CPython: it follows the pointers that a [`PythonWalk`] names. Of native
//! frames it knows nothing either: it copies the stack, and user space unwinds it.

use super::record::{LARGEST_RECORD, RecordHeader};

/// Hash of a string that was never asked for its own: then what it says is compared, so many bytes of it.
pub const NOT_HASHED: u64 = u64::MAX;
pub const NAME_BYTES: usize = 80;

/// The head of a string of CPython 3.8 to 3.11 (`PyASCIIObject`, Include/cpython/unicodeobject.h), from the word before
/// its hash on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StringHead {
    /// In characters.
    pub length: u64,
    pub hash: u64,
    pub state: u64,
}

impl StringHead {
    /// Whether the dictionary of interned strings has it.
    pub const fn is_interned(&self) -> bool {
        self.state & 3 != 0
    }

    /// Where its characters are, in bytes behind the hash, and how many bytes of them are compared.
    pub const fn characters(&self) -> (u64, u64) {
        let (bytes_each, is_ascii) = (self.state >> 2 & 7, self.state >> 6 & 1 != 0);
        let bytes = self.length.wrapping_mul(bytes_each);
        let most = NAME_BYTES as u64;
        (if is_ascii { 24 } else { 48 }, if bytes < most { bytes } else { most })
    }
}

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

/// [`RawFrame::instr`] of a copy of the bytecode that could not be found: no instruction has this address.
pub const NO_INSTRUCTION: u64 = 0;

/// Bytes of a frame in which all of its fields are, at most.
pub const FRAME_BYTES: usize = 128;

/// [`PythonWalk::state_len`], at most.
pub const MAX_STATE_BYTES: u32 = 512;

/// [`PythonWalk::takes`]: Python's frames; native frames.
pub const TAKES_PYTHON: u8 = 1;
pub const TAKES_NATIVE: u8 = 2;

/// [`PythonWalk::version_of`]: nothing tells that code objects, or their names, are still the same. The dictionary of
/// interned strings: names are. The interpreter: code objects are.
pub const NO_VERSION: u8 = 0;
pub const VERSION_OF_NAMES: u8 = 1;
pub const VERSION_OF_CODE: u8 = 2;

/// [`PythonWalk::frame_enters`]: a C function evaluates each frame; it begins with the frame before one that is
/// left out; another value is the place of a byte that is not 0 in such a frame.
pub const ENTERS_EACH: u8 = 0xff;
pub const ENTERS_BEFORE_LEFT_OUT: u8 = 0xfe;

/// Bytes of a native stack that are copied, in pieces, from the one with the stack pointer on.
pub const PIECE_BYTES: usize = 1024;
pub const MAX_PIECES: usize = 17;

/// [`RecordHeader::probe`] of a piece: it belongs to the stack of the same thread and time that follows.
pub const STACK_PIECE: u16 = u16::MAX - 1;

/// Return addresses by which native stacks are told apart.
pub const MAX_SLOTS: usize = 60;
/// Probes, stack pointers and return addresses of which it is known where further return addresses are.
pub const MAX_SLOT_LISTS: u32 = 8192;

/// Copies of a process's stacks: one each millisecond on average, and so many at once.
pub const COPY_EVERY_NS: u64 = 1_000_000;
pub const COPIES_AT_ONCE: u64 = 64;

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
    /// Of the pointer to the name of the code, if the name's own hash is compared, too; else [`NO_OFFSET`]. It is
    /// among the words.
    pub code_name: u32,
    /// Of the hash in a string: see [`StringHead`].
    pub string_hash: u32,
    /// Bytes of a frame in which its fields are: at most [`FRAME_BYTES`].
    pub frame_len: u32,
    /// [`TAKES_PYTHON`], [`TAKES_NATIVE`]. Without the first, nothing but `pid_namespace` counts.
    pub takes: u8,
    /// How the frames are known with which a C function of the interpreter begins: [`ENTERS_EACH`],
    /// [`ENTERS_BEFORE_LEFT_OUT`], or a place in the frame.
    pub frame_enters: u8,
    /// Not 0: frames mostly lie one after the other, and are read together.
    pub in_chunks: u8,
    /// Number of the copy of the bytecode that a frame runs, 4 bytes; 0 is the code object's own. Only if there is
    /// `code_copies`.
    pub frame_copy: u8,
    /// In a code object, the pointer to its copies of the bytecode: their number, and a pointer to each; 0: it has none.
    pub code_copies: u16,
    /// Where a code object's own bytecode begins in it.
    pub code_first: u16,
    /// Of what there is a version that stays the same as long as nothing of it is dropped: [`NO_VERSION`],
    /// [`VERSION_OF_NAMES`] (only with `code_name`), [`VERSION_OF_CODE`].
    pub version_of: u8,
    pub reserved: [u8; 7],
    /// Of the version, in what has it: the dictionary, or the thread's interpreter.
    pub version_at: u32,
    /// Of the pointer to the interpreter, in a thread's state.
    pub thread_interpreter: u32,
    /// The part of a thread's state that has its number, what leads to its frames and, for [`VERSION_OF_CODE`], its
    /// interpreter; a length of 0: they are too far from each other to be read at once.
    pub state_at: u32,
    pub state_len: u32,
    /// Address of the pointer to the dictionary of interned strings, for [`VERSION_OF_NAMES`].
    pub interned: u64,
}

/// A stack whose frames were sent, under its key: its id without what a [`PythonWalk::version_of`] spares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SentStack {
    /// [`StackHead::id`], with it.
    pub id: u64,
    /// The version when that was read; 0: it must be read again.
    pub version: u64,
    /// [`mix`] of key, id and version: another stack can take the place of this one while it is read.
    pub check: u64,
}

impl SentStack {
    pub const fn new(key: u64, id: u64, version: u64) -> Self {
        Self { id, version, check: mix(mix(key, id), version) }
    }

    /// Whether it is that of this key, as it was written.
    pub const fn is_whole(&self, key: u64) -> bool {
        self.check == mix(mix(key, self.id), self.version)
    }
}

/// A frame as it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RawFrame {
    /// Address of the code object.
    pub code: u64,
    /// Where in the code it is, as CPython has it: an address, or an index. An address in a thread's own copy of the
    /// bytecode is given as that of the same instruction in the code object, or as [`NO_INSTRUCTION`].
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
    /// [`STACK_CUT`], [`STACK_UNREADABLE`], [`STACK_NO_THREAD`], [`STACK_NATIVE`], [`STACK_NOT_COPIED`],
    /// [`STACK_KNOWN`].
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
/// The id is of the native frames, too; pieces of the stack were sent before it where it is new.
pub const STACK_NATIVE: u32 = 8;
/// Native frames are wanted, and the stack was not copied: too many were.
pub const STACK_NOT_COPIED: u32 = 16;
/// It was sent before. Said where that does not show, as there are no frames.
pub const STACK_KNOWN: u32 = 32;

/// Bytes of a record of a stack that was sent before, and of one that was not.
pub const STACK_RECORD: usize = size_of::<RecordHeader>() + size_of::<StackHead>();
pub const LARGEST_STACK: usize = STACK_RECORD + MAX_STACK_FRAMES * size_of::<RawFrame>();

/// What is behind the header of a piece of a stack; [`PIECE_BYTES`] follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PieceHead {
    /// At the hit: rip, rsp, rbp, rbx, r12, r13, r14, r15. No other register is the caller's.
    pub registers: [u64; PIECE_REGISTERS],
    /// Where the bytes are from.
    pub address: u64,
    /// Under which user space stores where return addresses are: [`ReturnSlots`].
    pub key: u64,
    /// Bit i: a C function of the interpreter begins with frame i, counted from the innermost.
    pub enters: u64,
    /// Name of the thread, with zeroes behind it.
    pub comm: [u8; 16],
}

pub const PIECE_REGISTERS: usize = 8;

/// Bytes of the record of a piece.
pub const PIECE_RECORD: usize = size_of::<RecordHeader>() + size_of::<PieceHead>() + PIECE_BYTES;

/// Where return addresses were in stacks with the same probe, stack pointer and return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ReturnSlots {
    pub n: u32,
    pub reserved: u32,
    /// Words above the stack pointer.
    pub at: [u16; MAX_SLOTS],
}

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
    assert!(size_of::<PythonWalk>() == 128 && size_of::<SentStack>() == 24);
    assert!(size_of::<PieceHead>() == 104 && PIECE_RECORD <= LARGEST_RECORD);
    assert!(size_of::<ReturnSlots>() == 128);
    assert!(
        size_of::<StringHead>() == 24 && NAME_BYTES.is_multiple_of(8) && NAME_BYTES <= 8 * MAX_CODE_WORDS
    );
    assert!(size_of::<RawFrame>() == 24 && size_of::<StackHead>() == 16);
    assert!(LARGEST_STACK <= LARGEST_RECORD);
};
