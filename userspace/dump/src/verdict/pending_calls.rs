//! Judges communicators with threads that wait in a call for another rank's send or receive: the first use of
//! a connection makes it, and that needs both ends (src/transport.cc, ncclTransportP2pSetup).

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, Kind, MAX_SENTENCES, Verdict, inside_calls::waits_in_call};
use crate::RankReport;
use nccl_library::nccl::Direction;

/// A rank, the peer that it waits for, and the operation that it wants to do with it.
type Wait = (u32, u32, Direction);

pub(super) fn pending_calls(case: &Case<'_>) -> Option<Verdict> {
    let waiting: BTreeMap<u32, String> =
        case.ranks.iter().filter_map(|(number, rank)| Some((*number, waits_in_call(case, rank)?))).collect();
    let mut open: Vec<Wait> = Vec::new();
    for number in waiting.keys() {
        let Some(rank) = case.ranks.get(number) else { continue };
        for (direction, counterpart) in
            [(Direction::Send, Direction::Recv), (Direction::Recv, Direction::Send)]
        {
            // Of a peer that was not read it is not known whether it has the counterpart.
            let lacks = |peer: &&u32| {
                let theirs = case.ranks.get(peer).and_then(|other| queue(other, counterpart));
                *peer != number && theirs.is_some_and(|theirs| !theirs.contains_key(number))
            };
            let peers = queue(rank, direction).into_iter().flat_map(BTreeMap::keys).filter(lacks);
            open.extend(peers.map(|peer| (*number, *peer, direction)));
        }
    }
    if open.is_empty() {
        return None;
    }
    let mut evidence = vec![format!("nothing was launched for {:.1} s", case.seconds)];
    for (rank, peer, direction) in open.iter().take(MAX_SENTENCES) {
        let (wants, lacks) = match direction {
            Direction::Recv => ("receive from", "send to"),
            Direction::Send => ("send to", "receive from"),
        };
        let call = waiting.get(rank).map_or("", String::as_str);
        evidence.push(format!(
            "rank {rank} is to {wants} rank {peer}, and waits in {call} to connect; rank {peer} has no {lacks} \
             rank {rank} pending"
        ));
    }
    Some(without_counterpart(open.iter().map(|(rank, peer, _)| (*rank, *peer)), evidence))
}

/// Returns the verdict on ranks that wait for the send or receive of others: each rank, and whom it waits for.
pub(super) fn without_counterpart(
    open: impl Iterator<Item = (u32, u32)> + Clone,
    mut evidence: Vec<String>,
) -> Verdict {
    let victims: BTreeSet<u32> = open.clone().map(|(rank, _)| rank).collect();
    // A rank that itself waits for another is not where the waiting ends.
    let culprits: BTreeSet<u32> = open.map(|(_, peer)| peer).filter(|peer| !victims.contains(peer)).collect();
    if culprits.is_empty() {
        evidence.push("the ranks wait for each other in a circle".to_owned());
    }
    Verdict::stuck(Kind::NoCounterpart, culprits, victims, evidence)
}

/// Returns the sends or the receives that a rank has not launched, by peer.
fn queue(rank: &RankReport, direction: Direction) -> Option<&BTreeMap<u32, u64>> {
    let pending = rank.pending.as_ref()?;
    match direction {
        Direction::Send => pending.sends.as_ref(),
        Direction::Recv => pending.receives.as_ref(),
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        ProcessReport, RankReport,
        pending::Pending,
        verdict::{
            State, judge,
            tests::made::{check, over_nvlink},
        },
    };
    use inspect::threads::Thread;

    fn asked(number: u32, sends: &[u32], receives: &[u32]) -> RankReport {
        let mut rank = over_nvlink(number, 0, None);
        let queue = |peers: &[u32]| Some(peers.iter().map(|peer| (*peer, 1)).collect());
        rank.pending = Some(Pending {
            p2p: (sends.len() + receives.len()) as u64,
            sends: queue(sends),
            receives: queue(receives),
            in_group: Some(!sends.is_empty() || !receives.is_empty()),
            ..Pending::default()
        });
        rank
    }

    /// A process with two communicators, and a thread in ncclGroupEnd.
    fn process(rank: &RankReport) -> ProcessReport {
        let thread = Thread { tid: 7, nccl_api: Some("ncclGroupEnd".to_owned()), ..Thread::default() };
        ProcessReport { pid: rank.pid, communicators: 2, threads: vec![thread], ..ProcessReport::default() }
    }

    #[test]
    fn a_receive_without_a_send_names_the_rank_that_should_send() {
        let ranks = [asked(0, &[], &[1]), asked(1, &[], &[]), asked(2, &[], &[]), asked(3, &[], &[])];
        let verdict = judge(&ranks, &[process(&ranks[0])]);
        check(&verdict, State::Stuck, &[1], &[0], "rank 1 has no send to rank 0 pending");
        // Both have it: they are connecting.
        let ranks = [asked(0, &[], &[1]), asked(1, &[0], &[]), asked(2, &[], &[]), asked(3, &[], &[])];
        let verdict = judge(&ranks, &[process(&ranks[0]), process(&ranks[1])]);
        assert_ne!(verdict.state, State::Stuck, "{verdict:#?}");
    }

    #[test]
    fn the_waiting_is_followed_to_its_end() {
        let ranks = [asked(0, &[], &[1]), asked(1, &[2], &[]), asked(2, &[], &[]), asked(3, &[], &[])];
        let verdict = judge(&ranks, &[process(&ranks[0]), process(&ranks[1])]);
        check(&verdict, State::Stuck, &[2], &[0, 1], "rank 2 has no receive from rank 1 pending");
        let ranks = [asked(0, &[], &[1]), asked(1, &[], &[0]), asked(2, &[], &[]), asked(3, &[], &[])];
        let verdict = judge(&ranks, &[process(&ranks[0]), process(&ranks[1])]);
        check(&verdict, State::Stuck, &[], &[0, 1], "in a circle");
    }

    /// The call is for the process's other communicator.
    #[test]
    fn a_call_for_another_communicator_says_nothing_of_this_one() {
        let ranks = [asked(0, &[], &[]), asked(1, &[], &[]), asked(2, &[], &[]), asked(3, &[], &[])];
        let verdict = judge(&ranks, &[process(&ranks[0])]);
        assert_eq!(verdict.state, State::Healthy, "{verdict:#?}");
    }
}
