//! Makes files of torch's flight recorder from a dump, for a hang that nobody recorded.
//!
//! NCCL counts the collectives that a rank has launched, by function. The ranks have done what they have in
//! common; what a rank has more than another it launched after that. So the numbers of the latest collectives
//! are known, and their functions as far as the counters or the ops in flight tell them; sizes are not.
//! Frames are those of the moment of the dump: where a process's main thread is now, and not where it was at
//! the call.

use std::collections::{BTreeMap, BTreeSet};

use super::{CommunicatorReport, DumpReport, ProcessId, ProcessReport, RankReport};
use flow::text::name_ranks;
use torch::flight_recorder::{
    Dump, Entry, Function, GlobalRanks, GroupStatus, Operation, Places, ProcessGroup,
};

/// Maximum number of collectives of a rank of which entries are made: the latest.
const MAX_COLLECTIVES: u64 = 64;

/// Maximum number of ranks of all communicators, read or not.
const MAX_MEMBERS: usize = 1 << 22;

/// Maximum number of sends and receives of a rank to each peer of which entries are made.
const MAX_P2P: u64 = 64;

/// Files that are made of a dump.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecorderDumps {
    /// Files by rank of the job.
    pub ranks: BTreeMap<u32, Dump>,
    /// Sentences on what is not in the files.
    pub notes: Vec<String>,
}

/// Makes for each rank the file of its own flight recorder, as far as its memory tells it.
pub fn recorder_dumps(report: &DumpReport) -> RecorderDumps {
    let mut made = RecorderDumps::default();
    let (job_ranks, mut members) = (job_ranks(report), 0);
    for (id, communicator) in (0..).zip(report.communicators.iter().filter(|one| one.n_ranks > 1)) {
        let known = |rank: &RankReport| Some((rank.rank, *job_ranks.get(&gpu_of(rank))?));
        let known = communicator.ranks.iter().filter_map(known).collect();
        let ranks = match GlobalRanks::of(communicator.n_ranks, &known) {
            Ok(ranks) => ranks,
            Err(why) => {
                made.notes.push(format!("communicator {} is left out: {why}", communicator.comm_hash));
                continue;
            }
        };
        members += ranks.ranks.len();
        if members > MAX_MEMBERS {
            made.notes.push(format!(
                "there are more than {MAX_MEMBERS} ranks of communicators: others are left out"
            ));
            break;
        }
        if ranks.inferred > 0 {
            made.notes.push(format!(
                "{} ranks of communicator {} were not read, and are assumed to have the same numbers in \
                 the job",
                ranks.inferred, communicator.comm_hash
            ));
        }
        let group = ProcessGroup {
            pg_id: Some(id),
            name: communicator.comm_hash.as_str().into(),
            description: communicator.name.as_deref().unwrap_or("undefined").into(),
            ranks: ranks.ranks,
            status: None,
        };
        add(&mut made, report, communicator, &group, &known);
    }
    made
}

/// A GPU of a process, by the process's own count.
type Gpu<'a> = (ProcessId<'a>, u32);

fn gpu_of(rank: &RankReport) -> Gpu<'_> {
    (rank.process(), rank.cuda_dev)
}

/// Returns the job's ranks by process and GPU: the rank that the process was given, or else the one in the
/// largest communicator.
fn job_ranks(report: &DumpReport) -> BTreeMap<Gpu<'_>, u32> {
    let mut largest: BTreeMap<Gpu<'_>, &RankReport> = BTreeMap::new();
    for rank in report.communicators.iter().flat_map(|communicator| &communicator.ranks) {
        let known = largest.entry(gpu_of(rank)).or_insert(rank);
        if rank.n_ranks > known.n_ranks {
            *known = rank;
        }
    }
    let has_one_gpu =
        |rank: &RankReport| largest.keys().filter(|(process, _)| *process == rank.process()).count() == 1;
    let told = |rank| ProcessReport::of(rank, &report.processes)?.job_rank.filter(|_| has_one_gpu(rank));
    largest.iter().map(|(gpu, rank)| (*gpu, told(*rank).unwrap_or(rank.rank))).collect()
}

/// Adds what is known of a communicator's ranks.
fn add(
    made: &mut RecorderDumps,
    report: &DumpReport,
    communicator: &CommunicatorReport,
    group: &ProcessGroup,
    job_ranks: &BTreeMap<u32, u32>,
) {
    let common = Common::of(&communicator.ranks);
    let (mut unknown, places) = (BTreeSet::new(), Places::of(group));
    for rank in &communicator.ranks {
        let Some(job_rank) = job_ranks.get(&rank.rank) else { continue };
        let process = ProcessReport::of(rank, &report.processes);
        let collectives = common.collectives(rank, process);
        let enqueued = collectives.last().map_or(common.number, |(number, _)| *number);
        let mut functions = Vec::new();
        for (number, function) in collectives {
            match function {
                Some(function) => functions.push((number, function, None)),
                // A collective that all have launched is no news.
                None if number > common.number => _ = unknown.insert(rank.rank),
                None => {}
            }
        }
        let pending = rank.pending.iter();
        let lists = pending
            .flat_map(|pending| [(Function::Send, &pending.sends), (Function::Recv, &pending.receives)]);
        for (function, peers) in lists {
            for (peer, count) in peers.iter().flatten() {
                functions.extend((0..(*count).min(MAX_P2P)).map(|_| (enqueued, function, Some(*peer))));
            }
        }
        let dump = made.ranks.entry(*job_rank).or_default();
        dump.comm_lib_version = dump.comm_lib_version.take().or_else(|| rank.nccl_version.clone());
        let status = GroupStatus::enqueued(enqueued);
        dump.groups.push(ProcessGroup { status: Some(status), ..group.clone() });
        let (mut p2p, last) = (0, functions.len());
        for (at, (number, function, peer)) in (1..).zip(functions) {
            p2p += u64::from(function.is_p2p());
            let called =
                Operation { function, count: None, datatype: None, rank: rank.rank, root: None, peer };
            let unix_time_ns = report.unix_time.saturating_mul(1_000_000_000);
            // The thread is there now; where it was at earlier calls, nobody knows.
            let process = process.filter(|_| at == last);
            dump.entries.push(Entry {
                record_id: dump.entries.len() as u64,
                collective_seq_id: number,
                p2p_seq_id: p2p,
                op_id: number + p2p,
                time_created_ns: i64::try_from(unix_time_ns).unwrap_or(i64::MAX),
                frames: process.and_then(|process| Some(process.main_thread()?.frames.clone().into())),
                thread_id: process.map(|process| process.pid.into()),
                ..called.entry(group, &places)
            });
        }
    }
    if !unknown.is_empty() {
        let ranks: Vec<u32> = unknown.iter().copied().collect();
        made.notes.push(format!(
            "communicator {}: {ranks} launched collectives whose functions are not known: these \
             have no entries",
            communicator.comm_hash,
            ranks = name_ranks(&ranks)
        ));
    }
}

/// Collectives that all ranks that were read have launched.
#[derive(Debug)]
struct Common {
    /// Numbers of collectives by function; empty where NCCL does not count so (before 2.26).
    by_function: BTreeMap<String, u64>,
    /// Number of all of them, which is that of the last one.
    number: u64,
}

impl Common {
    fn of(ranks: &[RankReport]) -> Self {
        let least = |function: &String| {
            let counts = ranks.iter().map(|rank| rank.counters.seq_number.get(function).copied());
            counts.map(Option::unwrap_or_default).min().unwrap_or(0)
        };
        let functions = ranks.first().into_iter().flat_map(|rank| rank.counters.seq_number.keys());
        let by_function: BTreeMap<String, u64> =
            functions.map(|function| (function.clone(), least(function))).collect();
        let least = || ranks.iter().filter_map(|rank| rank.counters.launched()).min().unwrap_or(0);
        let number = if by_function.is_empty() { least() } else { by_function.values().sum() };
        Self { by_function, number }
    }

    /// Returns the last collective that all have, and those that this rank has more, with their functions
    /// where they are known.
    fn collectives(
        &self,
        rank: &RankReport,
        process: Option<&ProcessReport>,
    ) -> Vec<(u64, Option<Function>)> {
        let own = &rank.counters.seq_number;
        let common = |function: &String| self.by_function.get(function).copied().unwrap_or(0);
        let more = own.iter().map(|(function, count)| (function, count.saturating_sub(common(function))));
        let more: Vec<(&String, u64)> = more.filter(|(_, count)| *count > 0).collect();
        let in_flight = in_flight(rank);
        let (count, function) = if own.is_empty() {
            let count = rank.counters.launched().unwrap_or(0).saturating_sub(self.number);
            (count, in_flight.filter(|_| count == 1))
        } else {
            let count = more.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
            // The order in which the rank called several functions is not known.
            let function = if let [(function, _)] = &*more { Function::of(function) } else { None };
            (count, function)
        };
        let of_common = || {
            let mut called = self.by_function.iter().filter(|(_, count)| **count > 0);
            let first = called.next();
            first.filter(|_| called.next().is_none()).and_then(|(function, _)| Function::of(function))
        };
        let last = self.number.saturating_add(count);
        let numbered = |number| numbered(rank, last, number);
        let mut all = Vec::new();
        if self.number > 0 {
            let only = in_flight.filter(|_| count == 0);
            all.push((self.number, numbered(self.number).or(only).or_else(of_common)));
        }
        let first = self.number.saturating_add(count.saturating_sub(MAX_COLLECTIVES)).saturating_add(1);
        all.extend((first..=last).map(|number| (number, function.or_else(|| numbered(number)))));
        // A collective that waits for others to connect was called and not launched: the thread that called
        // it is in it.
        let mut pending = rank.pending.iter();
        if pending.any(|pending| pending.collectives == 1 && pending.in_group != Some(false)) {
            all.push((last.saturating_add(1), process.and_then(called)));
        }
        all
    }
}

/// Returns the function of the collectives that the rank's proxy has in flight, if it is one.
fn in_flight(rank: &RankReport) -> Option<Function> {
    let mut names = rank.proxy.ops.iter().filter(|op| !op.p2p).map(|op| op.coll.as_deref());
    let first = names.next()??;
    names.all(|name| name == Some(first)).then(|| Function::of(first)).flatten()
}

/// Returns the function of a rank's collective by its number, if the proxy has it in flight and its ops are numbered as
/// the rank's collectives are, of which there are `launched`.
fn numbered(rank: &RankReport, launched: u64, number: u64) -> Option<Function> {
    let is_counted = rank.counters.coll_op_count == Some(launched) && !rank.counters.coll_op_count_is_shared;
    let mut ops = rank.proxy.ops.iter().filter(|op| !op.p2p && op.op_count.checked_add(1) == Some(number));
    Function::of(ops.next().filter(|_| is_counted)?.coll.as_deref()?)
}

/// Returns the collective of the API that the process's threads are in, if it is one.
fn called(process: &ProcessReport) -> Option<Function> {
    let mut called = process.calls().filter_map(|(_, call)| Function::of(call.strip_prefix("nccl")?));
    let first = called.next()?;
    called.next().is_none().then_some(first).filter(|function| function.is_counted())
}

#[cfg(test)]
mod tests {
    use flow::schema::PythonFrame;

    use super::*;
    use crate::{Counters, OpReport, PythonReport, PythonThread, verdict::tests::made};
    use nccl_library::nccl::Direction;

    fn rank(rank: u32, pid: u32, seq_number: &[(&str, u64)]) -> RankReport {
        let seq_number = seq_number.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        RankReport {
            comm_hash: "0x7".to_owned(),
            n_ranks: 3,
            rank,
            pid,
            counters: Counters { seq_number, ..Counters::default() },
            ..RankReport::default()
        }
    }

    fn report(ranks: Vec<RankReport>) -> DumpReport {
        let process = |rank: &RankReport| ProcessReport {
            pid: rank.pid,
            job_rank: Some(rank.rank + 4),
            python: Some(PythonReport {
                threads: vec![PythonThread {
                    is_main: true,
                    frames: vec![PythonFrame {
                        function: format!("f{}", rank.rank),
                        file: "train.py".to_owned(),
                        line: Some(41),
                        ..PythonFrame::default()
                    }],
                    ..PythonThread::default()
                }],
                ..PythonReport::default()
            }),
            ..ProcessReport::default()
        };
        let processes = ranks.iter().map(process).collect();
        let communicator = CommunicatorReport {
            comm_hash: "0x7".to_owned(),
            n_ranks: 3,
            ranks,
            ..CommunicatorReport::default()
        };
        DumpReport { processes, communicators: vec![communicator], unix_time: 9, ..DumpReport::default() }
    }

    /// Number, name and function of the innermost frame.
    type Made = (u64, String, Option<String>);

    /// Returns the entries of each rank of the job.
    fn entries(report: &DumpReport) -> Vec<(u32, Vec<Made>)> {
        let entry = |entry: &Entry| {
            let frame =
                entry.frames.as_ref().and_then(|frames| frames.first()).map(|frame| frame.function.clone());
            (entry.collective_seq_id, entry.profiling_name.clone(), frame)
        };
        let made = recorder_dumps(report);
        made.ranks.iter().map(|(rank, dump)| (*rank, dump.entries.iter().map(entry).collect())).collect()
    }

    fn named(number: u64, name: &str, frame: Option<&str>) -> Made {
        (number, format!("nccl:{name}"), frame.map(str::to_owned))
    }

    #[test]
    fn an_absent_rank_has_one_collective_less() {
        let counts = [("AllReduce", 4)];
        let ahead = [("AllReduce", 5)];
        let report = report(vec![rank(0, 10, &ahead), rank(1, 11, &counts), rank(2, 12, &ahead)]);
        let found = entries(&report);
        let joined = |frame| vec![named(4, "all_reduce", None), named(5, "all_reduce", Some(frame))];
        assert_eq!(
            found,
            [(4, joined("f0")), (5, vec![named(4, "all_reduce", Some("f1"))]), (6, joined("f2"))]
        );
        let made = recorder_dumps(&report);
        assert_eq!(made.ranks[&4].groups[0].ranks, [4, 5, 6]);
        assert_eq!(made.ranks[&5].groups[0].status.as_ref().unwrap().last_enqueued.seq, 4);
    }

    #[test]
    fn another_function_under_one_number_is_there() {
        let of = |more: &'static str| [("AllReduce", 3), (more, 1)];
        let mut ranks = vec![rank(0, 10, &[("AllReduce", 4)]), rank(1, 11, &of("AllGather"))];
        ranks.push(rank(2, 12, &[("AllReduce", 4)]));
        let found = entries(&report(ranks));
        assert_eq!(found[0].1, [named(3, "all_reduce", None), named(4, "all_reduce", Some("f0"))]);
        assert_eq!(found[1].1, [named(3, "all_reduce", None), named(4, "_all_gather_base", Some("f1"))]);
    }

    #[test]
    fn operations_in_flight_tell_the_order_of_functions() {
        let behind = [("AllReduce", 2), ("Broadcast", 1)];
        let mut ahead = rank(0, 10, &[("AllReduce", 3), ("Broadcast", 2)]);
        ahead.counters.coll_op_count = Some(5);
        let op = |op_count, coll: &str| OpReport {
            op_count,
            coll: Some(coll.to_owned()),
            ..made::op(Direction::Recv, 1, op_count)
        };
        ahead.proxy.ops = vec![op(3, "Broadcast"), op(4, "AllReduce")];
        let of = |ahead: &RankReport| {
            entries(&report(vec![ahead.clone(), rank(1, 11, &behind), rank(2, 12, &behind)])).remove(0).1
        };
        assert_eq!(of(&ahead), [named(4, "broadcast", None), named(5, "all_reduce", Some("f0"))]);
        // Its ops are not numbered as its collectives are.
        ahead.counters.coll_op_count = Some(6);
        assert!(of(&ahead).is_empty());
    }

    /// Two functions whose order is not known.
    #[test]
    fn what_is_not_known_is_left_out_and_said() {
        let behind = [("AllReduce", 2), ("Broadcast", 1)];
        let ahead = [("AllReduce", 3), ("Broadcast", 2)];
        let mut report = report(vec![rank(0, 10, &ahead), rank(1, 11, &behind), rank(2, 12, &behind)]);
        let found = entries(&report);
        assert!(found.iter().all(|(_, entries)| entries.is_empty()) && found.len() == 3, "{found:?}");
        let notes = recorder_dumps(&report).notes;
        assert!(notes.iter().any(|note| note.contains("rank 0 launched")), "{notes:?}");
        // Rank 2 was not read, and the others' ranks in the job are not those of the communicator.
        report.communicators[0].ranks.pop();
        let made = recorder_dumps(&report);
        assert!(made.ranks.is_empty() && made.notes[0].contains("its rank 2 is"), "{:?}", made.notes);
    }
}
