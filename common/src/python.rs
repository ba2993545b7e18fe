//! Call stacks: how Python's are found in a process's memory, and what is sent of them and of native ones.
//!
//! The kernel side knows nothing of CPython: it follows the pointers that a [`PythonWalk`] names. It knows
//! nothing of native frames either: it copies the stack, and user space unwinds it.

use super::record::{LARGEST_RECORD, RecordHeader};

/// Hash field of a string whose hash was never asked for. The first [`NAME_BYTES`] bytes of its characters
/// are compared instead.
pub const NOT_HASHED: u64 = u64::MAX;
pub const NAME_BYTES: usize = 80;

/// The head of a string of CPython 3.8 to 3.11 (`PyASCIIObject`, Include/cpython/unicodeobject.h), from the
/// word before its hash on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StringHead {
    /// Length in characters.
    pub length: u64,
    pub hash: u64,
    pub state: u64,
}

impl StringHead {
    /// Tells whether the string is in the dictionary of interned strings.
    pub const fn is_interned(&self) -> bool {
        self.state & 3 != 0
    }

    /// Returns the offset of the characters from the hash, in bytes, and how many bytes of them are compared.
    pub const fn characters(&self) -> (u64, u64) {
        let (bytes_each, is_ascii) = (self.state >> 2 & 7, self.state >> 6 & 1 != 0);
        let bytes = self.length.wrapping_mul(bytes_each);
        let most = NAME_BYTES as u64;
        (if is_ascii { 24 } else { 48 }, if bytes < most { bytes } else { most })
    }
}

/// Cookie of stacks, the first one, in sessions that have stacks.
pub const STACK_COOKIE: u32 = 0;

/// Frames of one stack at most.
pub const MAX_STACK_FRAMES: usize = 48;

/// Default of the frames of one stack.
pub const STACK_FRAMES: u8 = 24;

/// Words of a code object that are compared at most.
pub const MAX_CODE_WORDS: usize = 12;

/// Value of an offset for a field that the structure does not have.
pub const NO_OFFSET: u32 = u32::MAX;

/// Processes whose stacks can be walked.
pub const MAX_PYTHONS: u32 = 1024;

/// Entries of the maps of stacks that were sent and of threads whose state is known. An entry that is pushed
/// out is sent, or looked for, again.
pub const MAX_STACKS: u32 = 16_384;

/// Threads and interpreters that are looked at to find the thread of a hit, at most.
pub const MAX_THREADS_WALKED: u32 = 128;

/// [`RawFrame::instr`] for an instruction in a copy of the bytecode that could not be found. No instruction
/// has this address.
pub const NO_INSTRUCTION: u64 = 0;

/// Most bytes of a frame that hold all of its fields.
pub const FRAME_BYTES: usize = 128;

/// Largest [`PythonWalk::state_len`].
pub const MAX_STATE_BYTES: u32 = 512;

/// Bits of [`PythonWalk::takes`]: Python's frames; native frames.
pub const TAKES_PYTHON: u8 = 1;
pub const TAKES_NATIVE: u8 = 2;

/// Values of [`PythonWalk::version_of`]. None: nothing tells that code objects, or their names, are still the
/// same. Names: the version of the dictionary of interned strings tells that names are. Code: the
/// interpreter's tells that code objects are.
pub const NO_VERSION: u8 = 0;
pub const VERSION_OF_NAMES: u8 = 1;
pub const VERSION_OF_CODE: u8 = 2;

/// Values of [`PythonWalk::frame_enters`]: a C function evaluates each frame; it begins with the frame before
/// one that is left out. Another value is the place of a byte that is not 0 in a frame with which a C
/// function begins.
pub const ENTERS_EACH: u8 = 0xff;
pub const ENTERS_BEFORE_LEFT_OUT: u8 = 0xfe;

/// Bytes of one piece of a native stack. The stack is copied in pieces, the first of which holds the stack
/// pointer.
pub const PIECE_BYTES: usize = 1024;
pub const MAX_PIECES: usize = 17;

/// [`RecordHeader::probe`] of a piece. The piece belongs to the stack of the same thread and time that
/// follows.
pub const STACK_PIECE: u16 = u16::MAX - 1;

/// Return addresses by which native stacks are told apart.
pub const MAX_SLOTS: usize = 60;
/// Lists of [`ReturnSlots`] that are kept: one for each probe, stack pointer and return address.
pub const MAX_SLOT_LISTS: u32 = 8192;

/// Pace at which a process's stacks are copied: one each millisecond on average, and at most
/// [`COPIES_AT_ONCE`] at once.
pub const COPY_EVERY_NS: u64 = 1_000_000;
pub const COPIES_AT_ONCE: u64 = 64;

/// Layout and addresses by which the stacks of one process are found. Offsets are bytes from the beginning of
/// the structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PythonWalk {
    /// Address of the pointer to the first interpreter.
    pub interpreters: u64,
    /// Device and inode of the PID namespace in which the process knows its threads; an inode of 0: the
    /// initial one.
    pub pid_namespace: [u64; 2],
    pub interpreter_next: u32,
    /// Offset of the pointer to the interpreter's first thread.
    pub interpreter_threads: u32,
    pub thread_next: u32,
    /// Offset of the thread's number as the kernel has it, 4 bytes.
    pub thread_tid: u32,
    /// Offset of the pointer to the C library's structure of the thread, if `thread_tid` is [`NO_OFFSET`].
    pub thread_pthread: u32,
    /// Offset of the thread's number in that structure.
    pub pthread_tid: u32,
    /// Offset of the pointer to the innermost frame, or to the structure that has this pointer.
    pub thread_frame: u32,
    /// Offset of the pointer to the innermost frame in that structure; [`NO_OFFSET`]: `thread_frame` points
    /// to the frame.
    pub root_frame: u32,
    /// Offset of the pointer to the frame that called it; below [`FRAME_BYTES`], as the following offsets in
    /// a frame.
    pub frame_previous: u8,
    pub frame_code: u8,
    pub frame_instr: u8,
    /// Bytes of the instruction's field: 4 or 8.
    pub instr_len: u8,
    /// Offset of the owner of a frame, one byte. A frame is left out if its owner is one of the bits of
    /// `owners_left_out`.
    pub frame_owner: u8,
    /// Frames to walk; at most [`MAX_STACK_FRAMES`].
    pub depth: u8,
    pub owners_left_out: u16,
    /// Bits of a pointer to code that are not part of the address.
    pub code_tags: u64,
    /// Words of a code object that tell it from another one at the same address.
    pub code_words_at: u16,
    pub code_words: u16,
    /// Offset of the pointer to the code's name, if the name's own hash is compared, too; else [`NO_OFFSET`].
    /// The pointer is among the words.
    pub code_name: u32,
    /// Offset of the hash in a string: see [`StringHead`].
    pub string_hash: u32,
    /// Bytes of a frame that hold its fields: at most [`FRAME_BYTES`].
    pub frame_len: u32,
    /// Bits [`TAKES_PYTHON`] and [`TAKES_NATIVE`]. Without the first, only `pid_namespace` counts.
    pub takes: u8,
    /// Mark of the frames with which a C function of the interpreter begins: [`ENTERS_EACH`],
    /// [`ENTERS_BEFORE_LEFT_OUT`], or a place in the frame.
    pub frame_enters: u8,
    /// Not 0 if frames mostly lie one after the other, and so are read together.
    pub in_chunks: u8,
    /// Offset of the number of the copy of the bytecode that a frame runs, 4 bytes; number 0 is the code
    /// object's own. Only if there is `code_copies`.
    pub frame_copy: u8,
    /// Offset in a code object of the pointer to its copies of the bytecode: their number, and a pointer to
    /// each; 0: it has none.
    pub code_copies: u16,
    /// Offset of the code object's own bytecode.
    pub code_first: u16,
    /// Kind of objects for which there is a version that stays the same as long as none of them is dropped:
    /// [`NO_VERSION`], [`VERSION_OF_NAMES`] (only with `code_name`), [`VERSION_OF_CODE`].
    pub version_of: u8,
    pub reserved: [u8; 7],
    /// Offset of the version in the dictionary or in the thread's interpreter, whichever has it.
    pub version_at: u32,
    /// Offset of the pointer to the interpreter in a thread's state.
    pub thread_interpreter: u32,
    /// Part of a thread's state that has its number, the pointer that leads to its frames and, for
    /// [`VERSION_OF_CODE`], its interpreter. A length of 0: they are too far from each other to be read at
    /// once.
    pub state_at: u32,
    pub state_len: u32,
    /// Address of the pointer to the dictionary of interned strings, for [`VERSION_OF_NAMES`].
    pub interned: u64,
}

/// A stack whose frames were sent. Its key in the map is its id without the part that a
/// [`PythonWalk::version_of`] spares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SentStack {
    /// [`StackHead::id`], with that part.
    pub id: u64,
    /// Version before that part was read; 0: it must be read again.
    pub version: u64,
    /// [`mix`] of key, id and version. It shows that another stack took the place of this one while it was
    /// read.
    pub check: u64,
}

impl SentStack {
    pub const fn new(key: u64, id: u64, version: u64) -> Self {
        Self { id, version, check: mix(mix(key, id), version) }
    }

    /// Tells whether this is the entry of the key, in one piece.
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
    /// Place in the code as CPython has it: an address, or an index. An address in a thread's own copy of the
    /// bytecode is given as that of the same instruction in the code object, or as [`NO_INSTRUCTION`].
    pub instr: u64,
    /// [`mix`] of the code object's words, and of its name's hash where that is compared.
    pub guard: u64,
}

/// Head of a stack, behind the record's header. `n_frames` of [`RawFrame`] follow, innermost first, if the
/// stack was not sent before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StackHead {
    /// [`mix`] of process and frames: equal stacks of a process have the same id.
    pub id: u64,
    /// Bits [`STACK_CUT`], [`STACK_UNREADABLE`], [`STACK_NO_THREAD`], [`STACK_NATIVE`], [`STACK_NOT_COPIED`],
    /// [`STACK_KNOWN`].
    pub flags: u32,
    /// Frames of the stack.
    pub n_frames: u32,
}

/// There are more frames than were walked.
pub const STACK_CUT: u32 = 1;
/// Memory could not be read, as the page was not there: the frame after the last one or, if a frame has no
/// guard, its code.
pub const STACK_UNREADABLE: u32 = 2;
/// No state of the interpreter was found for the thread.
pub const STACK_NO_THREAD: u32 = 4;
/// The id includes the native frames. Pieces of the stack were sent before this record if the stack is new.
pub const STACK_NATIVE: u32 = 8;
/// Native frames are wanted, and the stack was not copied: too many were.
pub const STACK_NOT_COPIED: u32 = 16;
/// The stack was sent before. Needed where that does not show, as the stack has no frames.
pub const STACK_KNOWN: u32 = 32;

/// Bytes of the record of a stack that was sent before; then the most bytes of one that was not.
pub const STACK_RECORD: usize = size_of::<RecordHeader>() + size_of::<StackHead>();
pub const LARGEST_STACK: usize = STACK_RECORD + MAX_STACK_FRAMES * size_of::<RawFrame>();

/// Head of a piece of a stack, behind the record's header; [`PIECE_BYTES`] follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PieceHead {
    /// Registers at the hit: rip, rsp, rbp, rbx, r12, r13, r14, r15. No other register is the caller's.
    pub registers: [u64; PIECE_REGISTERS],
    /// Address that the bytes were copied from.
    pub address: u64,
    /// Key under which user space stores the [`ReturnSlots`] of such stacks.
    pub key: u64,
    /// Bit mask: bit i is set if a C function of the interpreter begins with frame i, counted from the
    /// innermost.
    pub enters: u64,
    /// Name of the thread, padded with zeroes.
    pub comm: [u8; 16],
}

pub const PIECE_REGISTERS: usize = 8;

/// Bytes of the record of a piece.
pub const PIECE_RECORD: usize = size_of::<RecordHeader>() + size_of::<PieceHead>() + PIECE_BYTES;

/// Places of return addresses in stacks with the same probe, stack pointer and return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ReturnSlots {
    pub n: u32,
    pub reserved: u32,
    /// Places, in words above the stack pointer.
    pub at: [u16; MAX_SLOTS],
}

/// Returns the value with which a hash of a process's stacks begins.
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
