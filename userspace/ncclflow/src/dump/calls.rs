//! Ranks whose threads are inside a call of NCCL while nothing is in flight: they connect, or wait for room.

use std::collections::BTreeMap;

use super::{
    report::{ProcessReport, RankReport},
    verdict::{Case, State, Verdict, named},
};

impl Case<'_> {
    /// The verdict on a communicator without ops in flight, some of whose threads are inside NCCL.
    pub(super) fn inside_calls(&self) -> Option<Verdict> {
        let mut inside: BTreeMap<u32, String> = BTreeMap::new();
        let mut is_sure = self.missing() == 0;
        for (number, rank) in &self.ranks {
            let Some(process) = self.process_of(rank) else { continue };
            let calls =
                process.threads.iter().filter_map(|thread| Some((thread.tid, thread.nccl_api.as_deref()?)));
            // The first call tells enough.
            let Some((thread, call)) = calls.into_iter().find(|(_, call)| !asks_only(call)) else { continue };
            // Which communicator a call is for stands in registers that are long gone.
            is_sure &= process.communicators == 1 && !call.starts_with("ncclComm");
            inside.insert(
                *number,
                format!("rank {number} is inside {call} (thread {thread} of process {})", rank.pid),
            );
        }
        if inside.is_empty() {
            return None;
        }
        let outside = self.ranks_where(|rank| !inside.contains_key(&rank.rank));
        let seconds = self.seconds;
        let nothing = format!("no NCCL op in flight, and nothing was launched for {seconds:.1} s");
        let victims: Vec<u32> = inside.keys().copied().collect();
        let mut evidence = vec![nothing];
        evidence.extend(inside.into_values().take(super::verdict::MAX_SENTENCES));
        if is_sure && !outside.is_empty() {
            evidence.push(format!(
                "{} in no call of NCCL: inferred that the others wait for it there, to connect or for room",
                if outside.len() == 1 {
                    format!("{} is", named(&outside))
                } else {
                    format!("{} are", named(&outside))
                }
            ));
            return Some(Verdict { state: State::Stuck, culprits: outside, victims, evidence });
        }
        evidence.push(
            "cannot tell, because which communicator a call is for, or what it waits for, cannot be seen"
                .to_owned(),
        );
        Some(Verdict { state: State::Unknown, culprits: Vec::new(), victims: Vec::new(), evidence })
    }

    fn process_of(&self, rank: &RankReport) -> Option<&ProcessReport> {
        self.processes.iter().find(|process| (process.pid, &process.host) == (rank.pid, &rank.host))
    }
}

/// Calls that wait for nothing.
fn asks_only(call: &str) -> bool {
    call.starts_with("ncclGet")
        || matches!(call, "ncclCommGetAsyncError" | "ncclCommCount" | "ncclCommUserRank")
}
