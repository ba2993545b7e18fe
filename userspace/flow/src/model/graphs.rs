//! CUDA graphs: which ops a graph has captured, which executable was made of it, and what its launches replay.
//!
//! A replay runs no code of NCCL's on the host unless it has ops for the network proxy. What is known of the others
//! is the launch of the executable. Its content is followed from the capture on: NCCL ties its plans to the graph
//! (`ncclCudaGraphAddDestructor`), the graph is instantiated, and where the driver leaves the executable is read at
//! the next call. An answer that does not stand for certain is not taken; launches of such executables are counted
//! as unknown. So are those of graphs whose capture was not seen from its beginning to its end: they can hold more.

mod content;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use foldhash::{HashMap, HashSet};

use self::content::{Content, condensed};
use super::{
    counters::GraphCounters,
    flow::{FlowRecord, RECORD_BYTES, WORDS_BYTES},
};
use crate::{
    decode::{Answer, GraphEvent, Origin, PlanEvent},
    wire::GraphMoment,
};

/// Graphs and executables that are kept. A server has some hundreds.
const MAX_OBJECTS: usize = 65_536;
/// Threads that are kept.
const MAX_THREADS: usize = 4096;
/// Plans of a thread that are tied to a graph and not launched yet.
const MAX_WAITING: usize = 4096;
/// Ops, times channels, of a plan, or of a thread since its last call of the API.
const MAX_PLANNED: usize = 16_384;
/// Greatest handle of a stream that means another one in each thread (`CU_STREAM_PER_THREAD`).
const PER_THREAD: u64 = 2;
/// Lines of replayed ops that a process can have in a second, and at once: a launch is one record, whatever it holds.
const OPS_A_SECOND: u64 = 50_000;
const OPS_AT_ONCE: u64 = 200_000;

/// Beginning of a capture.
#[derive(Clone, Copy, Debug)]
struct Begun {
    /// Its number among those of the process, from 1 on.
    number: u64,
    /// Records of the process that were lost until then.
    lost: u64,
    /// The graph was there before.
    is_into: bool,
}

/// What the answer of a call tells.
#[derive(Debug)]
enum Asked {
    /// Executable that is made of a graph with this content, if it is known.
    Executable(Option<Content>),
    /// Whether this executable got that content.
    Update(u64, Option<Content>),
    /// Graph that a capture has made; `None`: its beginning was not seen.
    Graph(Option<Begun>),
}

/// A call whose answer is to come.
#[derive(Debug)]
struct Pending {
    answer: Answer,
    asked: Asked,
}

/// Ops that a thread has planned, with their communicator.
#[derive(Debug, Default)]
struct Planned {
    ops: Vec<(u64, FlowRecord)>,
    /// There were more than are kept.
    is_cut: bool,
}

/// The CUDA graphs of a process.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    captures: HashMap<u64, Content>,
    /// Number of captures that have begun.
    begins: u64,
    /// Captures in progress, by their stream; by thread, too, where a handle means another stream in each thread.
    begun: HashMap<(u64, u32), Begun>,
    /// Executables, with what they hold; `None`: not known.
    execs: HashMap<u64, Option<Content>>,
    /// Executables that were destroyed: their addresses can come again.
    destroyed: HashSet<u64>,
    pending: HashMap<u32, Pending>,
    /// Plans and the graphs that they are tied to, by thread.
    tied: HashMap<u32, VecDeque<(u64, u64)>>,
    /// Graph that captures the thread's plans of a communicator.
    capturing: HashMap<(u32, u64), u64>,
    /// Ops of the plan that is being taken, or, where ops are seen call by call, those that a thread has planned
    /// since its last call of the API.
    planned: HashMap<u32, Planned>,
    /// Number of captured ops that are kept.
    kept: Arc<AtomicUsize>,
    /// Lines that may be made now, and when that was so.
    room: (u64, u64),
    pub(super) counters: GraphCounters,
}

impl Graphs {
    /// Returns about how many bytes of memory graphs take.
    pub(super) fn held_bytes(&self) -> usize {
        let planned: usize = self.planned.values().map(|planned| planned.ops.len()).sum();
        let tied: usize = self.tied.values().map(VecDeque::len).sum();
        let objects =
            self.captures.len() + self.execs.len() + self.destroyed.len() + self.pending.len() + tied;
        let threads = self.tied.len() + self.capturing.len() + self.begun.len() + self.planned.len();
        (self.kept.load(Ordering::Relaxed) + planned) * RECORD_BYTES + (objects + threads) * WORDS_BYTES
    }

    /// Forgets all but the counts: records were passed over, by which graphs and executables can have come and gone.
    pub(super) fn forget(&mut self) {
        *self = Self { counters: self.counters, room: self.room, ..Self::default() };
    }

    /// Begins anew with the ops that this thread plans.
    pub(super) fn begin(&mut self, tid: u32) {
        if self.planned.len() >= MAX_THREADS && !self.planned.contains_key(&tid) {
            self.planned.clear();
        }
        // Room that is kept would not count as held.
        self.planned.insert(tid, Planned::default());
    }

    /// Notes an op that a thread has planned, if it began.
    pub(super) fn planned(&mut self, tid: u32, comm: u64, record: &FlowRecord) {
        let Some(planned) = self.planned.get_mut(&tid) else { return };
        planned.is_cut |= planned.ops.len() >= MAX_PLANNED;
        if !planned.is_cut {
            planned.ops.push((comm, condensed(record)));
        }
    }

    /// Ends a plan, whose ops were noted: they belong to its graph.
    pub(super) fn launched_plan(&mut self, plan: &PlanEvent) {
        let tid = plan.origin.tid;
        let thread = (tid, plan.comm.pointer);
        if !plan.persistent {
            self.capturing.remove(&thread);
            return;
        }
        let tied = self.tied.get_mut(&tid);
        let graph = tied.and_then(|tied| {
            let at = tied.iter().position(|(known, _)| *known == plan.plan)?;
            tied.remove(at).map(|(_, graph)| graph)
        });
        if let Some(graph) = graph {
            if self.capturing.len() >= MAX_THREADS {
                self.capturing.clear();
            }
            self.capturing.insert(thread, graph);
        }
        let Planned { ops, is_cut } = self.planned.remove(&tid).unwrap_or_default();
        if let Some(graph) = self.capturing.get(&thread).copied() {
            // Something is launched of which nothing is known.
            let is_untold = ops.is_empty() && plan.launch.is_none() && !plan.one_sided;
            let is_cut = is_cut || is_untold || plan.nodes.iter().any(|(_, _, cut)| *cut);
            if let Some(content) = self.captures.get_mut(&graph) {
                content.add(ops.into_iter().map(|(_, record)| record), is_cut, &self.kept);
            }
        }
    }

    /// Takes a call that deals with graphs; `out` gets what it replays.
    pub(super) fn apply(&mut self, event: &GraphEvent, out: &mut impl FnMut(FlowRecord)) {
        let Origin { tid, lost, .. } = event.origin;
        let [of_thread, of_process] = event.answered;
        if let Some(answer) = of_thread
            && let Some(pending) = self.pending.remove(&tid).filter(|pending| pending.answer.at == answer.at)
        {
            self.settle(pending, answer.word, lost);
        }
        if let Some(Answer { at, word: Some(word) }) = of_process {
            // The function may not have come to its end: only what has changed is its answer.
            let is_answered = |pending: &Pending| {
                let Pending { answer, asked } = pending;
                answer.at == at && answer.word != Some(word) && !matches!(asked, Asked::Update(..))
            };
            let whose = self.pending.iter().find(|(_, pending)| is_answered(pending)).map(|(tid, _)| *tid);
            if let Some(pending) = whose.and_then(|whose| self.pending.remove(&whose)) {
                self.settle(pending, Some(word), lost);
            }
        }
        match event.moment {
            GraphMoment::Captured => self.tie(event),
            GraphMoment::CaptureBegun | GraphMoment::CaptureBegunInto => self.begin_capture(event),
            GraphMoment::CaptureEnded => {
                let begun = self.begun.remove(&stream(event));
                self.wait(event, Asked::Graph(begun));
            }
            GraphMoment::Instantiated => {
                let content = self.captures.get(&event.graph).cloned();
                self.wait(event, Asked::Executable(content));
            }
            GraphMoment::Updated => {
                // Until the result is known.
                self.note_exec(event.exec, None);
                let content = self.captures.get(&event.graph).cloned();
                self.wait(event, Asked::Update(event.exec, content));
            }
            GraphMoment::Launched => self.launch(event, out),
            GraphMoment::ExecDestroyed => {
                self.execs.remove(&event.exec);
                if self.destroyed.len() >= MAX_OBJECTS {
                    self.destroyed.clear();
                }
                self.destroyed.insert(event.exec);
            }
            GraphMoment::GraphDestroyed => {
                self.captures.remove(&event.graph);
                self.capturing.retain(|_, graph| *graph != event.graph);
            }
        }
    }

    fn tie(&mut self, event: &GraphEvent) {
        let Origin { tid, lost, .. } = event.origin;
        if self.tied.len() >= MAX_THREADS {
            self.tied.clear();
        }
        let tied = self.tied.entry(tid).or_default();
        // What was tied and not launched is no more, and another plan can have its address.
        tied.retain(|(plan, _)| *plan != event.plan);
        if tied.len() >= MAX_WAITING {
            tied.pop_front();
        }
        tied.push_back((event.plan, event.graph));
        let new =
            Content { capture: Some(event.capture), begun: self.begins, ..Content::new(&self.kept, lost) };
        let Some(content) = self.content(event.graph, lost) else { return };
        if content.capture != new.capture {
            // An earlier capture failed, and the address came again. Or both are into one graph: the end tells.
            *content = new;
        }
        // Where ops are seen call by call they were planned before.
        let Some(planned) = self.planned.get_mut(&tid) else { return };
        let Planned { ops, is_cut } = planned;
        let of_plan = ops.extract_if(.., |(comm, _)| Some(*comm) == event.comm);
        let records: Vec<_> = of_plan.map(|(_, record)| record).collect();
        if let Some(content) = self.captures.get_mut(&event.graph)
            && (*is_cut || !records.is_empty())
        {
            content.add(records, *is_cut, &self.kept);
        }
    }

    /// Returns what is known of a graph; `None` if no more graphs are kept.
    fn content(&mut self, graph: u64, lost: u64) -> Option<&mut Content> {
        let Self { captures, kept, .. } = self;
        if captures.len() >= MAX_OBJECTS && !captures.contains_key(&graph) {
            return None;
        }
        Some(captures.entry(graph).or_insert_with(|| Content::new(kept, lost)))
    }

    fn begin_capture(&mut self, event: &GraphEvent) {
        self.begins += 1;
        if self.begun.len() >= MAX_THREADS {
            self.begun.clear();
        }
        let is_into = event.moment == GraphMoment::CaptureBegunInto;
        let begun = Begun { number: self.begins, lost: event.origin.lost, is_into };
        self.begun.insert(stream(event), begun);
    }

    /// Takes the graph that a capture has made. `is_new`: it was not in its place before.
    fn end_capture(&mut self, graph: u64, is_new: bool, begun: Option<Begun>, lost: u64) {
        let new = Content::new(&self.kept, lost);
        let Some(content) = self.content(graph, lost) else { return };
        // It can hold what came before.
        let Some(begun) = begun.filter(|begun| !begun.is_into) else {
            content.is_mixed = true;
            return;
        };
        if content.begun < begun.number {
            // No plan was tied to the graph. What is known is of a capture that failed, and of a graph that is no
            // more; unless the function has left the place as it was.
            let is_same = !is_new && content.capture.is_some();
            *content = Content { is_mixed: is_same, ..new };
        }
        content.is_ended = true;
        content.lost = content.lost.min(begun.lost);
    }

    fn wait(&mut self, event: &GraphEvent, asked: Asked) {
        let Some(answer) = event.answer else { return };
        if self.pending.len() >= MAX_THREADS {
            self.pending.clear();
        }
        self.pending.insert(event.origin.tid, Pending { answer, asked });
    }

    /// Takes the answer of a call.
    fn settle(&mut self, pending: Pending, word: Option<u64>, lost: u64) {
        let Pending { answer, asked } = pending;
        let Some(word) = word else { return };
        let is_changed = answer.word != Some(word);
        match asked {
            // `CUgraphExecUpdateResult`, an enum: 0 is success. After another the executable holds what it held,
            // which was forgotten: the program makes a new one then.
            Asked::Update(exec, content) => {
                if word & u64::from(u32::MAX) == 0 {
                    self.note_exec(exec, content.filter(|content| content.is_whole(lost)));
                }
            }
            // 0: the capture failed.
            Asked::Graph(begun) => {
                if word != 0 {
                    self.end_capture(word, is_changed, begun, lost);
                }
            }
            // A word that was there before, or that is another executable's, is no answer.
            Asked::Executable(content) => {
                let is_new = is_changed || self.destroyed.contains(&word);
                if word != 0 && is_new && !self.execs.contains_key(&word) {
                    self.destroyed.remove(&word);
                    self.note_exec(word, content.filter(|content| content.is_whole(lost)));
                }
            }
        }
    }

    fn note_exec(&mut self, exec: u64, content: Option<Content>) {
        if self.execs.len() < MAX_OBJECTS || self.execs.contains_key(&exec) {
            self.execs.insert(exec, content);
        }
    }

    fn launch(&mut self, event: &GraphEvent, out: &mut impl FnMut(FlowRecord)) {
        let origin = event.origin;
        self.counters.launches += 1;
        let number = self.counters.launches;
        if !self.execs.contains_key(&event.exec) {
            self.note_exec(event.exec, None);
        }
        // An executable that was destroyed unseen can have left its address to another.
        let content = self.execs.get(&event.exec).and_then(Option::as_ref);
        let Some(content) = content.filter(|content| content.lost == origin.lost) else {
            self.counters.unknown += 1;
            return;
        };
        if !content.has_ops() {
            self.counters.without_ops += 1;
            return;
        }
        let Content { ops, left_out, .. } = content;
        let ops = ops.records();
        self.counters.replays += 1;
        self.counters.left_out += left_out;
        let (mut room, since_ns) = self.room;
        if origin.ts_ns > since_ns {
            let passed = u128::from(origin.ts_ns - since_ns) * u128::from(OPS_A_SECOND) / 1_000_000_000;
            room = room.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX)).min(OPS_AT_ONCE);
        }
        let count = ops.len() as u64;
        if count > room {
            self.counters.left_out += count;
            return; // what has passed goes on to count
        }
        self.room = (room - count, origin.ts_ns.max(since_ns));
        self.counters.ops += count;
        for op in ops {
            out(FlowRecord { launched_at: Some((origin, number)), ..op.clone() });
        }
    }
}

/// Returns what names a stream in a process.
fn stream(event: &GraphEvent) -> (u64, u32) {
    let tid = event.origin.tid;
    (event.stream, if event.stream <= PER_THREAD { tid } else { 0 })
}

#[cfg(test)]
mod tests;
