//! Offsets of the fields that a walk needs, in bytes from the beginning of each struct.
//!
//! Sources are CPython's headers: Include/internal/pycore_runtime.h, pycore_interp.h (3.8: pycore_pystate.h),
//! pycore_frame.h, Include/cpython/pystate.h, frameobject.h, code.h, unicodeobject.h. All of it is plain
//! data, so that a kernel-side walker can be given the same.

use serde::{Deserialize, Serialize};

use crate::{LineTable, Version};

/// Every offset that a walk from `_PyRuntime` to file and line needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offsets {
    pub version: Version,
    pub runtime: RuntimeOffsets,
    pub interpreter: InterpreterOffsets,
    pub thread: ThreadOffsets,
    pub frame: FrameOffsets,
    pub code: CodeOffsets,
    pub object: ObjectOffsets,
    pub bytes: BytesOffsets,
    pub text: TextOffsets,
    pub sequence: SequenceOffsets,
    pub integer: IntegerOffsets,
}

/// `_PyRuntimeState`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeOffsets {
    /// `interpreters.head`
    pub interpreters_head: u32,
}

/// `PyInterpreterState`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterpreterOffsets {
    pub next: u32,
    /// `tstate_head` up to 3.10, then `threads.head`
    pub threads_head: u32,
    /// 3.14 and later: `_code_object_generation`, a number that grows with each code object that is dropped
    pub code_generation: Option<u32>,
}

/// `PyThreadState`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadOffsets {
    pub next: u32,
    /// `interp`: leads back to the interpreter, which proves the layout.
    pub interpreter: u32,
    /// Pointer that leads to the innermost frame: `frame`, up to 3.10 a pointer to a `PyFrameObject`;
    /// `cframe`, in 3.11 and 3.12 to a `_PyCFrame` ([`FrameOffsets::in_c_frame`]); then `current_frame`, to a
    /// `_PyInterpreterFrame`.
    pub frame: u32,
    /// `thread_id`: the thread's `pthread_self()`
    pub thread_id: u32,
    /// 3.11 and later: the thread's `gettid()`, in the process's own PID namespace
    pub native_thread_id: Option<u32>,
}

/// `PyFrameObject` up to 3.10, then `_PyInterpreterFrame`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameOffsets {
    /// `f_back`, `previous`
    pub previous: u32,
    /// `f_code`, `f_executable`
    pub code: u32,
    /// `f_lasti`, `prev_instr`, `instr_ptr`; [`Offsets::instruction`] says which
    pub instruction: u32,
    /// `f_localsplus`, `localsplus`: the variables, in the order of [`CodeOffsets::local_names`]
    pub locals: u32,
    /// 3.12 and later: one byte, whose value tells frames without Python code
    pub owner: Option<u32>,
    /// 3.14 without the GIL: number of the copy of the bytecode that the frame runs (`int32_t`)
    pub bytecode_copy: Option<u32>,
    /// 3.11 and 3.12: `current_frame` in the `_PyCFrame` to which the thread leads
    pub in_c_frame: Option<u32>,
}

/// `PyCodeObject`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeOffsets {
    pub filename: u32,
    pub name: u32,
    /// 3.11 and later
    pub qualname: Option<u32>,
    /// `co_firstlineno`, an `int`
    pub first_line: u32,
    /// `co_lnotab` up to 3.9, then `co_linetable`
    pub line_table: u32,
    /// Tuple of the variables' names: `co_varnames` up to 3.10, then `co_localsplusnames`
    pub local_names: u32,
    /// 3.11 and later: `co_code_adaptive`, where the instructions begin within the code object itself
    pub instructions: Option<u32>,
    /// 3.14 without the GIL: `co_tlbc`, the threads' own copies of the bytecode
    pub bytecode_copies: Option<u32>,
}

/// `PyObject` and `PyTypeObject`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectOffsets {
    /// `ob_type`
    pub kind: u32,
    /// `tp_name` of a type
    pub type_name: u32,
}

/// `PyBytesObject`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesOffsets {
    /// `ob_size`
    pub length: u32,
    /// `ob_sval`
    pub data: u32,
}

/// `PyASCIIObject` and `PyCompactUnicodeObject`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextOffsets {
    pub length: u32,
    pub state: u32,
    /// `sizeof(PyASCIIObject)`: where the characters of an ASCII string begin
    pub ascii_data: u32,
    /// `sizeof(PyCompactUnicodeObject)`: where the characters of any other string begin
    pub compact_data: u32,
}

/// `PyTupleObject` and `PyListObject`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceOffsets {
    /// `ob_size`
    pub length: u32,
    /// `ob_item` of a tuple: where its elements begin
    pub tuple_items: u32,
    /// `ob_item` of a list: a pointer to its elements
    pub list_items: u32,
}

/// `PyLongObject`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntegerOffsets {
    /// `ob_size` up to 3.11, the number of digits with the sign; then `lv_tag`
    pub size: u32,
    /// `ob_digit`
    pub digits: u32,
}

/// Contents of [`FrameOffsets::instruction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// 3.8 and 3.9: `f_lasti`, an `int`, in bytes
    LastByte,
    /// 3.10: `f_lasti`, an `int`, in instructions of two bytes
    LastUnit,
    /// 3.11 and later: a pointer to the instruction
    Pointer,
}

impl Offsets {
    pub fn instruction(&self) -> Instruction {
        match self.version.minor {
            ..=9 => Instruction::LastByte,
            10 => Instruction::LastUnit,
            _ => Instruction::Pointer,
        }
    }

    pub fn line_table(&self) -> LineTable {
        match self.version.minor {
            ..=9 => LineTable::Lnotab,
            10 => LineTable::Lines,
            _ => LineTable::Locations,
        }
    }

    /// Returns the bits of [`FrameOffsets::code`] and of variables that are not part of the address: from
    /// 3.14 on they are each a `_PyStackRef`, whose lowest bits are tags
    /// (Include/internal/pycore_stackref.h).
    pub fn code_tags(&self) -> u64 {
        if self.version.since(3, 14) { 0b111 } else { 0 }
    }

    /// Returns the lowest owner of frames that run no Python code; greater ones run none either.
    /// `FRAME_OWNED_BY_CSTACK` in 3.12 and 3.13, `FRAME_OWNED_BY_INTERPRETER` and `FRAME_OWNED_BY_CSTACK` in
    /// 3.14, the first of these in 3.15.
    pub fn first_owner_without_code(&self) -> Option<u8> {
        self.frame.owner.and(self.version.since(3, 12).then_some(3))
    }

    /// Returns the place of a frame's instruction, in bytes from the first one of its code object; negative
    /// before the first. `raw` is the field as it stands, an `int` widened with its sign. Not for frames that
    /// run a thread's own copy of the bytecode ([`FrameOffsets::bytecode_copy`]).
    pub fn instruction_offset(&self, code: u64, raw: u64) -> i64 {
        let signed = raw.cast_signed();
        match self.instruction() {
            Instruction::LastByte => signed,
            Instruction::LastUnit => signed.saturating_mul(2),
            Instruction::Pointer => {
                let first = code.wrapping_add(u64::from(self.code.instructions.unwrap_or(0)));
                raw.wrapping_sub(first).cast_signed()
            }
        }
    }

    /// Returns the position of `kind` in the bits of [`TextOffsets::state`]; the flags `compact` and `ascii`
    /// follow its three bits. Before them is `interned`: two bits, and without the GIL from 3.14 on an
    /// `unsigned char` (Include/cpython/unicodeobject.h of 3.13.15, 3.14.0, 3.14.7 and 3.15.2).
    pub fn text_kind_shift(&self) -> u32 {
        if self.version.since(3, 14) && self.version.free_threaded { 8 } else { 2 }
    }
}
