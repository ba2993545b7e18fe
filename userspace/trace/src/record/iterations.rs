//! Looks for training iterations in what is recorded of a window.
//!
//! The thread that makes a window's files first reads its recording without messages, until it knows where
//! iterations begin and end. Then it makes the files and leaves out what belongs to no iteration. As it looks
//! back, the window can begin with the first iteration after the flag, although it takes three to recognise
//! one. `session.json`, at the end of the recording, has the moments, so every later reader leaves out the
//! same records.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use flow::{
    iterations::{Collective, IterationFinder, MAX_COLLECTIVES, Mark, Period, marks},
    schema::{ApiCall, Op, RankKey},
    session::{ProcessIterations, UncutProcess, WindowIterations},
};
use nccl_library::nccl::Name;

use recording::sinks::Sink;

/// Most processes that are looked at. What others do meanwhile belongs to the window.
const MAX_PROCESSES: usize = 512;

/// Most ranks that are looked at.
const MAX_RANKS: usize = 4096;

/// Longest time of a search.
const LOOK_NS: u64 = 300_000_000_000;

/// Sink that takes rows for [`Looking`].
#[derive(Clone, Debug)]
pub(super) struct IterationLooker(Arc<Mutex<Looking>>);

/// State of the search for a window's iterations.
#[derive(Debug, Default)]
pub(super) struct Looking {
    wanted: u64,
    /// The recording has calls, and no ops.
    by_calls: bool,
    processes: BTreeMap<u32, Watched>,
    /// Last sequence number of each rank: an op comes once for each of its channels.
    ranks: HashMap<RankKey, u64>,
}

/// State of one process.
#[derive(Debug, Default)]
struct Watched {
    finder: IterationFinder,
    period: Option<Period>,
    /// The rank that is looked at in each communicator; the process's other ranks take turns with it.
    ranks: HashMap<Option<u64>, i32>,
    /// Beginnings of iterations whose collectives were forgotten; the period is settled then.
    marks: Vec<Mark>,
    forgotten: usize,
}

impl IterationLooker {
    pub(super) fn new(wanted: u64, by_calls: bool) -> Self {
        Self(Arc::new(Mutex::new(Looking { wanted, by_calls, ..Looking::default() })))
    }

    pub(super) fn looking(&self) -> MutexGuard<'_, Looking> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for IterationLooker {
    fn op(&mut self, op: &Op) {
        let row = &op.row;
        if row.pattern.is_numbered_apart() || row.graph_launch.is_some() {
            return;
        }
        let name = row.coll_api.as_ref().or(row.coll.as_ref()).map_or("", |name| name.as_str());
        let what = (name, row.count.or(row.bytes), row.dtype.as_ref().map(Name::as_str));
        let collective = Collective::new(what, (op.rank.hash, row.n_ranks), row.seq, row.ts_ns);
        self.looking().push(op.rank, collective);
    }

    fn call(&mut self, call: &ApiCall) {
        let row = &call.row;
        let (Some(rank), Some(number)) = (call.rank, row.op_count) else { return };
        let mut looking = self.looking();
        if !looking.by_calls || row.peer.is_some() {
            return;
        }
        let what = (row.function.as_str(), Some(row.count), row.datatype.as_ref().map(Name::as_str));
        let comm = (rank.hash, row.n_ranks.unwrap_or(0));
        looking.push(rank, Collective::new(what, comm, number, row.ts_ns));
    }
}

impl Looking {
    fn push(&mut self, rank: RankKey, collective: Collective) {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&rank.pid)
            || self.ranks.len() >= MAX_RANKS && !self.ranks.contains_key(&rank)
        {
            return;
        }
        let process = self.processes.entry(rank.pid).or_default();
        if *process.ranks.entry(rank.hash).or_insert(rank.rank) != rank.rank {
            return;
        }
        if self.ranks.get(&rank).is_none_or(|last| collective.seq > *last) {
            self.ranks.insert(rank, collective.seq);
            process.push(collective);
        }
    }

    /// Returns the iterations once they are decided, with the reason if they are not all that are wanted.
    /// `is_over`: nothing more comes.
    pub(super) fn decide(&mut self, is_over: bool) -> Option<WindowIterations> {
        for process in self.processes.values_mut() {
            process.look(is_over);
        }
        let most = self.processes.values().map(Watched::count).max().unwrap_or(0);
        // Processes with few calls need not have iterations.
        let counts = |process: &&Watched| process.count() * 2 >= most;
        let counted = || self.processes.values().filter(counts);
        let is_lacking = counted().any(|process| process.period.is_none());
        let is_long = counted().any(Watched::is_long);
        let is_full = counted().any(|process| process.finder.is_full());
        if (is_lacking || most == 0) && !is_over && !is_full && !is_long {
            return None;
        }
        let (processes, length) = self.iterations();
        let mut found = WindowIterations {
            found: !processes.is_empty(),
            uncut: self.uncut(&processes, most),
            period_collectives: length,
            processes,
            ..WindowIterations::wanted(self.wanted)
        };
        if found.found && found.processes.iter().all(|process| process.iterations >= self.wanted) {
            return Some(found);
        }
        if found.found && !is_lacking && !is_over && !is_long {
            return None;
        }
        let few = found.processes.iter().map(|process| process.iterations).min().unwrap_or(0);
        found.why_not = Some(match (found.found, is_over) {
            (true, _) => {
                format!("the window was over, or {} s had passed, after {few}", LOOK_NS / 1_000_000_000)
            }
            (false, true) => format!("no sequence of collectives recurred in {most} of a process"),
            (false, false) => format!(
                "no sequence of collectives recurred in {} s, or {MAX_COLLECTIVES} of a process",
                LOOK_NS / 1_000_000_000
            ),
        });
        Some(found)
    }

    /// Returns the processes that are not cut while others are, with the reason. `most`: collectives of the
    /// process that has most.
    fn uncut(&self, cut: &[ProcessIterations], most: usize) -> Vec<UncutProcess> {
        if cut.is_empty() {
            return Vec::new();
        }
        let others = self.processes.iter().filter(|(pid, _)| cut.iter().all(|own| own.pid != **pid));
        let explained = others.map(|(pid, process)| {
            let count = process.count();
            let why = if process.period.is_some() {
                "it did not come to the collective with which the others begin".to_owned()
            } else if count * 2 < most {
                format!("it had {count} collectives, and others {most}: too few to find an iteration")
            } else {
                format!("no sequence recurred in its {count} collectives")
            };
            UncutProcess { pid: *pid, collectives: count as u64, why }
        });
        explained.collect()
    }

    /// Returns where iterations begin and end, and the length that most have.
    fn iterations(&mut self) -> (Vec<ProcessIterations>, Option<u64>) {
        let leader = self.processes.values().filter_map(|process| process.period.as_ref());
        let Some(leader) = leader.max_by_key(|period| period.covered).cloned() else {
            return (Vec::new(), None);
        };
        let mut all = Vec::new();
        for (pid, process) in &mut self.processes {
            let marks = process.marks(&leader);
            if let (Some(period), Some(first)) = (&process.period, marks.first()) {
                all.push((*pid, period.collectives() as u64, first.first, marks));
            }
        }
        // All ranks of a communicator begin with the same collective.
        let mut begins: HashMap<u64, u64> = HashMap::new();
        for (_, _, first, _) in &all {
            if let Some(hash) = first.comm_hash {
                let seq = begins.entry(hash).or_default();
                *seq = first.seq.max(*seq);
            }
        }
        let mut lengths: BTreeMap<u64, usize> = BTreeMap::new();
        let mut processes = Vec::new();
        for (pid, period_collectives, first, marks) in all {
            let begin_seq = first.comm_hash.and_then(|hash| begins.get(&hash)).copied().unwrap_or(0);
            let is_begin =
                |mark: &&Mark| mark.first.comm_hash != first.comm_hash || mark.first.seq >= begin_seq;
            let Some(begin) = marks.iter().find(is_begin) else { continue };
            let after = |mark: &&Mark| mark.number >= begin.number + self.wanted;
            let last = marks.last().unwrap_or(begin);
            let (number, until_ns) = match marks.iter().find(after) {
                Some(end) => (end.number, Some(end.first.ts_ns)),
                None => (last.number + 1, last.next_ns),
            };
            *lengths.entry(period_collectives).or_default() += 1;
            processes.push(ProcessIterations {
                pid,
                period_collectives,
                iterations: number - begin.number,
                from_ns: begin.first.ts_ns,
                until_ns,
            });
        }
        let length = lengths.into_iter().max_by_key(|(_, count)| *count).map(|(length, _)| length);
        (processes, length)
    }
}

impl Watched {
    fn push(&mut self, collective: Collective) {
        if self.finder.is_full() {
            self.settle();
        }
        self.finder.push(collective);
    }

    /// Counts the collectives until now.
    fn count(&self) -> usize {
        self.forgotten + self.finder.collectives().len()
    }

    fn is_long(&self) -> bool {
        let collectives = self.finder.collectives();
        let begin = self.marks.first().map(|mark| &mark.first).or(collectives.first());
        let (Some(begin), Some(last)) = (begin, collectives.last()) else { return false };
        last.ts_ns.saturating_sub(begin.ts_ns) >= LOOK_NS
    }

    fn look(&mut self, is_last: bool) {
        if self.forgotten == 0 && (self.finder.is_due() || is_last) {
            self.period = self.finder.find(is_last);
        }
    }

    /// Makes room: keeps only the last iteration, if the period is known.
    fn settle(&mut self) {
        let Some(period) = &self.period else { return };
        let new = marks(self.finder.collectives(), period);
        let Some(last) = new.last() else { return };
        let last_at = last.at;
        self.marks = joined(mem::take(&mut self.marks), new);
        self.finder.forget(last_at);
        self.forgotten += last_at;
    }

    fn marks(&mut self, leader: &Period) -> Vec<Mark> {
        let Some(period) = &mut self.period else { return Vec::new() };
        if self.forgotten == 0 {
            period.align_with(leader);
        }
        joined(self.marks.clone(), marks(self.finder.collectives(), period))
    }
}

/// Appends marks, the first of which is the last of those before.
fn joined(mut before: Vec<Mark>, new: Vec<Mark>) -> Vec<Mark> {
    if !new.is_empty() {
        let last = before.pop().map_or(0, |mark| mark.number);
        before.extend(new.into_iter().map(|mark| Mark { number: mark.number + last, ..mark }));
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes collectives of a rank, of three kinds in turn.
    fn run(looking: &mut Looking, pid: u32, count: u64) {
        for seq in 0..count {
            let what = match seq % 3 {
                0 => "AllReduce",
                1 => "AllGather",
                _ => "ReduceScatter",
            };
            // A pause before each iteration.
            let ts_ns = seq * 1_000_000 + seq / 3 * 50_000_000;
            let rank = RankKey { hash: Some(7), instance: 0, rank: pid.cast_signed(), pid };
            looking.push(rank, Collective::new((what, Some(64), None), (Some(7), 3), seq, ts_ns));
        }
    }

    #[test]
    fn a_process_that_is_not_cut_is_named_with_the_reason() {
        let mut looking = Looking { wanted: 2, ..Looking::default() };
        run(&mut looking, 1, 30);
        run(&mut looking, 2, 30);
        run(&mut looking, 3, 4);
        let found = looking.decide(true).unwrap();
        assert!(found.found, "{found:?}");
        assert_eq!(found.processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [1, 2]);
        let uncut: Vec<_> = found.uncut.iter().map(|process| (process.pid, process.collectives)).collect();
        assert_eq!(uncut, [(3, 4)]);
        assert!(found.uncut[0].why.contains("4 collectives, and others 30"), "{found:?}");

        let mut nothing = Looking { wanted: 2, ..Looking::default() };
        run(&mut nothing, 1, 4);
        let found = nothing.decide(true).unwrap();
        assert!(!found.found && found.uncut.is_empty(), "where nothing was found, `why_not` says it");
    }
}
