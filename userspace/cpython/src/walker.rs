//! The walk from `_PyRuntime` to interpreters, threads, frames and lines.

use std::{cell::Cell, collections::HashMap, rc::Rc};

use crate::{
    CodeObject, DEBUG_OFFSETS_SIZE, Instruction, Memory, Offsets, Unknown, Value, Version, code,
    from_debug_offsets, locals,
    memory::{Limits, Reader, add},
    shipped,
};

/// Most interpreters of a process; more than one are rare.
pub const MAX_INTERPRETERS: usize = 64;
/// Most threads with Python state.
pub const MAX_THREADS: usize = 4096;
/// Most frames of a stack; Python's own limit is 1,000 unless a program raises it.
pub const MAX_FRAMES: usize = 512;
/// Most code objects that are kept; the first ones are forgotten when there are more.
const MAX_CODES: usize = 4096;
/// Most readings of a stack until two in a row are the same.
const MAX_READINGS: usize = 4;

/// Reason for which a `_PyRuntime` without interpreters says nothing.
pub const NOT_INITIALISED: Unknown = Unknown::NotThere("its Python is not initialised, or has ended");
/// Work of one walker: a real interpreter with 300 threads of 30 frames needs some 20 thousand reads.
const LIMITS: Limits = Limits {
    reads: 200_000,
    bytes: 64 << 20,
    until: None,
    too_much: "reading its Python takes more work than any real one does",
    too_long: "",
};

/// An interpreter in a process: its layouts, and where its `_PyRuntime` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Python {
    pub offsets: Offsets,
    /// Address of `_PyRuntime` in the process.
    pub runtime: u64,
}

impl Python {
    /// Finds the layouts of the interpreter whose `_PyRuntime` is at `runtime`. CPython's own
    /// `_Py_DebugOffsets` count before the `version` that its file is known to have.
    pub fn at(memory: &dyn Memory, runtime: u64, version: Option<Version>) -> Result<Self, Unknown> {
        let mut bytes = [0; DEBUG_OFFSETS_SIZE];
        // Older runtimes are shorter, but those too have readable memory behind them or are read in part.
        let offsets = match memory.read(runtime, &mut bytes) {
            Ok(()) => from_debug_offsets(&bytes)?,
            Err(_) => None,
        };
        let offsets = match offsets {
            Some(offsets) => offsets,
            None => version.and_then(shipped).ok_or_else(|| Version::unknown(version))?,
        };
        Ok(Self { offsets, runtime })
    }
}

/// A thread that Python knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadState {
    /// Address of its `PyThreadState`.
    pub address: u64,
    /// `pthread_self()` of the thread.
    pub pthread: u64,
    /// `gettid()` of the thread, in the innermost PID namespace of the process; 3.11 and later.
    pub native_id: Option<u64>,
}

/// A frame with Python code, as it stands in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawFrame {
    /// Address of its code object.
    pub code: u64,
    /// Place of its instruction, in bytes from the first; negative before the first one has run.
    pub offset: i64,
}

/// End of the walk of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StackEnd {
    /// The outermost frame.
    Outermost,
    /// [`MAX_FRAMES`] frames; more follow.
    Limit,
    /// Something that cannot be.
    Unknown(Unknown),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawStack {
    /// Frames, innermost first.
    pub frames: Vec<RawFrame>,
    pub end: StackEnd,
    /// True if the stack was not the same twice in a row: the thread runs. Its frames were read in passing
    /// and may belong to different moments.
    pub moving: bool,
}

/// A frame with names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PyFrame {
    pub function: String,
    /// 3.11 and later
    pub qualname: Option<String>,
    pub file: String,
    /// Line; `None` if the code has none there.
    pub line: Option<u32>,
}

/// Walks through one interpreter's memory, with a bound on all its work.
pub struct Walker<'m> {
    python: Python,
    reader: Reader<'m>,
    /// Address of the type object of code, once it was seen; 0 before.
    code_type: Cell<u64>,
    codes: HashMap<u64, Rc<CodeObject>>,
}

impl std::fmt::Debug for Walker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Walker").field("python", &self.python).finish_non_exhaustive()
    }
}

impl<'m> Walker<'m> {
    pub fn new(python: Python, memory: &'m dyn Memory) -> Self {
        Self { python, reader: Reader::new(memory, LIMITS), code_type: Cell::new(0), codes: HashMap::new() }
    }

    /// Reads all threads that Python knows. A list that changes meanwhile is read again.
    pub fn threads(&self) -> Result<Vec<ThreadState>, Unknown> {
        let mut result = self.threads_once();
        for _ in 1..MAX_READINGS {
            if !matches!(result, Err(Unknown::Contradiction(_) | Unknown::Unreadable(_))) {
                break;
            }
            result = self.threads_once();
        }
        result
    }

    fn threads_once(&self) -> Result<Vec<ThreadState>, Unknown> {
        self.reader.memory().renew();
        let Offsets { runtime, interpreter, thread, .. } = &self.python.offsets;
        let mut interpreter_at = self.reader.u64(self.python.runtime, runtime.interpreters_head)?;
        if interpreter_at == 0 {
            return Err(NOT_INITIALISED);
        }
        let mut threads = Vec::new();
        for _ in 0..MAX_INTERPRETERS {
            if interpreter_at == 0 {
                return Ok(threads);
            }
            let mut at = self.reader.u64(interpreter_at, interpreter.threads_head)?;
            while at != 0 {
                if threads.len() >= MAX_THREADS {
                    return Err(Unknown::TooMuch("more than 4,096 threads, or a list that is a circle"));
                }
                let native_id = thread.native_thread_id.unwrap_or(thread.thread_id);
                let fields = [thread.next, thread.interpreter, thread.thread_id, native_id];
                let state = self.reader.fields(at, &fields)?;
                if state.u64(thread.interpreter) != interpreter_at {
                    return Err(Unknown::Contradiction("a thread belongs to another interpreter"));
                }
                threads.push(ThreadState {
                    address: at,
                    pthread: state.u64(thread.thread_id),
                    native_id: thread.native_thread_id.map(|field| state.u64(field)),
                });
                at = state.u64(thread.next);
            }
            interpreter_at = self.reader.u64(interpreter_at, interpreter.next)?;
        }
        Err(Unknown::TooMuch("more than 64 interpreters, or a list that is a circle"))
    }

    /// Reads the stack of a thread, innermost frame first. It is read until it is the same twice in a row.
    pub fn stack(&self, thread: ThreadState) -> RawStack {
        let mut stack = self.stack_once(thread);
        for _ in 1..MAX_READINGS {
            let again = self.stack_once(thread);
            if again == stack {
                return stack;
            }
            stack = again;
        }
        RawStack { moving: true, ..stack }
    }

    fn stack_once(&self, thread: ThreadState) -> RawStack {
        self.reader.memory().renew();
        let mut frames = Vec::new();
        let end = match self.frames(thread, MAX_FRAMES, |_, frame| frames.push(frame)) {
            Ok(end) => end,
            Err(unknown) => StackEnd::Unknown(unknown),
        };
        RawStack { frames, end, moving: false }
    }

    /// Reads the variables of a thread's innermost frame whose names are wanted, and whose values are known
    /// ([`Value`]); `None` if that frame is no longer `expected`, or does not stand still.
    pub fn innermost_locals(
        &self,
        thread: ThreadState,
        expected: RawFrame,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Option<Vec<(String, Value)>>, Unknown> {
        let innermost = || {
            self.reader.memory().renew();
            let mut found = None;
            self.frames(thread, 1, |address, frame| found = Some((address, frame)))?;
            Ok(found.filter(|(_, frame)| *frame == expected))
        };
        let Some((address, frame)) = innermost()? else { return Ok(None) };
        let read = locals::read(&self.reader, &self.python.offsets, address, frame.code, is_wanted)?;
        let is_still_there = innermost()? == Some((address, frame));
        Ok(is_still_there.then_some(read))
    }

    /// Takes at most `max` frames with Python code, innermost first, with their addresses.
    fn frames(
        &self,
        thread: ThreadState,
        max: usize,
        mut take: impl FnMut(u64, RawFrame),
    ) -> Result<StackEnd, Unknown> {
        let offsets = &self.python.offsets;
        let frame = &offsets.frame;
        let mut at = self.reader.u64(thread.address, offsets.thread.frame)?;
        if let Some(current_frame) = frame.in_c_frame
            && at != 0
        {
            at = self.reader.u64(at, current_frame)?;
        }
        let owner = frame.owner.unwrap_or(frame.code);
        let copy = frame.bytecode_copy.unwrap_or(frame.code);
        let fields = [frame.previous, frame.code, frame.instruction, owner, copy];
        let mut taken = 0;
        // Frames without Python code are counted too.
        for _ in 0..2 * MAX_FRAMES {
            if at == 0 {
                return Ok(StackEnd::Outermost);
            }
            let address = at;
            let state = self.reader.fields(at, &fields)?;
            at = state.u64(frame.previous);
            if offsets.first_owner_without_code().is_some_and(|first| state.u8(owner) >= first) {
                continue;
            }
            if taken >= max {
                return Ok(StackEnd::Limit);
            }
            let code = state.u64(frame.code) & !offsets.code_tags();
            self.prove_code(code)?;
            let offset = if offsets.instruction() == Instruction::Pointer {
                let copy = frame.bytecode_copy.map(|field| state.i32(field));
                self.pointer_offset(code, state.u64(frame.instruction), copy)?
            } else {
                let last = i64::from(state.i32(frame.instruction));
                offsets.instruction_offset(code, last.cast_unsigned())
            };
            take(address, RawFrame { code, offset });
            taken += 1;
        }
        Err(Unknown::TooMuch("more than 512 frames without Python code"))
    }

    /// Returns [`Offsets::instruction_offset`], also for a thread's own copy of the bytecode: `co_tlbc` is a
    /// pointer to a number of copies and pointers to them, the first of which is the code object's own
    /// (`_PyCodeArray`, Include/cpython/code.h of 3.14).
    fn pointer_offset(&self, code: u64, instruction: u64, copy: Option<i32>) -> Result<i64, Unknown> {
        const WRONG: Unknown = Unknown::Contradiction("a frame runs a copy of its code that is not there");
        let offsets = &self.python.offsets;
        let (Some(number), Some(field)) = (copy, offsets.code.bytecode_copies) else {
            return Ok(offsets.instruction_offset(code, instruction));
        };
        let number = u32::try_from(number).map_err(|_| WRONG)?;
        if number == 0 {
            return Ok(offsets.instruction_offset(code, instruction));
        }
        let array = self.reader.u64(code, field)?;
        if u64::from(number) >= self.reader.u64(array, 0)? {
            return Err(WRONG);
        }
        let entry = number.checked_add(1).and_then(|entry| entry.checked_mul(8)).ok_or(WRONG)?;
        let first = self.reader.u64(add(array, entry)?, 0)?;
        Ok(instruction.wrapping_sub(first).cast_signed())
    }

    /// Checks that the object at `address` is of the type that is called `code`. A wrong layout, and memory
    /// that was used again, end here.
    fn prove_code(&self, address: u64) -> Result<(), Unknown> {
        const WRONG: Unknown = Unknown::Contradiction("a frame has no code object");
        if address == 0 || !address.is_multiple_of(8) {
            return Err(WRONG);
        }
        let object = &self.python.offsets.object;
        let kind = self.reader.u64(address, object.kind)?;
        if kind == self.code_type.get() && kind != 0 {
            return Ok(());
        }
        let name = self.reader.u64(kind, object.type_name)?;
        if &self.reader.array::<5>(name, 0)? != b"code\0" {
            return Err(WRONG);
        }
        self.code_type.set(kind);
        Ok(())
    }

    /// Reads the code object at `address`. Code objects that were read before are kept: forget them with
    /// [`Self::forget`] when time has passed, as Python may have used the address again.
    pub fn code_object(&mut self, address: u64) -> Result<Rc<CodeObject>, Unknown> {
        if let Some(known) = self.codes.get(&address) {
            return Ok(Rc::clone(known));
        }
        self.prove_code(address)?;
        let code = Rc::new(code::read(&self.reader, &self.python.offsets, address)?);
        if self.codes.len() >= MAX_CODES {
            self.codes.clear();
        }
        self.codes.insert(address, Rc::clone(&code));
        Ok(code)
    }

    /// Forgets the code objects that were read.
    pub fn forget(&mut self) {
        self.codes.clear();
    }

    /// Gives a frame its names.
    pub fn frame(&mut self, frame: RawFrame) -> Result<PyFrame, Unknown> {
        let code = self.code_object(frame.code)?;
        Ok(PyFrame {
            function: code.name.clone(),
            qualname: code.qualname.clone(),
            file: code.filename.clone(),
            line: code.line(frame.offset),
        })
    }
}
