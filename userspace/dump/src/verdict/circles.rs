//! Communicators that wait for each other in a circle: ranks call them in different orders, or some are in a
//! call that all ranks of one must make, and the others in an operation, or such a call, of another.

use std::collections::BTreeSet;

use super::{Kind, job::Waiting, subject};
use crate::ProcessId;
use flow::text::joined;

/// Maximum number of communicators that are named.
const SHOWN: usize = 4;

/// Returns the communicators that wait for each other, of which each waits for another one: those that only
/// wait for them are left out.
pub(super) fn of<'w, 'a>(waiting: &'w [Waiting<'a>]) -> Vec<&'w Waiting<'a>> {
    let mut circle: Vec<&Waiting<'_>> = waiting.iter().collect();
    loop {
        let is_waited_for = |one: &&Waiting<'_>| circle.iter().any(|other| other.waits_for(one));
        let left: Vec<&Waiting<'_>> = circle.iter().copied().filter(is_waited_for).collect();
        if left.len() == circle.len() {
            return circle;
        }
        circle = left;
    }
}

/// Says of each communicator who waits in it, and in what.
pub(super) fn sentence(what: &str, circle: &[&Waiting<'_>]) -> String {
    let calls = circle.iter().filter(|one| one.is_in_a_call()).count();
    let names = || joined(circle.iter().take(SHOWN).map(|one| one.name()), ", ");
    if calls == 0 {
        return format!(
            "{what}: {} communicators wait for each other in a circle, as when ranks call them in different orders: \
             {}",
            circle.len(),
            names()
        );
    }
    let who = match (calls, circle.len() - calls) {
        (_, 0) => "calls that all ranks must make wait for each other",
        (1, 1) => "a call that all ranks must make, and an operation wait for each other",
        _ => "calls that all ranks must make, and operations wait for each other",
    };
    let more = match circle.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("{what}: {who}: {}{more}", joined(circle.iter().take(SHOWN).map(|one| side(one)), "; "))
}

/// Says who waits in a communicator, and in what: `rank 1 of "tp" (process 812) is in ncclCommDestroy`.
fn side(one: &Waiting<'_>) -> String {
    let pids = joined(one.victims.iter().take(SHOWN).map(|(_, pid)| pid), ", ");
    let more = if one.victims.len() > SHOWN { " …" } else { "" };
    let s = if one.victims.len() == 1 { "" } else { "es" };
    let [is, are] = ["is", "are"].map(|verb| format!("of {} (process{s} {pids}{more}) {verb}", one.name()));
    let inferred = if one.call.is_some_and(|call| call.is_inferred) { " (inferred)" } else { "" };
    let what = match (one.call, one.report.verdict.kind) {
        (Some(call), _) => call.function.as_str(),
        (None, Some(Kind::SettingUp)) => "the set-up",
        (None, Some(Kind::NoCounterpart)) => "a send or receive",
        _ => "an operation",
    };
    format!("{} in {what}{inferred}", subject(&one.report.verdict.victims, [&is, &are]))
}

/// Says what to do next.
pub(super) fn next_step(circle: &[&Waiting<'_>]) -> String {
    let waiting: BTreeSet<ProcessId<'_>> =
        circle.iter().flat_map(|one| one.victims.iter().copied()).collect();
    let see = Kind::CallNotMade.next_step(waiting.into_iter().map(|(_, pid)| pid));
    format!("make these calls in one order on all ranks; {see}")
}

#[cfg(test)]
mod tests {
    use crate::{
        CommunicatorReport, ProcessReport, RankReport,
        verdict::{
            Kind, State, judge_all, over_all,
            tests::made::{communicator, in_call, over_nvlink},
        },
    };

    /// Ranks of a communicator over these processes, which launched so many collectives.
    fn launched(name: &str, ranks: &[(u32, u64)]) -> CommunicatorReport {
        let pids: Vec<u32> = ranks.iter().map(|(pid, _)| *pid).collect();
        let mut made = communicator(name, &pids);
        for (rank, (_, count)) in made.ranks.iter_mut().zip(ranks) {
            rank.counters = over_nvlink(0, *count, None).counters;
        }
        made
    }

    fn judged(communicators: &mut [CommunicatorReport], processes: &[ProcessReport]) -> (String, String) {
        judge_all(communicators, processes);
        let job = over_all(communicators, processes).unwrap();
        assert_eq!(job.state, State::Stuck, "{}", job.sentence);
        (job.sentence, job.next.unwrap_or_default())
    }

    /// As `destroy_process_group` of one rank, which waits for another that is in a collective with it.
    #[test]
    fn a_destroy_beside_a_collective_is_said_to_be_one() {
        let processes = [
            in_call(10, 1, None),
            in_call(11, 1, None),
            in_call(12, 2, None),
            in_call(13, 2, Some("ncclCommDestroy")),
        ];
        let mut tp = communicator("tp", &[12, 13]);
        tp.ranks[1].status.destroying = Some(true);
        let mut all = [tp, launched("world", &[(10, 5), (11, 5), (12, 5), (13, 4)])];
        let (sentence, next) = judged(&mut all, &processes);
        let expected = "stuck: a call that all ranks must make, and an operation wait for each other: rank 1 of tp \
                        (process 13) is in ncclCommDestroy; ranks 0, 1, 2 of world (processes 10, 11, 12) are in an \
                        operation";
        assert_eq!(sentence, expected);
        assert!(next.ends_with("ncclflow dump --stacks -p 10,11,12,13"), "{next}");
        // A third one that only waits for them is no part of the circle.
        let mut all = [all[0].clone(), all[1].clone(), launched("late", &[(10, 7), (20, 8)])];
        let (sentence, _) = judged(&mut all, &processes);
        assert!(
            sentence.starts_with(expected)
                && sentence.ends_with("; 1 other communicator for what waits there")
        );
    }

    /// As the teardown in pytorch#190396: each rank ends another communicator first.
    #[test]
    fn one_call_for_three_communicators_is_told_by_nccls_own_marks() {
        let finalize = Some("ncclCommFinalize");
        let processes = [10, 11, 12].map(|pid| in_call(pid, 2, finalize));
        let pairs = [("a", [10, 11]), ("b", [11, 12]), ("c", [12, 10])];
        let mut all = pairs.map(|(name, pids)| communicator(name, &pids));
        for one in &mut all {
            one.ranks[0].status.finalize_called = Some(true);
            one.ranks[1].status.finalize_called = Some(false);
        }
        let (sentence, _) = judged(&mut all, &processes);
        let expected = "stuck: calls that all ranks must make wait for each other: rank 0 of a (process 10) is in \
                        ncclCommFinalize; rank 0 of b (process 11) is in ncclCommFinalize; rank 0 of c (process 12) is \
                        in ncclCommFinalize";
        assert_eq!(sentence, expected);
        assert!(all.iter().all(|one| one.verdict.kind == Some(Kind::CallNotMade)), "{all:#?}");
    }

    #[test]
    fn collectives_alone_are_called_in_different_orders() {
        let processes = [in_call(10, 2, None), in_call(11, 2, None)];
        let mut all = [launched("a", &[(10, 5), (11, 4)]), launched("b", &[(10, 4), (11, 5)])];
        let (sentence, _) = judged(&mut all, &processes);
        assert!(sentence.ends_with("as when ranks call them in different orders: a, b"), "{sentence}");
    }

    /// The set-up of one is waited for by the process that the missing rank must be.
    #[test]
    fn a_set_up_beside_a_collective_is_a_circle() {
        let processes = [in_call(10, 2, Some("ncclCommInitRank")), in_call(11, 1, None)].map(|mut one| {
            one.libraries.push(crate::LibraryReport::default());
            one.state = crate::ProcessState::Running;
            one
        });
        let mut made = communicator("new", &[10]);
        made.n_ranks = 2;
        for rank in &mut made.ranks {
            let set_up = crate::SetUp { stage: Some(crate::Stage::NextRank) };
            *rank = RankReport { n_ranks: 2, set_up: Some(set_up), ..rank.clone() };
        }
        let mut all = [made, launched("world", &[(10, 4), (11, 5)])];
        let (sentence, _) = judged(&mut all, &processes);
        assert!(
            sentence.contains("rank 0 of new (process 10) is in the set-up; rank 1 of world"),
            "{sentence}"
        );
    }
}
