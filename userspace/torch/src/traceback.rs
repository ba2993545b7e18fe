//! Tracebacks: the Python frames of a call that torch recorded, as code objects and instructions. torch
//! itself asks Python for names and lines when it dumps; here they are read from outside.

use std::{collections::HashMap, sync::Arc};

use cpython::{Memory, PyFrame, Python, RawFrame, Reader, Record, Walker};
use flow::{schema::PythonFrame, text::plain};

use crate::{Offsets, Unknown, containers::vector};

/// Most frames of one entry that are read, the innermost ones.
pub const MAX_FRAMES: usize = 128;
/// Most frames of one entry that a program can have; Python's own limit is 1,000 unless a program raises it.
const MAX_REAL: usize = 1 << 16;

/// Reads the frames of tracebacks, by address, innermost first. A traceback that cannot be read is left out.
pub(crate) fn read(
    reader: &Reader<'_>,
    offsets: &Offsets,
    tracebacks: &[u64],
) -> Result<HashMap<u64, Vec<RawFrame>>, Unknown> {
    let layout = &offsets.traceback;
    let head = layout.frames.saturating_add(24);
    let heads: Vec<(u64, usize)> = tracebacks.iter().map(|at| (*at, head as usize)).collect();
    let (mut pieces, mut owners, mut all) = (Vec::new(), Vec::new(), HashMap::new());
    for (at, bytes) in tracebacks.iter().zip(reader.gather(&heads)?) {
        let Some(bytes) = bytes else { continue };
        let record = Record { address: *at, bytes };
        let Ok((frames, count)) = vector(&record, layout.frames, layout.frame_size, MAX_REAL) else {
            continue;
        };
        if count == 0 {
            all.insert(*at, Vec::new());
            continue;
        }
        pieces.push((frames, count.min(MAX_FRAMES) * layout.frame_size as usize));
        owners.push(*at);
    }
    for (at, bytes) in owners.into_iter().zip(reader.gather(&pieces)?) {
        let Some(bytes) = bytes else { continue };
        let frames = bytes.chunks_exact(layout.frame_size.max(1) as usize).map(|bytes| {
            let frame = Record { address: 0, bytes: bytes.to_vec() };
            let last = frame.u32(layout.last_instruction).cast_signed();
            RawFrame { code: frame.u64(layout.code), offset: i64::from(last) }
        });
        all.insert(at, frames.collect());
    }
    Ok(all)
}

/// Most frames with names that are kept; a job has some hundreds. Those of later entries are not known.
const MAX_NAMED: usize = 65_536;
/// Most frames of all different stacks together.
const MAX_STACKED: usize = 1 << 20;

/// Makes a frame one that reports have.
pub fn shown(frame: PyFrame) -> PythonFrame {
    let plain = |text: String| plain(&text).into_owned();
    PythonFrame {
        function: plain(frame.function),
        qualname: frame.qualname.map(plain),
        file: plain(frame.file),
        line: frame.line,
    }
}

/// A stack that entries share.
type Stack = Arc<[PythonFrame]>;

/// Gives frames their names, each once.
pub(crate) struct Names<'m> {
    walker: Walker<'m>,
    frames: HashMap<RawFrame, Option<PythonFrame>>,
    stacks: HashMap<Vec<RawFrame>, Option<Stack>>,
    stacked: usize,
}

impl<'m> Names<'m> {
    pub(crate) fn new(memory: &'m dyn Memory, python: Python) -> Self {
        let walker = Walker::new(python, memory);
        Self { walker, frames: HashMap::new(), stacks: HashMap::new(), stacked: 0 }
    }

    /// Names all frames of a stack; `None` if one of them is not known.
    pub(crate) fn of(&mut self, raw: &[RawFrame]) -> Option<Stack> {
        if let Some(known) = self.stacks.get(raw) {
            return known.clone();
        }
        self.stacked = self.stacked.checked_add(raw.len()).filter(|stacked| *stacked <= MAX_STACKED)?;
        let stack: Option<Stack> = raw.iter().map(|frame| self.one(*frame)).collect();
        self.stacks.insert(raw.to_vec(), stack.clone());
        stack
    }

    fn one(&mut self, raw: RawFrame) -> Option<PythonFrame> {
        if let Some(known) = self.frames.get(&raw) {
            return known.clone();
        }
        if self.frames.len() >= MAX_NAMED {
            return None;
        }
        let named = self.walker.frame(raw).ok().map(shown);
        self.frames.insert(raw, named.clone());
        named
    }
}
