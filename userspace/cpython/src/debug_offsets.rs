//! `_Py_DebugOffsets`: the layouts that CPython states itself from 3.13 on, at the beginning of `_PyRuntime`,
//! for debuggers and profilers (Include/internal/pycore_debug_offsets.h; 3.13.0: pycore_runtime.h).
//!
//! The struct stands in the target's memory, so it can be forged: what it states is checked against what can
//! be.

use crate::{
    BytesOffsets, CodeOffsets, FrameOffsets, IntegerOffsets, InterpreterOffsets, ObjectOffsets, Offsets,
    RuntimeOffsets, SequenceOffsets, TextOffsets, ThreadOffsets, Unknown, Version,
};

/// Bytes that the struct begins with.
pub const COOKIE: [u8; 8] = *b"xdebugpy";

/// Bytes of the struct that are needed: 3.13 has 71 words up to the last one that is used, 3.14 81, 3.15 94.
pub const DEBUG_OFFSETS_SIZE: usize = 96 * 8;

/// Sizes that no real struct exceeds; 3.13.0 has 283,320 bytes of runtime state.
const MAX_RUNTIME: u64 = 4 << 20;
const MAX_INTERPRETER: u64 = 4 << 20;
const MAX_SMALL: u64 = 2048;

/// A struct in it, by its size and the words that follow.
struct Section<'a> {
    size: u64,
    fields: &'a [u64],
}

/// Words of the struct, taken from the front.
struct Words<'a>(&'a [u64]);

impl<'a> Words<'a> {
    /// Takes a section: its size and `fields` more words.
    fn section(&mut self, fields: usize, largest: u64) -> Result<Section<'a>, Unknown> {
        let (size, rest) = self.0.split_first().ok_or(NONSENSE)?;
        let (fields, rest) = rest.split_at_checked(fields).ok_or(NONSENSE)?;
        self.0 = rest;
        if *size > largest {
            return Err(NONSENSE);
        }
        Ok(Section { size: *size, fields })
    }

    /// Passes over words that are in no section.
    fn skip(&mut self, words: usize) -> Result<(), Unknown> {
        self.0 = self.0.get(words..).ok_or(NONSENSE)?;
        Ok(())
    }
}

const NONSENSE: Unknown = Unknown::Contradiction("what it says of its own layouts cannot be right");

impl Section<'_> {
    /// Returns the offset of a field of `bytes` bytes, which must lie within the struct and be aligned.
    fn at(&self, field: usize, bytes: u64) -> Result<u32, Unknown> {
        let offset = *self.fields.get(field).ok_or(NONSENSE)?;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.size) && offset % bytes == 0;
        if fits { u32::try_from(offset).map_err(|_| NONSENSE) } else { Err(NONSENSE) }
    }

    fn pointer(&self, field: usize) -> Result<u32, Unknown> {
        self.at(field, 8)
    }
}

/// Numbers of fields that sections have behind their size, where versions differ.
struct Fields {
    interpreter: usize,
    thread: usize,
    /// Index of `thread_id` among the thread's fields; `native_thread_id` follows.
    thread_id: usize,
    frame: usize,
    code: usize,
    kind: usize,
    text: usize,
}

const FIELDS_313: Fields =
    Fields { interpreter: 12, thread: 8, thread_id: 4, frame: 5, code: 9, kind: 3, text: 3 };
const FIELDS_314: Fields = Fields { interpreter: 15, frame: 7, code: 10, ..FIELDS_313 };
const FIELDS_315: Fields = Fields { thread: 15, thread_id: 7, kind: 5, text: 4, ..FIELDS_314 };

/// Reads the struct from `bytes`, which stand at `_PyRuntime`. `Ok(None)`: it does not begin with the cookie,
/// as up to 3.12.
///
/// # Errors
/// When its version is not known, or what it says cannot be.
pub fn from_debug_offsets(bytes: &[u8]) -> Result<Option<Offsets>, Unknown> {
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let [cookie, hex, free_threaded, rest @ ..] = words.as_slice() else { return Ok(None) };
    if cookie.to_le_bytes() != COOKIE {
        return Ok(None);
    }
    let version = Version::from_hex(*hex).ok_or(NONSENSE)?;
    let free_threaded = match free_threaded {
        0 => false,
        1 => true,
        _ => return Err(NONSENSE),
    };
    let version = Version { free_threaded, ..version };
    let fields = match (version.major, version.minor) {
        (3, 13) => FIELDS_313,
        (3, 14) => FIELDS_314,
        (3, 15) => FIELDS_315,
        _ => return Err(Version::unknown(Some(version))),
    };
    let (since_314, since_315) = (version.since(3, 14), version.since(3, 15));
    let mut words = Words(rest);
    let runtime = words.section(2, MAX_RUNTIME)?;
    let interpreter = words.section(fields.interpreter, MAX_INTERPRETER)?;
    let thread = words.section(fields.thread, MAX_SMALL)?;
    if since_315 {
        // `err_stackitem`, which has no size.
        words.skip(1)?;
    }
    let frame = words.section(fields.frame, MAX_SMALL)?;
    let code = words.section(fields.code, MAX_SMALL)?;
    let object = words.section(1, MAX_SMALL)?;
    let kind = words.section(fields.kind, MAX_SMALL)?;
    if since_315 {
        let _heap_type = words.section(1, MAX_SMALL)?;
    }
    let tuple = words.section(2, MAX_SMALL)?;
    let list = words.section(2, MAX_SMALL)?;
    if since_314 {
        let _set = words.section(3, MAX_SMALL)?;
    }
    let _dict = words.section(2, MAX_SMALL)?;
    let _float = words.section(1, MAX_SMALL)?;
    let long = words.section(2, MAX_SMALL)?;
    let bytes = words.section(2, MAX_SMALL)?;
    let text = words.section(fields.text, MAX_SMALL)?;

    let ascii_data = text.fields.get(2).and_then(|size| u32::try_from(*size).ok()).ok_or(NONSENSE)?;
    if u64::from(ascii_data) >= text.size || !ascii_data.is_multiple_of(8) {
        return Err(NONSENSE);
    }
    let copies = since_314 && free_threaded;
    Ok(Some(Offsets {
        version,
        runtime: RuntimeOffsets { interpreters_head: runtime.pointer(1)? },
        interpreter: InterpreterOffsets {
            next: interpreter.pointer(1)?,
            threads_head: interpreter.pointer(2)?,
            code_generation: since_314.then(|| interpreter.pointer(13)).transpose()?,
        },
        thread: ThreadOffsets {
            next: thread.pointer(1)?,
            interpreter: thread.pointer(2)?,
            frame: thread.pointer(3)?,
            thread_id: thread.pointer(fields.thread_id)?,
            native_thread_id: Some(thread.pointer(fields.thread_id + 1)?),
        },
        frame: FrameOffsets {
            previous: frame.pointer(0)?,
            code: frame.pointer(1)?,
            instruction: frame.pointer(2)?,
            locals: frame.pointer(3)?,
            owner: Some(frame.at(4, 1)?),
            bytecode_copy: copies.then(|| frame.at(6, 4)).transpose()?,
            in_c_frame: None,
        },
        code: CodeOffsets {
            filename: code.pointer(0)?,
            name: code.pointer(1)?,
            qualname: Some(code.pointer(2)?),
            line_table: code.pointer(3)?,
            first_line: code.at(4, 4)?,
            local_names: code.pointer(6)?,
            // The first byte of `co_code_adaptive` ends the struct.
            instructions: Some(code.at(8, 1)?),
            bytecode_copies: copies.then(|| code.pointer(9)).transpose()?,
        },
        object: ObjectOffsets { kind: object.pointer(0)?, type_name: kind.pointer(0)? },
        bytes: BytesOffsets { length: bytes.pointer(0)?, data: bytes.at(1, 1)? },
        text: TextOffsets {
            state: text.at(0, 4)?,
            length: text.pointer(1)?,
            ascii_data,
            // `utf8_length` and `utf8` follow (Include/cpython/unicodeobject.h).
            compact_data: ascii_data + 16,
        },
        sequence: SequenceOffsets {
            length: list.pointer(1)?,
            tuple_items: tuple.pointer(0)?,
            list_items: list.pointer(0)?,
        },
        integer: IntegerOffsets { size: long.pointer(0)?, digits: long.at(1, 4)? },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the struct as a version has it: each section's size, and its fields from 8 on, in the order of
    /// the header.
    fn made(hex: u64, free_threaded: u64) -> Vec<u64> {
        let minor = (hex >> 16) & 0xff;
        let mut words = vec![u64::from_le_bytes(COOKIE), hex, free_threaded];
        let mut section = |size: Option<u64>, parts: &[&[u64]]| {
            words.extend(size);
            words.extend(parts.concat());
        };
        let since = |since: u64, fields: &'static [u64]| if minor >= since { fields } else { &[] };
        // finalizing, interpreters_head
        section(Some(300_000), &[&[600, 632]]);
        // id, next, threads_head, threads_main, gc to gil_runtime_state_holder, code_object_generation,
        // tlbc_generation
        let interpreter: [&[u64]; 4] =
            [&[7256, 7264, 7344], since(14, &[7352]), &[0; 9], since(14, &[110_000, 110_008])];
        section(Some(200_000), &interpreter);
        // prev, next, interp, current_frame, base_frame, last_profiled_frame and its sequence, thread_id,
        // native_thread_id, datastack_chunk, status, holds_gil, gil_requested, current_exception, exc_state
        let thread: [&[u64]; 4] =
            [&[0, 8, 16, 72], since(15, &[80, 88, 96]), &[152, 160, 200, 32], since(15, &[36, 40, 104, 112])];
        section(Some(320), &thread);
        // exc_value
        section(None, &[since(15, &[0])]);
        // previous, executable, instr_ptr, localsplus, owner; stackpointer, tlbc_index
        let owner: &[u64] = if minor >= 14 { &[78] } else { &[70] };
        section(Some(96), &[&[8, 0, 56, 80], owner, since(14, &[64, 72])]);
        // filename, name, qualname, linetable, firstlineno, argcount, two, co_code_adaptive; co_tlbc
        section(Some(216), &[&[112, 120, 128, 136, 68, 52, 96, 104, 208], since(14, &[200])]);
        section(Some(16), &[&[8]]);
        section(Some(416), &[&[24, 88, 168], since(15, &[32, 288])]);
        section(since(15, &[900]).first().copied(), &[since(15, &[880])]);
        section(Some(32), &[&[24, 16]]);
        section(Some(40), &[&[24, 16]]);
        section(since(14, &[200]).first().copied(), &[since(14, &[24, 32, 40])]);
        section(Some(48), &[&[32, 40]]);
        section(Some(24), &[&[16]]);
        section(Some(32), &[&[16, 24]]);
        section(Some(40), &[&[16, 32]]);
        section(Some(64), &[&[32, 16, 40], since(15, &[56])]);
        section(Some(200), &[&[100]]);
        words
    }

    fn read(words: &[u64]) -> Result<Option<Offsets>, Unknown> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        from_debug_offsets(&bytes)
    }

    #[test]
    fn each_versions_struct_is_read_field_by_field() {
        for (hex, free_threaded, version) in [
            (0x030d_00f0, 0, "3.13"),
            (0x030d_01f0, 1, "3.13t"),
            (0x030e_00f0, 0, "3.14"),
            (0x030e_02f0, 1, "3.14t"),
            (0x030f_02f0, 0, "3.15"),
            (0x030f_02f0, 1, "3.15t"),
        ] {
            let offsets = read(&made(hex, free_threaded)).unwrap().unwrap();
            assert_eq!(offsets.version.to_string(), version);
            assert_eq!(offsets.runtime.interpreters_head, 632);
            let since_314 = offsets.version.since(3, 14);
            let interpreter = offsets.interpreter;
            assert_eq!((interpreter.next, interpreter.threads_head), (7264, 7344));
            assert_eq!(interpreter.code_generation, since_314.then_some(110_000));
            let thread = offsets.thread;
            let thread = [thread.next, thread.interpreter, thread.frame, thread.thread_id];
            assert_eq!((thread, offsets.thread.native_thread_id), ([8, 16, 72, 152], Some(160)));
            let frame = offsets.frame;
            assert_eq!((frame.previous, frame.code, frame.instruction, frame.locals), (8, 0, 56, 80));
            assert_eq!(frame.owner, Some(if since_314 { 78 } else { 70 }));
            let copies = since_314 && free_threaded == 1;
            assert_eq!(frame.bytecode_copy, copies.then_some(72));
            let code = offsets.code;
            assert_eq!(
                (code.filename, code.name, code.qualname, code.line_table),
                (112, 120, Some(128), 136)
            );
            assert_eq!((code.first_line, code.local_names, code.instructions), (68, 96, Some(208)));
            assert_eq!(code.bytecode_copies, copies.then_some(200));
            assert_eq!((offsets.object.kind, offsets.object.type_name), (8, 24));
            assert_eq!((offsets.bytes.length, offsets.bytes.data), (16, 32));
            assert_eq!((offsets.text.length, offsets.text.state), (16, 32));
            assert_eq!((offsets.text.ascii_data, offsets.text.compact_data), (40, 56));
            let (sequence, integer) = (offsets.sequence, offsets.integer);
            assert_eq!((sequence.length, sequence.tuple_items, sequence.list_items), (16, 24, 24));
            assert_eq!((integer.size, integer.digits), (16, 24));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = made(0x030d_00f0, 0);
        let with = |place: usize, value: u64| {
            let mut words = good.clone();
            words[place] = value;
            read(&words)
        };
        assert_eq!(with(0, 0), Ok(None), "no cookie: an older version");
        assert_eq!(with(1, 0x0310_00f0), Err(Version::unknown(Some(Version::new(3, 16)))));
        assert_eq!(with(1, 0x0202_00f0), Err(NONSENSE));
        assert_eq!(with(2, 2), Err(NONSENSE));
        // interpreters_head, and the thread's current_frame: behind the end, unaligned, huge.
        for place in [5, 23] {
            for wrong in [400_000, 321, 4, u64::MAX, u64::MAX - 7] {
                assert!(with(place, wrong).is_err(), "{place}: {wrong}");
            }
        }
        assert_eq!(with(3, 1 << 40), Err(NONSENSE), "a runtime of a terabyte");
        for (hex, used) in [(0x030d_00f0, 71), (0x030e_00f0, 81), (0x030f_00f0, 94)] {
            let words = made(hex, 0);
            assert!(read(&words[..used]).is_ok() && used * 8 <= DEBUG_OFFSETS_SIZE, "{hex:x}");
            for length in 3..used {
                assert!(read(&words[..length]).is_err(), "{hex:x}: {length} words");
            }
        }
    }
}
