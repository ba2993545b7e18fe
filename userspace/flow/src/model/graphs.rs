//! CUDA graphs: which ops a graph has captured, which executable was made of it, and what its launches replay.
//!
//! A replay runs no code of NCCL's on the host unless it has ops for the network proxy. What is known of the others
//! is the launch of the executable. Its content is followed from the capture on: NCCL ties its plans to the graph
//! (`ncclCudaGraphAddDestructor`), the graph is instantiated, and where the driver leaves the executable is read at
//! the next call. An answer that does not stand for certain is not taken; launches of such executables are counted
//! as unknown.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use foldhash::{HashMap, HashSet};

use super::{
    counters::GraphCounters,
    flow::{FlowRecord, RECORD_BYTES, WORDS_BYTES},
};
use crate::{
    decode::{Answer, GraphEvent, Origin, PlanEvent, ProxyOp, Ring, Tree},
    schema::Observed,
    wire::GraphMoment,
};

/// Graphs and executables that are kept. A server has some hundreds.
const MAX_OBJECTS: usize = 65_536;
/// Threads that are kept.
const MAX_THREADS: usize = 4096;
/// Captured ops that are kept, in all graphs.
const MAX_OPS: usize = 65_536;
/// Plans of a thread that are tied to a graph and not launched yet, and ops of a thread that were planned since its
/// last call of the API.
const MAX_WAITING: usize = 4096;
/// Lines of replayed ops that a process can have in a second, and at once: a launch is one record, whatever it holds.
const OPS_A_SECOND: u64 = 50_000;
const OPS_AT_ONCE: u64 = 200_000;

/// Ops, counted among all that are kept.
#[derive(Debug, Default)]
struct Ops {
    records: Vec<FlowRecord>,
    kept: Arc<AtomicUsize>,
}

impl Drop for Ops {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.records.len(), Ordering::Relaxed);
    }
}

/// What a graph holds.
#[derive(Clone, Debug, Default)]
struct Content {
    ops: Arc<Ops>,
    /// Number of the capture.
    capture: u64,
    /// It is not known what else the graph holds.
    is_mixed: bool,
    /// Ops that the proxy is posted at each replay, which tells them.
    by_proxy: u64,
    /// Ops beyond the number that is kept.
    left_out: u64,
    /// Records of the process that were lost when it began.
    lost: u64,
}

/// A call whose answer is to come.
#[derive(Debug)]
struct Pending {
    answer: Answer,
    /// Executable that is updated; `None`: one is made.
    updates: Option<u64>,
    content: Content,
}

/// The CUDA graphs of a process.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    captures: HashMap<u64, Content>,
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
    /// since its last call of the API; with their communicator.
    planned: HashMap<u32, Vec<(u64, FlowRecord)>>,
    /// Number of captured ops that are kept.
    kept: Arc<AtomicUsize>,
    /// Lines that may be made now, and when that was so.
    room: (u64, u64),
    pub(super) counters: GraphCounters,
}

impl Graphs {
    /// Returns about how many bytes of memory graphs take.
    pub(super) fn held_bytes(&self) -> usize {
        let planned: usize = self.planned.values().map(Vec::len).sum();
        let tied: usize = self.tied.values().map(VecDeque::len).sum();
        let objects =
            self.captures.len() + self.execs.len() + self.destroyed.len() + self.pending.len() + tied;
        (self.kept.load(Ordering::Relaxed) + planned) * RECORD_BYTES
            + (objects + self.tied.len() + self.capturing.len()) * WORDS_BYTES
    }

    /// Begins anew with the ops that this thread plans.
    pub(super) fn begin(&mut self, tid: u32) {
        if self.planned.len() >= MAX_THREADS && !self.planned.contains_key(&tid) {
            self.planned.clear();
        }
        self.planned.entry(tid).or_default().clear();
    }

    /// Notes an op that a thread has planned, if it began.
    pub(super) fn planned(&mut self, tid: u32, comm: u64, record: &FlowRecord) {
        if let Some(planned) = self.planned.get_mut(&tid)
            && planned.len() < MAX_WAITING * 4
        {
            planned.push((comm, condensed(record)));
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
        let planned = self.planned.remove(&tid).unwrap_or_default();
        if let Some(graph) = self.capturing.get(&thread).copied() {
            self.capture(graph, planned.into_iter().map(|(_, record)| record));
        }
    }

    /// Adds ops, given channel by channel, to what a graph holds.
    fn capture(&mut self, graph: u64, records: impl Iterator<Item = FlowRecord>) {
        let Some(content) = self.captures.get_mut(&graph) else { return };
        let mut ops: Vec<FlowRecord> = Vec::new();
        let mut places = HashMap::default();
        for record in records {
            let key = (record.comm.hash, record.comm.instance, record.seq);
            if let Some(op) = places.get(&key).and_then(|at: &usize| ops.get_mut(*at)) {
                op.needed |= record.needed;
                op.incomplete |= record.incomplete;
            } else {
                places.insert(key, ops.len());
                ops.push(record);
            }
        }
        // An executable has been made of it already, and holds less.
        let Some(of_graph) = Arc::get_mut(&mut content.ops) else {
            content.is_mixed = true;
            return;
        };
        for op in ops {
            if op.needed {
                content.by_proxy += 1;
            } else if self.kept.load(Ordering::Relaxed) >= MAX_OPS {
                content.left_out += 1;
            } else {
                self.kept.fetch_add(1, Ordering::Relaxed);
                of_graph.records.push(op);
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
                pending.answer.at == at && pending.updates.is_none() && pending.answer.word != Some(word)
            };
            let whose = self.pending.iter().find(|(_, pending)| is_answered(pending)).map(|(tid, _)| *tid);
            if let Some(pending) = whose.and_then(|whose| self.pending.remove(&whose)) {
                self.settle(pending, Some(word), lost);
            }
        }
        match event.moment {
            GraphMoment::Captured => self.tie(event),
            GraphMoment::Instantiated => self.wait(event, None),
            GraphMoment::Updated => {
                // Until the result is known.
                self.note_exec(event.exec, None);
                self.wait(event, Some(event.exec));
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
        if tied.len() >= MAX_WAITING {
            tied.pop_front();
        }
        tied.push_back((event.plan, event.graph));
        if self.captures.len() >= MAX_OBJECTS && !self.captures.contains_key(&event.graph) {
            return;
        }
        let Self { captures, kept, .. } = self;
        let content = captures.entry(event.graph).or_insert_with(|| Content {
            ops: Arc::new(Ops { records: Vec::new(), kept: Arc::clone(kept) }),
            capture: event.capture,
            lost,
            ..Content::default()
        });
        // Captured twice; or the first capture failed, and the address came again.
        content.is_mixed |= content.capture != event.capture;
        // Where ops are seen call by call they were planned before.
        let Some(planned) = self.planned.get_mut(&tid) else { return };
        let of_plan = planned.extract_if(.., |(comm, _)| Some(*comm) == event.comm);
        let records: Vec<_> = of_plan.map(|(_, record)| record).collect();
        if !records.is_empty() {
            self.capture(event.graph, records.into_iter());
        }
    }

    fn wait(&mut self, event: &GraphEvent, updates: Option<u64>) {
        let Some(answer) = event.answer else { return };
        let Origin { tid, lost, .. } = event.origin;
        if self.pending.len() >= MAX_THREADS {
            self.pending.clear();
        }
        let of_graph = self.captures.get(&event.graph).cloned();
        let content = of_graph.unwrap_or_else(|| Content { lost, ..Content::default() });
        self.pending.insert(tid, Pending { answer, updates, content });
    }

    /// Takes the answer of a call.
    fn settle(&mut self, pending: Pending, word: Option<u64>, lost: u64) {
        let Pending { answer, updates, content } = pending;
        // What was captured while records were lost can lack something.
        let content = Some(content).filter(|content| content.lost == lost && !content.is_mixed);
        let Some(word) = word else { return };
        if let Some(exec) = updates {
            // `CUgraphExecUpdateResult`, an enum: 0 is success. After another the executable holds what it held,
            // which was forgotten: the program makes a new one then.
            if word & u64::from(u32::MAX) == 0 {
                self.note_exec(exec, content);
            }
            return;
        }
        // A word that was there before, or that is another executable's, is no answer.
        let is_new = answer.word != Some(word) || self.destroyed.contains(&word);
        if word != 0 && is_new && !self.execs.contains_key(&word) {
            self.destroyed.remove(&word);
            self.note_exec(word, content);
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
        let Content { ops, by_proxy, left_out, .. } = content;
        let ops = &ops.records;
        if ops.is_empty() && by_proxy + left_out == 0 {
            self.counters.without_ops += 1;
            return;
        }
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

/// Makes the record that stands for the op on all its channels when it is replayed.
fn condensed(record: &FlowRecord) -> FlowRecord {
    let none = -1;
    let FlowRecord { op, .. } = record;
    let op = ProxyOp {
        pattern: op.pattern,
        protocol: op.protocol,
        algorithm: op.algorithm,
        root: op.root,
        dtype: op.dtype.clone(),
        red_op: op.red_op.clone(),
        coll: op.coll.clone(),
        coll_api: op.coll_api.clone(),
        registered: op.registered,
        launch: op.launch.clone(),
        ..ProxyOp::default()
    };
    FlowRecord {
        op,
        peers: Vec::new(),
        ring: Ring { prev: none, next: none, index: none },
        tree: Tree { up: none, down: [none; 3] },
        planned_at: None,
        posted_at: None,
        captured_seq: Some(record.seq),
        api_call: if record.api_call.is_absent() { Observed::Absent } else { Observed::Unknown },
        p2p_part: None,
        ..record.clone()
    }
}

#[cfg(test)]
mod tests;
