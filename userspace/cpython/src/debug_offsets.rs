//! `_Py_DebugOffsets`: from 3.13 on, CPython states its own layouts at the beginning of `_PyRuntime`, for
//! debuggers and profilers (Include/internal/pycore_debug_offsets.h; 3.13.0: pycore_runtime.h).
//!
//! It stands in the target's memory, so it can be forged: what it says is checked against what can be.

use crate::{
    BytesOffsets, CodeOffsets, FrameOffsets, InterpreterOffsets, ObjectOffsets, Offsets, RuntimeOffsets,
    TextOffsets, ThreadOffsets, Unknown, Version,
};

/// What the struct begins with.
pub const COOKIE: [u8; 8] = *b"xdebugpy";

/// As many bytes as are needed of it: 3.13 has 71 words up to the last one that is used, 3.14 83.
pub const DEBUG_OFFSETS_SIZE: usize = 88 * 8;

/// Sizes that no real struct exceeds; 3.13.0 has 283,320 bytes of runtime state.
const MAX_RUNTIME: u64 = 4 << 20;
const MAX_INTERPRETER: u64 = 4 << 20;
const MAX_SMALL: u64 = 2048;

/// A struct in it: its size, and the words that follow.
struct Section<'a> {
    size: u64,
    fields: &'a [u64],
}

/// The words of the struct, taken from the front.
struct Words<'a>(&'a [u64]);

impl<'a> Words<'a> {
    /// A section with its size and `fields` more words.
    fn section(&mut self, fields: usize, largest: u64) -> Result<Section<'a>, Unknown> {
        let (size, rest) = self.0.split_first().ok_or(NONSENSE)?;
        let (fields, rest) = rest.split_at_checked(fields).ok_or(NONSENSE)?;
        self.0 = rest;
        if *size > largest {
            return Err(NONSENSE);
        }
        Ok(Section { size: *size, fields })
    }
}

const NONSENSE: Unknown = Unknown::Contradiction("what it says of its own layouts cannot be right");

impl Section<'_> {
    /// The offset of a field of `bytes` bytes, which must lie within the struct and be aligned.
    fn at(&self, field: usize, bytes: u64) -> Result<u32, Unknown> {
        let offset = *self.fields.get(field).ok_or(NONSENSE)?;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.size) && offset % bytes == 0;
        if fits { u32::try_from(offset).map_err(|_| NONSENSE) } else { Err(NONSENSE) }
    }

    fn pointer(&self, field: usize) -> Result<u32, Unknown> {
        self.at(field, 8)
    }
}

/// Reads the struct; `bytes` are what stands at `_PyRuntime`. `Ok(None)`: it does not begin with the cookie, as up
/// to 3.12.
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
    // 3.14 added fields.
    let is_314 = match (version.major, version.minor) {
        (3, 13) => false,
        (3, 14) => true,
        _ => return Err(Unknown::Version(Some(version))),
    };
    let mut words = Words(rest);
    let runtime = words.section(2, MAX_RUNTIME)?;
    let interpreter = words.section(if is_314 { 15 } else { 12 }, MAX_INTERPRETER)?;
    let thread = words.section(8, MAX_SMALL)?;
    let frame = words.section(if is_314 { 7 } else { 5 }, MAX_SMALL)?;
    let code = words.section(if is_314 { 10 } else { 9 }, MAX_SMALL)?;
    let object = words.section(1, MAX_SMALL)?;
    let kind = words.section(3, MAX_SMALL)?;
    let _tuple = words.section(2, MAX_SMALL)?;
    let _list = words.section(2, MAX_SMALL)?;
    if is_314 {
        let _set = words.section(3, MAX_SMALL)?;
    }
    let _dict = words.section(2, MAX_SMALL)?;
    let _float = words.section(1, MAX_SMALL)?;
    let _long = words.section(2, MAX_SMALL)?;
    let bytes = words.section(2, MAX_SMALL)?;
    let text = words.section(3, MAX_SMALL)?;

    let ascii_data = text.fields.get(2).and_then(|size| u32::try_from(*size).ok()).ok_or(NONSENSE)?;
    if u64::from(ascii_data) >= text.size || !ascii_data.is_multiple_of(8) {
        return Err(NONSENSE);
    }
    let copies = is_314 && free_threaded;
    Ok(Some(Offsets {
        version,
        runtime: RuntimeOffsets { interpreters_head: runtime.pointer(1)? },
        interpreter: InterpreterOffsets { next: interpreter.pointer(1)?, threads_head: interpreter.pointer(2)? },
        thread: ThreadOffsets {
            next: thread.pointer(1)?,
            interpreter: thread.pointer(2)?,
            frame: thread.pointer(3)?,
            thread_id: thread.pointer(4)?,
            native_thread_id: Some(thread.pointer(5)?),
        },
        frame: FrameOffsets {
            previous: frame.pointer(0)?,
            code: frame.pointer(1)?,
            instruction: frame.pointer(2)?,
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
            // The struct ends with one byte of it.
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
    }))
}
