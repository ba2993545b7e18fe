//! Judges a job whose ranks wait in torch's store: for what, and which ranks do not wait there.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Kind,
    case::{BE, named, subject},
    job::JobVerdict,
    job_ranks::{Job, line_of},
};
use crate::{
    PythonReport, PythonThread, StoreServer, StoreWait, WaitsFor, dump_report::ProcessReport, python::place,
};
use flow::text::joined;

/// Most waits, and places of ranks, that are told of.
const MAX_TOLD: usize = 4;

type Ranks<'a> = [(u32, &'a ProcessReport)];

/// Judges a job of which ranks wait in the store, and in no call that all must make. Whoever puts a key into
/// the store, puts it there for others: so a rank is named only if it is the only one of the whole job that
/// does not wait.
pub(super) fn judge(job: &Job<'_>) -> Option<JobVerdict> {
    let (inside, outside): (Vec<_>, Vec<_>) =
        job.ranks.iter().partition(|(_, process)| process.store_wait.is_some());
    if inside.is_empty() {
        return None;
    }
    let verb = if inside.len() == 1 { "waits" } else { "wait" };
    let waits = format!("{} of {} ranks of the job {verb} in torch's store", inside.len(), job.size);
    let about = format!("{waits}{}", described(&inside));
    let how = "is the only one that does not wait there";
    if let Some(decided) = have_not_come(job, &inside, &outside) {
        return Some(match decided {
            Ok(left) => job.waits_for(Kind::StoreWait, &about, "has not come to it", &left),
            Err(why) => job.cannot_tell(&format!("{about}; {why}"), None),
        });
    }
    // A thread that ran at that moment could not be looked at.
    let places: BTreeSet<_> = inside.iter().flat_map(|(_, process)| innermost(process)).collect();
    let alike = outside.iter().filter(|(_, process)| innermost(process).iter().any(|at| places.contains(at)));
    let alike: Vec<u32> = alike.map(|(rank, _)| *rank).collect();
    if !alike.is_empty() {
        let why = format!("{about}; {} at the same line, and may wait there, too", subject(&alike, BE));
        return Some(job.cannot_tell(&why, None));
    }
    let next = Kind::StoreWait.next_step(outside.iter().map(|(_, process)| process.pid));
    match (&*outside, job.missing().is_empty()) {
        ([_], true) => Some(job.waits_for(Kind::StoreWait, &about, how, &outside)),
        ([], true) => {
            let why = format!("{about}; no rank is left that could put it there: another process may");
            Some(job.cannot_tell(&why, None))
        }
        _ => {
            let place = |(rank, process): &(u32, &ProcessReport)| {
                format!("rank {rank} (process {}) is elsewhere: {}", process.pid, line_of(process))
            };
            let places = outside.iter().take(MAX_TOLD).map(|one| format!("; {}", place(one)));
            let more = match outside.len().saturating_sub(MAX_TOLD) {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            let why = format!(
                "{about}, and which rank is to put it there is not known{}{more}{}",
                joined(places, ""),
                job.not_read()
            );
            Some(job.cannot_tell(&why, Some(next)))
        }
    }
}

/// Returns file, function and line of the innermost Python frame of the thread that waits in the store, or of
/// those that may.
fn innermost(process: &ProcessReport) -> Vec<(&str, &str, Option<u32>)> {
    let threads = process.python.iter().flat_map(PythonReport::may_wait_in_store);
    let waiter = process.store_wait.as_ref().map(|wait| wait.tid);
    let is_one =
        |thread: &&PythonThread| waiter.is_none_or(|tid| tid.map_or(thread.is_main, |tid| tid == thread.tid));
    let frames = threads.filter(is_one).filter_map(|thread| thread.frames.first());
    frames.map(|frame| (&*frame.file, &*frame.function, frame.line)).collect()
}

/// Says what ranks wait for in the store: `, for key "a/b" (variable key), at train.py:4 in load`. Empty if
/// they do not wait there.
pub(super) fn described(inside: &Ranks<'_>) -> String {
    let mut waits: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (rank, process) in inside {
        if let Some(wait) = &process.store_wait {
            waits.entry(sentence(wait, process)).or_default().push(*rank);
        }
    }
    let is_one = waits.len() == 1 && waits.values().all(|ranks| ranks.len() == inside.len());
    let told = waits.iter().take(MAX_TOLD).map(|(wait, ranks)| match &**ranks {
        _ if is_one => format!(", waiting {wait}"),
        ranks => format!(", {} waiting {wait}", named(ranks)),
    });
    let more = if waits.len() > MAX_TOLD { " …" } else { "" };
    format!("{}{more}", joined(told, ""))
}

fn sentence(wait: &StoreWait, process: &ProcessReport) -> String {
    let thread = match wait.tid {
        Some(tid) => process.python.as_ref().and_then(|python| python.thread(tid)),
        None => process.main_thread(),
    };
    let in_thread = wait.tid.map_or_else(String::new, |tid| format!(" (thread {tid})"));
    let place = thread.and_then(place).map_or_else(String::new, |place| format!(", at {place}{in_thread}"));
    match wait.waits_for {
        WaitsFor::Ranks => {
            let from = |server: &StoreServer| {
                let hosts = server.connections.iter().take(MAX_TOLD);
                let hosts = joined(hosts.map(|(from, count)| format!("{from} ({count})")), ", ");
                let more = if server.connections.len() > MAX_TOLD { " …" } else { "" };
                let none = if hosts.is_empty() { "nobody" } else { "" };
                format!(", to which {hosts}{more}{none} has connected")
            };
            let at = wait.address().map_or_else(String::new, |address| format!(" at {address}"));
            let from = wait.server.as_ref().map_or_else(String::new, from);
            format!("for all ranks to come to its store{at}{from}")
        }
        WaitsFor::Server => {
            let at = wait.address().map_or_else(String::new, |address| format!(" at {address}"));
            format!("for the store{at} to answer")
        }
        WaitsFor::CommunicatorId => {
            format!("for the id of a communicator from the first rank of the group{place}")
        }
        WaitsFor::Key | WaitsFor::Unknown => match wait.key() {
            Some(key) => {
                let came = match wait.came() {
                    Some((came, size)) if came > size => format!(
                        ", to which {came} have come instead of {size}: another job uses the same store, or did"
                    ),
                    Some((came, size)) => format!(", to which {came} of {size} have come"),
                    None => String::new(),
                };
                format!("for key \"{}\" (variable {}){came}{place}", key.value, key.name)
            }
            None => format!("for a key that is not known{place}"),
        },
    }
}

/// Tells whether more have come to torch's barrier than there are ranks: it waits for exactly as many.
pub(super) fn too_many_have_come(inside: &Ranks<'_>) -> bool {
    let came = inside.iter().filter_map(|(_, process)| process.store_wait.as_ref()?.came());
    came.into_iter().any(|(came, size)| came > size)
}

/// Finds the ranks that have not come to the store of a rank that waits for all; `Err`: the reason why that
/// is not known. `None`: none waits for that, or not only one.
pub(super) fn have_not_come<'a>(
    job: &Job<'_>,
    inside: &Ranks<'a>,
    outside: &Ranks<'a>,
) -> Option<Result<Vec<(u32, &'a ProcessReport)>, String>> {
    let [(_, host)] = inside else { return None };
    let wait = host.store_wait.as_ref().filter(|wait| wait.waits_for == WaitsFor::Ranks)?;
    let connections = |process: &ProcessReport| process.store_connections;
    let left: Vec<_> = outside
        .iter()
        .copied()
        .filter(|(_, process)| connections(process).is_none_or(|count| count == 0))
        .collect();
    let made: u32 = outside.iter().filter_map(|(_, process)| connections(process)).sum();
    let accepted: Option<u32> = wait.server.as_ref().map(|server| server.connections.values().sum());
    let is_whole = job.missing().is_empty();
    let is_known = left.iter().all(|(_, process)| connections(process).is_some());
    Some(match &*left {
        [] if is_whole => Err("every rank that was read is connected to it".to_owned()),
        [] => Err(format!("the other ranks that were read are connected to it{}", job.not_read())),
        [_] if is_whole => Ok(left),
        // A connection that no process is known to have can be of any of them: addresses can be translated.
        _ if is_known && accepted.is_some_and(|accepted| accepted <= made) => Ok(left),
        more => {
            let ranks: Vec<u32> = more.iter().map(|(rank, _)| *rank).collect();
            Err(format!("which of them have not come is not known: {}{}", named(&ranks), job.not_read()))
        }
    })
}

#[cfg(test)]
mod tests {
    use flow::schema::PythonFrame;

    use super::*;
    use crate::{
        PythonThread, PythonVariable,
        python::PythonReport,
        verdict::{State, torch_set_up::judge},
    };

    /// A rank at line 7 of train.py, below these functions of torch, innermost first.
    fn process(rank: u32, of_torch: &[&str]) -> ProcessReport {
        let frame = |file: &str, function: &str| PythonFrame {
            file: file.to_owned(),
            line: Some(7),
            function: function.to_owned(),
            qualname: None,
        };
        let torch = "/x/site-packages/torch/distributed/distributed_c10d.py";
        let frames = of_torch.iter().map(|name| frame(torch, name)).chain([frame("/a/train.py", "main")]);
        let main = PythonThread { is_main: true, frames: frames.collect(), ..PythonThread::default() };
        ProcessReport {
            pid: 100 + rank,
            job_rank: Some(rank),
            job_size: Some(4),
            job_rank_from: Some("RANK".to_owned()),
            python: Some(PythonReport { threads: vec![main], ..PythonReport::default() }),
            ..ProcessReport::default()
        }
    }

    fn elsewhere(rank: u32) -> ProcessReport {
        let mut one = process(rank, &[]);
        let frame = &mut one.python.as_mut().unwrap().threads[0].frames[0];
        (frame.line, frame.function) = (Some(5), "load".to_owned());
        one
    }

    fn waits(rank: u32, of_torch: &[&str], waits_for: WaitsFor, variables: &[(&str, &str)]) -> ProcessReport {
        let variable = |(name, value): &(&str, &str)| PythonVariable {
            name: (*name).to_owned(),
            value: (*value).to_owned(),
        };
        let variables = variables.iter().map(variable).collect();
        let store_wait = Some(StoreWait { waits_for, variables, tid: None, server: None });
        ProcessReport { store_wait, ..process(rank, of_torch) }
    }

    const KEY: &[(&str, &str)] = &[("key", "ready/1")];

    #[test]
    fn the_only_rank_that_does_not_wait_for_the_key_is_named() {
        let mut all: Vec<_> = (1..4).map(|rank| waits(rank, &[], WaitsFor::Key, KEY)).collect();
        all.push(elsewhere(0));
        let job = judge(&all).unwrap();
        let expected = "stuck: 3 of 4 ranks of the job wait in torch's store, waiting for key \"ready/1\" (variable key), \
                        at train.py:7 in main; rank 0 (process 100) is the only one that does not wait there: \
                        train.py:5 in load";
        assert_eq!((&*job.sentence, job.state, job.kind), (expected, State::Stuck, Some(Kind::StoreWait)));
        // The wait can be in another thread, and is told at its place.
        let mut threads = all.clone();
        for process in &mut threads[..3] {
            let python = process.python.as_mut().unwrap();
            let main = PythonThread {
                tid: process.pid,
                is_main: true,
                ..elsewhere(1).python.unwrap().threads[0].clone()
            };
            let other = std::mem::replace(&mut python.threads[0], main);
            python.threads.push(PythonThread { tid: 9, is_main: false, ..other });
            process.store_wait.as_mut().unwrap().tid = Some(9);
        }
        let job = judge(&threads).unwrap();
        let place = "(variable key), at train.py:7 in main (thread 9); rank 0";
        assert!(job.state == State::Stuck && job.sentence.contains(place), "{}", job.sentence);
        // One at the same line may wait, too: its thread could not be looked at.
        let mut alike = all.clone();
        alike[0].store_wait = None;
        let job = judge(&alike).unwrap();
        assert_eq!(job.state, State::Unknown);
        assert!(
            job.sentence.ends_with("; rank 1 is at the same line, and may wait there, too"),
            "{}",
            job.sentence
        );
        // One that was not read can be the one, too.
        all[0] = elsewhere(1);
        let two = judge(&all).unwrap();
        assert_eq!(two.state, State::Unknown);
        assert!(
            two.sentence
                .contains("which rank is to put it there is not known; rank 0 (process 100) is elsewhere")
        );
        all.remove(0);
        let unread = judge(&all).unwrap();
        assert_eq!((unread.state, unread.kind), (State::Unknown, Some(Kind::NotRead)));
        assert!(unread.sentence.ends_with("; rank 1 was not read"), "{}", unread.sentence);
        // All wait, for keys that differ.
        let all: Vec<_> = (0..4)
            .map(|rank| {
                waits(
                    rank,
                    &[],
                    WaitsFor::Key,
                    if rank < 2 { KEY } else { &[("a_key", "x"), ("b_key", "y")] },
                )
            })
            .collect();
        let job = judge(&all).unwrap();
        let expected = "cannot tell: 4 of 4 ranks of the job wait in torch's store, ranks 2, 3 waiting for a key that is \
                        not known, at train.py:7 in main, ranks 0, 1 waiting for key \"ready/1\" (variable key), at \
                        train.py:7 in main; no rank is left that could put it there: another process may";
        assert_eq!((&*job.sentence, job.state), (expected, State::Unknown));
    }

    #[test]
    fn the_id_of_a_communicator_comes_from_the_first_rank_of_the_group() {
        let mut all: Vec<_> =
            (1..4).map(|rank| waits(rank, &["all_reduce"], WaitsFor::CommunicatorId, &[])).collect();
        all.push(elsewhere(0));
        let job = judge(&all).unwrap();
        let expected = "waiting for the id of a communicator from the first rank of the group, at distributed_c10d.py:7 \
                        in all_reduce, called from train.py:7 in main; rank 0 (process 100) is the only one";
        assert!(job.sentence.contains(expected) && job.state == State::Stuck, "{}", job.sentence);
    }

    /// yolov5#4574: twice as many workers as there are ranks.
    #[test]
    fn torchs_barrier_says_how_many_have_come() {
        let barrier = |count: &'static str, is_last_elsewhere: bool| {
            let of_torch = ["_store_based_barrier", "init_process_group"];
            let variables = [
                ("store_key", "store_based_barrier_key:1"),
                ("last_worker_key", "store_based_barrier_key:1:last_worker"),
                ("worker_count", count),
                ("world_size", "4"),
            ];
            let mut all: Vec<_> =
                (0..3).map(|rank| waits(rank, &of_torch, WaitsFor::Key, &variables)).collect();
            let last = if is_last_elsewhere {
                process(3, &[])
            } else {
                waits(3, &of_torch, WaitsFor::Key, &variables)
            };
            all.push(last);
            judge(&all)
        };
        let expected = "stuck: 3 of 4 ranks of the job are in torch's init_process_group, waiting for key \
                        \"store_based_barrier_key:1:last_worker\" (variable last_worker_key), to which 3 of 4 have come";
        let three = barrier("3", true).unwrap().sentence;
        assert!(three.starts_with(expected), "{three}");
        // All are in it, and it never ends.
        let eight = barrier("8", false).unwrap();
        assert!(
            eight.sentence.contains("8 have come instead of 4: another job uses the same store"),
            "{eight:#?}"
        );
        assert_eq!((eight.state, eight.kind), (State::Stuck, Some(Kind::NeverMatches)));
        assert_eq!(barrier("4", false), None);
    }

    /// As `init_process_group("nccl")` is on the rank that has the store: other ranks that have come have
    /// gone on.
    #[test]
    fn of_ranks_that_are_elsewhere_those_have_come_that_are_connected_to_the_store() {
        let at = [("hostname", "10.0.0.7"), ("port", "29500")];
        let mut host = waits(0, &["_create_c10d_store", "init_process_group"], WaitsFor::Ranks, &at);
        let connections = [("10.0.0.7".parse().unwrap(), 2)].into();
        host.store_wait.as_mut().unwrap().server = Some(StoreServer { port: 29500, connections });
        let connected = |rank, store_connections| ProcessReport { store_connections, ..process(rank, &[]) };
        let job = judge(&[host.clone(), connected(1, Some(1)), connected(2, Some(1)), connected(3, Some(0))])
            .unwrap();
        let expected = "stuck: 1 of 4 ranks of the job is in torch's init_process_group, waiting for all ranks to come \
                        to its store at 10.0.0.7:29500, to which 10.0.0.7 (2) has connected; rank 3 (process 103) has \
                        not called it: train.py:7 in main";
        assert_eq!((&*job.sentence, job.state), (expected, State::Stuck));
        // A connection that no process is known to have: any of the two can have it.
        let job = judge(&[host.clone(), connected(1, Some(1)), connected(2, Some(0)), connected(3, Some(0))])
            .unwrap();
        assert_eq!(job.state, State::Unknown);
        assert!(
            job.sentence.ends_with("which of them have not come is not known: ranks 2, 3"),
            "{}",
            job.sentence
        );
        // All that were read have come, and rank 3 was not read.
        let job = judge(&[host.clone(), connected(1, Some(1)), connected(2, Some(1))]).unwrap();
        assert_eq!((job.state, job.kind), (State::Unknown, Some(Kind::NotRead)));
        assert!(job.sentence.ends_with("are connected to it; rank 3 was not read"), "{}", job.sentence);
        // Nothing is known of connections.
        let job = judge(&[host, connected(1, None), connected(2, None), connected(3, None)]).unwrap();
        assert_eq!(job.state, State::Unknown);
    }

    /// `WORLD_SIZE` is what a tenant says.
    #[test]
    fn a_job_of_billions_of_ranks_is_judged_at_once() {
        let mut one = waits(1, &[], WaitsFor::Key, KEY);
        one.job_size = Some(u32::MAX);
        let job = judge(&[one]).unwrap();
        assert!(job.sentence.len() < 400, "{}", job.sentence);
    }
}
