//! Communicators without ops in flight of which threads are inside a call of NCCL: they connect, or wait for
//! room.

use std::collections::BTreeMap;

use super::{
    State, Verdict,
    case::{Case, MAX_SENTENCES, named},
};
use crate::dump::{dump_report::ProcessReport, rank_report::RankReport};

pub(super) fn inside_calls(case: &Case<'_>) -> Option<Verdict> {
    let mut inside: BTreeMap<u32, String> = BTreeMap::new();
    let mut is_sure = case.n_missing() == 0;
    for (number, rank) in &case.ranks {
        let Some(process) = process_of(case, rank) else { continue };
        let calls =
            process.threads.iter().filter_map(|thread| Some((thread.tid, thread.nccl_api.as_deref()?)));
        // One call of each rank is enough.
        let Some((thread, call)) = calls.into_iter().find(|(_, call)| !asks_only(call)) else { continue };
        // The communicator of a call was in registers that have been used again since.
        is_sure &= process.communicators == 1 && !call.starts_with("ncclComm");
        let pid = rank.pid;
        inside.insert(*number, format!("rank {number} is inside {call} (thread {thread} of process {pid})"));
    }
    if inside.is_empty() {
        return None;
    }
    let outside = case.ranks_where(|rank| !inside.contains_key(&rank.rank));
    let victims: Vec<u32> = inside.keys().copied().collect();
    let nothing = format!("no NCCL op in flight, and nothing was launched for {:.1} s", case.seconds);
    let mut evidence = vec![nothing];
    evidence.extend(inside.into_values().take(MAX_SENTENCES));
    if is_sure && !outside.is_empty() {
        let verb = if outside.len() == 1 { "is" } else { "are" };
        evidence.push(format!(
            "{} {verb} in no call of NCCL: inferred that the others wait for it there, to connect or for \
             room",
            named(&outside)
        ));
        return Some(Verdict { state: State::Stuck, culprits: outside, victims, evidence });
    }
    let why = "cannot tell, because which communicator a call is for, or what it waits for, cannot be seen";
    evidence.push(why.to_owned());
    Some(Verdict { state: State::Unknown, culprits: Vec::new(), victims: Vec::new(), evidence })
}

fn process_of<'a>(case: &Case<'a>, rank: &RankReport) -> Option<&'a ProcessReport> {
    case.processes.iter().find(|process| (process.pid, &process.host) == (rank.pid, &rank.host))
}

/// Calls that wait for nothing.
fn asks_only(call: &str) -> bool {
    call.starts_with("ncclGet")
        || matches!(call, "ncclCommGetAsyncError" | "ncclCommCount" | "ncclCommUserRank")
}
