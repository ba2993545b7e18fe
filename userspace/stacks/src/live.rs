//! Call stacks of running processes, and of recordings of them, by called function.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use flow::schema::{ApiCall, FrameRow, Op, RankKey, StackId, StackRow};
use nccl_library::nccl::Name;
use serde::Serialize;

use super::{Frame, GroupedStacks, Stack, StackCounter, trace::Pattern};
use recording::sinks::Sink;

/// Most groups, and stacks, that are kept. A process that makes more of them wants to fill our memory.
const MAX_KEPT: usize = 65_536;

/// Most ops whose first channel was counted and whose others may still come.
const MAX_OPS: usize = 1 << 20;

/// Text in the place of frames that were not walked.
const CUT: &str = "…";

/// A called function, and the rank that called it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Called {
    function: Name,
    /// `commHash` as lines have it; `None` where the communicator is not known.
    communicator: Option<Name>,
    rank: Option<i32>,
    pid: u32,
    stack: Option<StackId>,
}

/// Counter of the stacks of a session, shared by several threads.
#[derive(Clone, Debug, Default)]
pub struct LiveStacks(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    calls: HashMap<Called, u64>,
    ops: HashMap<Called, u64>,
    seen: HashSet<(RankKey, u64)>,
    stacks: HashMap<(u32, StackId), StackRow>,
    /// Number of calls and ops beyond those that are kept.
    refused: u64,
}

/// Calls of one function on one communicator by one rank, with one stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallGroup {
    /// `AllReduce`, `Send` …
    pub function: Name,
    pub comm_hash: Option<Name>,
    pub rank: Option<i32>,
    pub pid: u32,
    pub count: u64,
    /// Frames from the top-level function to the innermost; `None` if the stack is not known.
    pub frames: Option<Vec<FrameRow>>,
    /// Set if there are more frames outside of these.
    pub cut: bool,
    /// Reason for which frames are missing or not known, as in `stacks.jsonl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// Name of the thread, for native frames without Python's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
}

/// The stacks behind the calls of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallStacks {
    /// Number of calls in `stacks`.
    pub calls: u64,
    /// Name of what was counted: `calls` of the API, or `launches`.
    pub of: &'static str,
    /// Calls without a stack that are in none of `stacks`: processes without Python, and lost stacks.
    pub without_stack: u64,
    pub stacks: GroupedStacks,
    /// The calls of `stacks` by function, communicator and rank, the most frequent first.
    pub groups: Vec<CallGroup>,
}

impl CallStacks {
    /// Returns each stack, with its groups.
    pub fn by_stack(&self) -> Vec<(&Stack, Vec<&CallGroup>)> {
        let mut of: HashMap<Vec<Frame>, Vec<&CallGroup>> = HashMap::new();
        for group in &self.groups {
            if group.frames.is_some() {
                of.entry(group.shown()).or_default().push(group);
            }
        }
        let stacks = self.stacks.stacks().iter();
        stacks.map(|stack| (stack, of.remove(&stack.frames).unwrap_or_default())).collect()
    }
}

impl LiveStacks {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Counters have no intermediate state that would be wrong to see.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts of functions of this name: `AllReduce`, `ncclAllReduce`, or a pattern that one of
    /// these or `ncclDevKernel_AllReduce` matches. `depth` is the number of innermost frames of each stack.
    pub fn finish(&self, name: Option<&str>, depth: usize) -> CallStacks {
        let counts = self.lock();
        let pattern = name.map(Pattern::new);
        let is_wanted = |function: &Name| {
            pattern.as_ref().is_none_or(|pattern| {
                let names =
                    [function.to_string(), format!("nccl{function}"), format!("ncclDevKernel_{function}")];
                names.iter().any(|name| pattern.matches(name))
            })
        };
        let (of, counted) =
            if counts.calls.is_empty() { ("launches", &counts.ops) } else { ("calls", &counts.calls) };
        // The counts of groups, which are 0 in the groups themselves.
        let mut groups: BTreeMap<CallGroup, u64> = BTreeMap::new();
        let (mut counter, mut without_stack) = (StackCounter::default(), counts.refused);
        for (called, count) in counted.iter().filter(|(called, _)| is_wanted(&called.function)) {
            let row = called.stack.and_then(|stack| counts.stacks.get(&(called.pid, stack)));
            let Called { function, communicator, rank, pid, .. } = called.clone();
            let mut group = CallGroup {
                function,
                comm_hash: communicator,
                rank,
                pid,
                count: 0,
                frames: None,
                cut: false,
                unknown: None,
                thread: None,
            };
            if let Some(row) = row {
                let outer = row.frames.len().saturating_sub(depth);
                group.frames = Some(row.frames[outer..].to_vec());
                group.cut = row.cut || outer > 0;
                (group.unknown, group.thread) = (row.unknown.clone(), row.thread.clone());
                counter.add(group.shown(), *count);
            } else {
                without_stack = without_stack.saturating_add(*count);
            }
            let sum = groups.entry(group).or_default();
            *sum = sum.saturating_add(*count);
        }
        let mut groups: Vec<CallGroup> =
            groups.into_iter().map(|(group, count)| CallGroup { count, ..group }).collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.count));
        let stacks = counter.finish();
        CallStacks { calls: stacks.total(), of, without_stack, stacks, groups }
    }

    /// Returns the functions that were called, for a user who asked for one that was not.
    pub fn functions(&self) -> Vec<Name> {
        let counts = self.lock();
        let names = counts.calls.keys().chain(counts.ops.keys()).map(|called| called.function.clone());
        let mut names: Vec<Name> = names.collect::<HashSet<_>>().into_iter().collect();
        names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        names
    }
}

impl CallGroup {
    /// Returns the frames of the stack as they are shown, with the call itself.
    fn shown(&self) -> Vec<Frame> {
        let frames = self.frames.as_deref().unwrap_or_default();
        let unknown = self.unknown.as_ref().map(|why| format!("({why})"));
        let outside = if self.cut { Some(CUT.to_owned()) } else { unknown };
        // A native stack ends with the functions that NCCL's call has called.
        let is_native = frames.last().is_some_and(|innermost| innermost.module.is_some());
        let call = (!is_native).then(|| format!("nccl{}", self.function));
        let frames =
            frames.iter().map(|FrameRow { function, file, line, module }| match (file, line, module) {
                (Some(file), Some(line), _) => format!("{file}({line}): {function}"),
                (Some(file), None, _) => format!("{file}: {function}"),
                (None, _, Some(module)) if !module.is_empty() => format!("{function} [{module}]"),
                _ => function.clone(),
            });
        let thread = self.thread.as_ref().map(|name| format!("(thread {name})"));
        let frames = thread.into_iter().chain(outside).chain(frames).chain(call);
        frames.map(|frame| Frame::new(&frame)).collect()
    }
}

impl Counts {
    fn add(counts: &mut HashMap<Called, u64>, refused: &mut u64, called: Called) {
        if counts.len() >= MAX_KEPT && !counts.contains_key(&called) {
            *refused += 1;
            return;
        }
        *counts.entry(called).or_default() += 1;
    }
}

impl Sink for LiveStacks {
    fn op(&mut self, op: &Op) {
        let mut counts = self.lock();
        let counts = &mut *counts;
        if counts.seen.len() >= MAX_OPS {
            counts.seen.clear();
        }
        let row = &op.row;
        // An op has a row for each channel.
        // Of a launch of its graph it has one.
        if row.graph_launch.is_none() && !counts.seen.insert((op.rank, row.seq)) {
            return;
        }
        let called = Called {
            function: row.called().cloned().unwrap_or_else(|| "?".into()),
            communicator: Some(row.comm_hash.clone()),
            rank: Some(row.rank),
            pid: row.pid,
            stack: row.stack,
        };
        Counts::add(&mut counts.ops, &mut counts.refused, called);
    }

    fn wants_messages(&self, _op: &Op) -> bool {
        false
    }

    fn call(&mut self, call: &ApiCall) {
        let mut counts = self.lock();
        let counts = &mut *counts;
        let row = &call.row;
        let called = Called {
            function: row.function.clone(),
            communicator: row.comm_hash.clone(),
            rank: row.rank,
            pid: row.pid,
            stack: row.stack,
        };
        Counts::add(&mut counts.calls, &mut counts.refused, called);
    }

    fn stack(&mut self, stack: &StackRow) {
        let mut counts = self.lock();
        if counts.stacks.len() < MAX_KEPT {
            counts.stacks.insert((stack.pid, stack.stack), stack.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use flow::made::rows::op_row;

    use super::*;

    fn stack(id: u64, frames: &[(&str, u32)], cut: bool) -> StackRow {
        let frames = frames.iter().map(|(function, line)| FrameRow {
            function: (*function).to_owned(),
            file: Some("train.py".to_owned()),
            line: Some(*line),
            module: None,
        });
        StackRow { stack: StackId(id), pid: 7, frames: frames.collect(), cut, unknown: None, thread: None }
    }

    fn op(seq: u64, rank: i32, stack: Option<u64>) -> Op {
        let row = op_row();
        let key = RankKey { hash: Some(7), instance: 0, rank, pid: 7 };
        let row = flow::schema::OpRow { seq, rank, pid: 7, stack: stack.map(StackId), ..row };
        Op { rank: key, row, call_bytes: None }
    }

    #[test]
    fn equal_stacks_are_one_and_groups_tell_ranks_apart() {
        let mut live = LiveStacks::default();
        // Names of two processes' stacks, or of two addresses of one line, that have the same frames.
        live.stack(&stack(1, &[("main", 1), ("step", 5)], false));
        live.stack(&stack(2, &[("main", 1), ("step", 5)], false));
        live.stack(&stack(3, &[("step", 9)], true));
        for (seq, rank, stack) in [
            (2, 0, Some(1)),
            (2, 0, Some(1)),
            (4, 0, Some(2)),
            (2, 1, Some(1)),
            (6, 1, Some(3)),
            (8, 1, None),
        ] {
            live.op(&op(seq, rank, stack));
        }
        let found = live.finish(None, 48);
        let counts: Vec<_> = found.groups.iter().map(|group| (group.rank, group.count)).collect();
        assert_eq!((found.calls, found.of, found.without_stack), (4, "launches", 1));
        assert_eq!(counts[0], (Some(0), 2));
        assert_eq!(counts.len(), 4);
        let text: Vec<_> = found.stacks.stacks()[0].frames.iter().map(Frame::as_str).collect();
        assert_eq!(text[..2], ["train.py(1): main", "train.py(5): step"]);
        assert_eq!(found.stacks.stacks()[0].count, 3);
        let cut = live.finish(None, 1);
        assert!(cut.stacks.stacks().iter().all(|stack| stack.frames[0].as_str() == CUT));
        assert_eq!(live.finish(Some("nothing%"), 48).calls, 0);
        let function = live.functions()[0].to_string();
        for name in [function.clone(), format!("nccl{function}"), format!("%Kernel_{function}")] {
            assert_eq!(live.finish(Some(&name), 48).calls, 4, "{name}");
        }
    }
}
