//! Call stacks: lines of `stacks.jsonl`.

use std::fmt;

use super::named::named;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Identity of a call stack: in JSON 16 hexadecimal digits, as JSON's readers lose digits of large numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u64);

impl fmt::Display for StackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for StackId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StackId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map(Self).map_err(D::Error::custom)
    }
}

named! {
    /// Moment that an op's call stack is of.
    StackOf {
        /// The launch of the op's kernel.
        Launch = "launch",
        /// The call of the API.
        Call = "call",
    }
}

/// A function on a call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FrameRow {
    /// Name of the code: `co_qualname` from Python 3.11 on, `co_name` before. `?`: the code could not be
    /// read, or was other code by then. For native code, the function's name in the symbol table, demangled
    /// and without parameters, or `+0x` and the address in the file where there is none.
    pub function: String,
    /// File of Python code (`co_filename`); left out where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line that was running; left out where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Name of the file of native code; empty: the code is of no file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
}

row! {
    /// A line of `stacks.jsonl`: a call stack that calls or ops name.
    #[derive(Eq)]
    pub struct StackRow {
        /// Identity of the stack within its process, for as long as its code is there.
        "stack": Identity, stack: StackId;
        /// Process ID in ncclflow's PID namespace.
        "pid": Identity, pid: u32;
        /// Frames from the top-level function to the innermost: objects with `function` and, where known,
        /// `file` and `line`. `function` is the qualified name (before Python 3.11 the name) of the code;
        /// `?`: the code was gone before it was read. Native frames (`--stacks=native`, `both`) have
        /// `module`, the name of the file of their code, and `function` from its symbol table, or `+0x` and
        /// the address in the file.
        "frames": Measured, frames: Vec<FrameRow>;
        /// There are more frames outside of these: the walk reached `--stack-depth`, or the native stack is
        /// larger than what is copied of it.
        "cut": Measured, cut: bool;
        /// Why frames are missing, or are not known. `page not there`: what is outside of these frames could
        /// not be read; `no Python thread`: the interpreter does not know the thread; `code gone`: the code
        /// of some frames was freed before it was read; `native frames not copied`: there were too many new
        /// stacks at a time; `native frames not known`: the code's unwind tables end there, or the process
        /// was gone.
        "unknown": Measured, unknown: Option<String>, unless is_none;
        /// Name of the thread; only of stacks with native frames and no Python frame.
        "thread": Measured, thread: Option<String>, unless is_none;
    }
}

impl StackRow {
    /// Returns about how many bytes of memory the row takes.
    pub fn memory(&self) -> usize {
        let frame = |frame: &FrameRow| {
            size_of::<FrameRow>() + frame.function.len() + frame.file.as_ref().map_or(0, String::len)
        };
        self.frames.iter().map(frame).sum::<usize>() + size_of::<Self>()
    }
}
