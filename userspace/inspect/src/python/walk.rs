//! Description of an interpreter for the kernel side, which walks it.

use std::{io, os::unix::fs::MetadataExt as _};

use cpython::{DICT_VERSION, FrameRoot, Instruction, Offsets, Python, ThreadOffsets};
use ncclflow_common::{
    ENTERS_BEFORE_LEFT_OUT, ENTERS_EACH, FRAME_BYTES, MAX_CODE_WORDS, MAX_STACK_FRAMES, MAX_STATE_BYTES,
    NAME_BYTES, NO_OFFSET, NO_VERSION, NOT_HASHED, PythonWalk, StringHead, TAKES_NATIVE, TAKES_PYTHON,
    VERSION_OF_CODE, VERSION_OF_NAMES, mix,
};

use crate::process::Process;

/// Inode of the first PID namespace: `PROC_PID_INIT_INO` (include/linux/proc_ns.h).
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Distance from a string's `hash`, which is set once it was asked for, to its `state`: `PyASCIIObject`
/// (Include/cpython/unicodeobject.h).
const HASH_BEFORE_STATE: u32 = 8;

/// Describes a process of which native frames alone are taken.
pub fn without_python() -> PythonWalk {
    PythonWalk { takes: TAKES_NATIVE, code_name: NO_OFFSET, ..PythonWalk::default() }
}

/// Distance from `prev_instr` to `is_entry`, by which a frame of 3.11 says that it is the first of its C
/// function. Between them is `stacktop`, an `int` (Include/internal/pycore_frame.h).
const IS_ENTRY_BEHIND_INSTRUCTION: u32 = 12;

/// Describes this interpreter. `tid_place`: see [`PythonWalk::pthread_tid`].
///
/// # Errors
/// A sentence for people on why it cannot be walked.
pub(super) fn of(
    python: &Python,
    process: &Process,
    tid_place: Option<u32>,
    depth: u8,
) -> Result<PythonWalk, String> {
    let Python { offsets, runtime } = python;
    let Offsets { interpreter, thread, frame, code, .. } = offsets;
    let unlike = |_| "its layouts are like those of no CPython".to_owned();
    let (words_at, words) = guard_words(offsets)?;
    let instr_len: u8 = if offsets.instruction() == Instruction::Pointer { 8 } else { 4 };
    // From 3.12 on a C function begins with a frame of its own, which is left out; before 3.11 each evaluates
    // one.
    let version = offsets.version;
    let frame_enters: u8 = match version.minor {
        ..=10 => ENTERS_EACH,
        11 => (frame.instruction + IS_ENTRY_BEHIND_INSTRUCTION).try_into().map_err(unlike)?,
        _ => ENTERS_BEFORE_LEFT_OUT,
    };
    let enters_end = if version.minor == 11 { u32::from(frame_enters) + 1 } else { 0 };
    let last = [frame.previous + 8, frame.code + 8, frame.instruction + u32::from(instr_len), enters_end];
    let others = [frame.owner.map(|owner| owner + 1), frame.bytecode_copy.map(|copy| copy + 4)];
    let last = last.into_iter().chain(others.into_iter().flatten()).max().unwrap_or(0);
    let frame_len = last.next_multiple_of(8);
    if frame_len as usize > FRAME_BYTES {
        return Err("its frames are larger than those of any CPython".to_owned());
    }
    let version_of = if interpreter.code_generation.is_some() { VERSION_OF_CODE } else { NO_VERSION };
    let (state_at, state_len) = state_part(thread, version_of);
    Ok(PythonWalk {
        interpreters: runtime
            .checked_add(u64::from(offsets.runtime.interpreters_head))
            .ok_or("its runtime is at no address")?,
        pid_namespace: pid_namespace(process).map_err(|error| format!("its PID namespace: {error}"))?,
        interpreter_next: interpreter.next,
        interpreter_threads: interpreter.threads_head,
        thread_next: thread.next,
        thread_tid: thread.native_thread_id.unwrap_or(NO_OFFSET),
        thread_pthread: thread.thread_id,
        pthread_tid: tid_place.unwrap_or(0),
        thread_frame: thread.frame,
        root_frame: match offsets.frame_root() {
            FrameRoot::CFrame { current_frame } => current_frame,
            FrameRoot::Object | FrameRoot::Direct => NO_OFFSET,
        },
        frame_previous: frame.previous.try_into().map_err(unlike)?,
        frame_code: frame.code.try_into().map_err(unlike)?,
        frame_instr: frame.instruction.try_into().map_err(unlike)?,
        instr_len,
        frame_owner: frame.owner.unwrap_or(0).try_into().map_err(unlike)?,
        depth: depth.min(u8::try_from(MAX_STACK_FRAMES).unwrap_or(u8::MAX)),
        owners_left_out: match (frame.owner, offsets.first_owner_without_code()) {
            (Some(_), Some(first)) => u16::MAX.checked_shl(u32::from(first)).unwrap_or(0),
            _ => 0,
        },
        code_tags: offsets.code_tags(),
        code_words_at: words_at,
        code_words: words,
        // From 3.12 on code objects are numbered (`co_version`), and the number is among the words.
        code_name: if offsets.version.since(3, 12) { NO_OFFSET } else { code.name },
        string_hash: offsets.text.state.checked_sub(HASH_BEFORE_STATE).ok_or("its strings have no hash")?,
        frame_len,
        takes: TAKES_PYTHON,
        frame_enters,
        in_chunks: u8::from(version.since(3, 11)),
        frame_copy: frame.bytecode_copy.unwrap_or(0).try_into().map_err(unlike)?,
        code_copies: code
            .bytecode_copies
            .filter(|_| frame.bytecode_copy.is_some())
            .unwrap_or(0)
            .try_into()
            .map_err(unlike)?,
        code_first: code.instructions.unwrap_or(0).try_into().map_err(unlike)?,
        version_of,
        version_at: interpreter.code_generation.unwrap_or(0),
        thread_interpreter: thread.interpreter,
        state_at,
        state_len,
        ..PythonWalk::default()
    })
}

/// Spares reading names again as long as the dictionary of interned strings has the same version. `interned`
/// is where the pointer to the dictionary is.
pub(super) fn spare_names(walk: &mut PythonWalk, interned: u64) {
    (walk.version_of, walk.version_at, walk.interned) = (VERSION_OF_NAMES, DICT_VERSION, interned);
}

/// Returns [`PythonWalk::state_at`] and [`PythonWalk::state_len`].
fn state_part(thread: &ThreadOffsets, version_of: u8) -> (u32, u32) {
    let Some(tid) = thread.native_thread_id else { return (0, 0) };
    let interpreter = (version_of == VERSION_OF_CODE).then_some(thread.interpreter);
    let places = || [tid, thread.frame].into_iter().chain(interpreter);
    let first = places().min().unwrap_or(0);
    let len = places().max().unwrap_or(0) - first + 8;
    if len <= MAX_STATE_BYTES { (first, len) } else { (0, 0) }
}

/// Bytes from `co_firstlineno` to the end of `co_version`, from 3.12 on: seven numbers of 4 bytes
/// (Include/cpython/code.h).
const FIRST_LINE_TO_VERSION: u32 = 28;

/// Returns offset and number of the words of a code object from its first line to its table of lines, which
/// do not change and tell it from others. From 3.12 on code objects are numbered, and the words end with the
/// number: each more costs every hit.
fn guard_words(offsets: &Offsets) -> Result<(u16, u16), String> {
    let code = &offsets.code;
    let fields = [code.first_line, code.name, code.filename, code.line_table];
    let (first, end) = if offsets.version.since(3, 12) {
        (code.first_line, code.first_line.saturating_add(FIRST_LINE_TO_VERSION))
    } else {
        let end = fields.into_iter().max().unwrap_or(0).saturating_add(8);
        (fields.into_iter().min().unwrap_or(0), end)
    };
    let first = first / 8 * 8;
    let words = end.saturating_sub(first).div_ceil(8);
    match (u16::try_from(first), u16::try_from(words)) {
        (Ok(first), Ok(words)) if usize::from(words) <= MAX_CODE_WORDS => Ok((first, words)),
        _ => Err("its code objects are larger than those of any CPython".to_owned()),
    }
}

/// Computes `RawFrame::guard` of the code object that is there now, as the kernel side does to tell code
/// objects apart.
pub fn guard_of(walk: &PythonWalk, memory: &dyn cpython::Memory, code: u64) -> Option<u64> {
    let mut bytes = [0; 8 * MAX_CODE_WORDS];
    let bytes = bytes.get_mut(..8 * usize::from(walk.code_words))?;
    memory.read(code.checked_add(u64::from(walk.code_words_at))?, bytes).ok()?;
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let mut guard = words.iter().fold(0, |guard, word| mix(guard, *word));
    if walk.code_name != NO_OFFSET {
        let at = usize::try_from(walk.code_name.checked_sub(u32::from(walk.code_words_at))? / 8).ok()?;
        let name = words.get(at)?;
        guard = mix(guard, name_hash(walk, memory, *name).unwrap_or(0));
    }
    Some(guard)
}

/// Returns the hash of a string, or one of its beginning where it was not hashed.
fn name_hash(walk: &PythonWalk, memory: &dyn cpython::Memory, name: u64) -> Option<u64> {
    let at = name.checked_add(u64::from(walk.string_hash))?;
    let mut bytes = [0; 24];
    memory.read(at.checked_sub(8)?, &mut bytes).ok()?;
    let [length, hash, state] = *bytes.as_chunks::<8>().0.first_chunk()?;
    let [length, hash, state] = [length, hash, state].map(u64::from_le_bytes);
    if hash != NOT_HASHED {
        return Some(hash);
    }
    let (characters, compared) = StringHead { length, hash, state }.characters();
    let mut bytes = [0; NAME_BYTES];
    memory.read(at.checked_add(characters)?, bytes.get_mut(..usize::try_from(compared).ok()?)?).ok()?;
    Some(bytes.as_chunks::<8>().0.iter().fold(length, |hash, word| mix(hash, u64::from_le_bytes(*word))))
}

/// Returns the pieces of a code object that [`guard_of`] and [`is_alive`] read: address and bytes.
pub fn guard_places(walk: &PythonWalk, code: u64) -> [(u64, usize); 2] {
    let words = code.saturating_add(u64::from(walk.code_words_at));
    [(code, 24), (words, 8 * usize::from(walk.code_words))]
}

/// Tells whether an object is in use, by its references. A freed one can look as before but for its first
/// word, where the allocator keeps a pointer or nothing: `PyObject` (Include/object.h).
pub fn is_alive(offsets: &Offsets, memory: &dyn cpython::Memory, object: u64) -> bool {
    /// Upper bound of references: no code object has so many, and no pointer to the heap is so small.
    const MANY: u32 = 1 << 20;
    /// Minimum number of references of an immortal object (3.12 and later).
    const IMMORTAL: u32 = 1 << 31;
    let word = |at: u64| word(memory, object.checked_add(at)?);
    if offsets.version.free_threaded {
        // `ob_ref_local`, the upper half, and `ob_ref_shared`, whose lowest bits are flags.
        return word(8).is_some_and(|local| local >> 32 != 0)
            || word(16).is_some_and(|shared| shared >> 2 != 0);
    }
    // From 3.14 on the upper half has flags of the object in its upper half.
    word(0).is_some_and(|references| {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is what is asked for")]
        let low = references as u32;
        (references >> 32).trailing_zeros() >= 16 && ((1..MANY).contains(&low) || low >= IMMORTAL)
    })
}

/// Reads a word; `None` where there is none.
pub fn word(memory: &dyn cpython::Memory, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read(address, &mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// Returns device and inode of the namespace as the kernel has them; an inode of 0 stands for the first one.
fn pid_namespace(process: &Process) -> io::Result<[u64; 2]> {
    let namespace = std::fs::metadata(process.proc_path().join("ns/pid"))?;
    if namespace.ino() == FIRST_NAMESPACE {
        return Ok([0, 0]);
    }
    let (major, minor) = (rustix::fs::major(namespace.dev()), rustix::fs::minor(namespace.dev()));
    // `MKDEV`, include/linux/kdev_t.h.
    Ok([u64::from(major) << 20 | u64::from(minor), namespace.ino()])
}

#[cfg(test)]
mod tests {
    use cpython::{Version, shipped};

    use super::*;

    fn walk(change: impl Fn(&mut Offsets)) -> Result<PythonWalk, String> {
        let mut offsets = shipped(Version::new(3, 12)).unwrap();
        change(&mut offsets);
        let process = Process::open(std::process::id()).unwrap();
        of(&Python { offsets, runtime: 0x1000 }, &process, None, 24)
    }

    #[test]
    fn a_thread_s_state_is_read_at_once_where_what_is_needed_of_it_is_near() {
        let thread = |offsets: &mut Offsets, interpreter, frame, tid| {
            let thread = &mut offsets.thread;
            (thread.interpreter, thread.frame, thread.native_thread_id) = (interpreter, frame, tid);
        };
        let part = |walk: PythonWalk| (walk.version_of, walk.state_at, walk.state_len);
        // Without a count of code objects, the interpreter is not needed.
        let before_314 = walk(|offsets| thread(offsets, 16, 56, Some(136))).unwrap();
        assert_eq!(part(before_314), (NO_VERSION, 56, 88));
        let counted = |interpreter, frame, tid| {
            walk(|offsets| {
                offsets.interpreter.code_generation = Some(113_728);
                thread(offsets, interpreter, frame, tid);
            })
            .unwrap()
        };
        let walk_314 = counted(16, 72, Some(160));
        assert_eq!(part(walk_314), (VERSION_OF_CODE, 16, 152));
        assert_eq!((walk_314.version_at, walk_314.thread_interpreter), (113_728, 16));
        assert_eq!(part(counted(2000, 72, Some(160))), (VERSION_OF_CODE, 0, 0), "too far");
        assert_eq!(part(counted(16, 72, None)), (VERSION_OF_CODE, 0, 0), "no number");
    }

    #[test]
    fn copies_of_the_bytecode_are_told_where_frames_and_code_have_them() {
        let own = walk(|_| ()).unwrap();
        assert_eq!((own.frame_copy, own.code_copies, own.frame_len), (0, 0, 72));
        let free_threaded = |frame, code| {
            walk(move |offsets| {
                offsets.version = Version { free_threaded: true, ..Version::new(3, 14) };
                (offsets.frame.bytecode_copy, offsets.code.bytecode_copies) = (frame, code);
            })
        };
        let copies = free_threaded(Some(72), Some(200)).unwrap();
        assert_eq!((copies.frame_copy, copies.code_copies, copies.code_first), (72, 200, 192));
        assert_eq!(copies.frame_len, 80, "what is read of a frame has the number of the copy");
        assert_eq!(
            free_threaded(None, Some(200)).unwrap().code_copies,
            0,
            "one is of no use without the other"
        );
        assert_eq!(free_threaded(Some(72), None).unwrap().code_copies, 0);
        for (frame, code) in [(Some(126), Some(200)), (Some(2044), Some(200)), (Some(72), Some(1 << 16))] {
            assert!(free_threaded(frame, code).is_err(), "{frame:?} {code:?}");
        }
    }
}
