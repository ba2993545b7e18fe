//! Lines of code: the number of operations that each issued, and their waits.

use std::collections::BTreeMap;

use flow::schema::{ApiCall, FrameRow, StackId, StackRow};
use serde::Serialize;

use super::{
    counted::Numbered,
    data::CodeData,
    open_ops::{OpTotals, join_waits},
};

/// Most stacks that are kept.
const MAX_STACKS: usize = 16_384;

/// Most lines on the page.
const MAX_LINES: usize = 2000;

/// Most functions that are listed with a line.
const MAX_FUNCTIONS: usize = 8;

/// Most frames that are shown.
const MAX_FRAMES: usize = 24;

/// Key of a stack: recording, process and number.
type StackKey = (usize, u32, StackId);

#[derive(Debug, Default)]
struct Stack {
    frames: Vec<FrameRow>,
    unknown: Option<String>,
    sums: Sums,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sums {
    functions: Vec<String>,
    pub(super) ops: u64,
    calls: u64,
    bytes: u64,
    pub(super) total_ns: u64,
    waits_ns: [u64; 8],
}

impl Sums {
    fn function(&mut self, name: &str) {
        if self.functions.len() < MAX_FUNCTIONS && !self.functions.iter().any(|known| known == name) {
            self.functions.push(name.to_owned());
        }
    }

    fn join(&mut self, other: &Self) {
        other.functions.iter().for_each(|name| self.function(name));
        self.ops += other.ops;
        self.calls += other.calls;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        join_waits(&mut self.waits_ns, &other.waits_ns);
    }
}

#[derive(Debug)]
pub(super) struct Code {
    stacks: Numbered<StackKey, Stack>,
    source: usize,
}

impl Default for Code {
    fn default() -> Self {
        Self { stacks: Numbered::new(MAX_STACKS), source: 0 }
    }
}

impl Code {
    /// Begins the stacks of another recording.
    pub(super) fn begin(&mut self) {
        self.source += 1;
    }

    pub(super) fn number(&mut self, pid: u32, stack: StackId) -> Option<usize> {
        self.stacks.number(&(self.source, pid, stack), Stack::default)
    }

    pub(super) fn stack(&mut self, row: &StackRow) {
        let key = (self.source, row.pid, row.stack);
        if let Some(stack) = self.stacks.get(&key, Stack::default) {
            stack.frames.clone_from(&row.frames);
            stack.unknown.clone_from(&row.unknown);
        }
    }

    pub(super) fn add_op(&mut self, op: &OpTotals) {
        let Some(stack) = op.code.and_then(|code| self.stacks.at(code)) else { return };
        let sums = &mut stack.sums;
        sums.function(op.kind.function());
        sums.ops += 1;
        sums.bytes = sums.bytes.saturating_add(op.kind.bytes.unwrap_or(0));
        let span = op.span_ns.map_or(0, |(begin, end)| end.saturating_sub(begin));
        sums.total_ns = sums.total_ns.saturating_add(span);
        join_waits(&mut sums.waits_ns, &op.waits_ns);
    }

    pub(super) fn add_call(&mut self, call: &ApiCall) {
        let Some(id) = call.row.stack else { return };
        let Some(number) = self.number(call.row.pid, id) else { return };
        if let Some(stack) = self.stacks.at(number) {
            stack.sums.function(call.row.function.as_str());
            stack.sums.calls += 1;
        }
    }

    /// Returns the number of stacks that ops and calls name.
    pub(super) fn count(&self) -> usize {
        self.stacks.len()
    }

    pub(super) fn left_out(&self) -> u64 {
        self.stacks.left_out
    }

    /// Returns the lines, and for each stack the number of its line. Equal stacks of several processes are
    /// one; those with most operations come first.
    pub(super) fn data(&self) -> (Vec<CodeData>, Vec<usize>) {
        type Found<'a> = (&'a [FrameRow], Option<&'a str>);
        let mut lines: BTreeMap<Found<'_>, Sums> = BTreeMap::new();
        for (_, stack) in self.stacks.iter() {
            lines.entry((&stack.frames, stack.unknown.as_deref())).or_default().join(&stack.sums);
        }
        let mut sorted: Vec<(Found<'_>, &Sums)> = lines.iter().map(|(found, sums)| (*found, sums)).collect();
        sorted.sort_by_key(|(_, sums)| std::cmp::Reverse((sums.ops, sums.calls)));
        let places: BTreeMap<Found<'_>, usize> =
            sorted.iter().enumerate().map(|(at, (found, _))| (*found, at)).collect();
        let place = |(_, stack): &(StackKey, Stack)| {
            let found: Found<'_> = (&stack.frames, stack.unknown.as_deref());
            let at = places.get(&found).copied().unwrap_or(0);
            // Stacks beyond the last line share one.
            at.min(MAX_LINES)
        };
        let numbers = self.stacks.iter().map(place).collect();
        let mut data: Vec<CodeData> = Vec::new();
        let mut rest = Sums::default();
        for (at, ((frames, unknown), sums)) in sorted.into_iter().enumerate() {
            if at < MAX_LINES {
                data.push(line_data(frames, unknown, sums));
            } else {
                rest.join(sums);
            }
        }
        if data.len() == MAX_LINES {
            data.push(line_data(&[], Some("all other lines together"), &rest));
        }
        (data, numbers)
    }
}

fn line_data(frames: &[FrameRow], unknown: Option<&str>, sums: &Sums) -> CodeData {
    // Rows have the outermost frame first.
    let inner = || frames.iter().rev();
    let line = inner().find(|frame| !is_of_a_library(frame)).or_else(|| inner().next());
    CodeData {
        line: line.map_or_else(|| unknown.unwrap_or("no Python code").to_owned(), shown),
        frames: inner().take(MAX_FRAMES).map(shown).collect(),
        unknown: unknown.map(str::to_owned),
        sums: sums.clone(),
    }
}

fn is_of_a_library(frame: &FrameRow) -> bool {
    frame.file.as_deref().is_none_or(flow::schema::is_of_a_library)
}

/// Shows a frame as `train.py:41 in step`, with the whole path.
fn shown(frame: &FrameRow) -> String {
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!("{file}:{line} in {}", frame.function),
        (Some(file), None) => format!("{file} in {}", frame.function),
        (None, _) => frame.function.clone(),
    }
}
