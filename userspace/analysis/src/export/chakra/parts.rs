//! The nodes that stand for a call or an op, as ASTRA-sim runs them.
//!
//! Its workload layer knows all-reduce, all-to-all, all-gather, reduce-scatter and broadcast; at any other
//! `comm_type` it ends. So a reduce, a gather and a scatter are written as the sends and receives that they
//! are made of: a gather and a scatter as NCCL does them, each rank with the root; a reduce along NCCL's
//! ring, where each rank adds its part and passes the sum on. There a simulator passes on a whole part at a
//! time, and NCCL a slice: the load of each link is right, the time is that without a pipeline.
//!
//! Its network layers refuse messages of a rank to itself, and nothing goes over a network for them.

use super::{Work, messages::NodeType};

/// Number of a broadcast.
pub(super) const BROADCAST: i64 = 5;

/// Numbers of `CollectiveCommType` that ASTRA-sim runs, by NCCL's names.
const COLLECTIVES: [(&str, i64); 5] =
    [("AllReduce", 0), ("AllGather", 2), ("Broadcast", BROADCAST), ("AlltoAll", 6), ("ReduceScatter", 7)];

/// A node. Ranks are those of the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// With its `comm_type`.
    Collective(i64),
    SendTo(i32),
    ReceiveFrom(i32),
}

impl Part {
    pub(super) fn kind(self) -> NodeType {
        match self {
            Self::Collective(_) => NodeType::Collective,
            Self::SendTo(_) => NodeType::Send,
            Self::ReceiveFrom(_) => NodeType::Receive,
        }
    }
}

/// Why a call or an op has no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPart {
    /// Chakra has nothing for the function.
    NotInChakra,
    /// The rank sends to itself, or receives from itself.
    ToItself,
    /// Nothing says which rank is the other one.
    PeerUnknown,
}

/// Returns the nodes of a call or an op of more than one rank, in their order.
pub(super) fn parts(work: &Work) -> Result<Vec<Part>, NoPart> {
    let (own, n_ranks) = (work.key.rank, work.n_ranks);
    let root = || work.root.filter(|root| (0..n_ranks).contains(root)).ok_or(NoPart::PeerUnknown);
    let others = |root: i32| (0..n_ranks).filter(move |rank| *rank != root);
    match work.function.as_str() {
        "Send" | "Recv" if work.peer == Some(own) => Err(NoPart::ToItself),
        "Send" => Ok(vec![Part::SendTo(work.peer.ok_or(NoPart::PeerUnknown)?)]),
        "Recv" => Ok(vec![Part::ReceiveFrom(work.peer.ok_or(NoPart::PeerUnknown)?)]),
        "Gather" => Ok(match root()? {
            root if root == own => others(root).map(Part::ReceiveFrom).collect(),
            root => vec![Part::SendTo(root)],
        }),
        "Scatter" => Ok(match root()? {
            root if root == own => others(root).map(Part::SendTo).collect(),
            root => vec![Part::ReceiveFrom(root)],
        }),
        "Reduce" => {
            let root = root()?;
            // The chain begins behind the root and ends at it.
            let (before, after) = ((own + n_ranks - 1) % n_ranks, (own + 1) % n_ranks);
            let receive = (before != root).then_some(Part::ReceiveFrom(before));
            let send = (own != root).then_some(Part::SendTo(after));
            Ok(receive.into_iter().chain(send).collect())
        }
        name => {
            let known = COLLECTIVES.iter().find(|(known, _)| *known == name);
            known.map(|(_, comm_type)| vec![Part::Collective(*comm_type)]).ok_or(NoPart::NotInChakra)
        }
    }
}

/// Returns the bytes that a rank puts in, as ASTRA-sim counts them (`system/collective/Ring.cc`): all ranks'
/// parts for a reduce-scatter and an all-to-all.
pub(super) fn comm_size(work: &Work) -> Option<u64> {
    match work.function.as_str() {
        "ReduceScatter" | "AlltoAll" => work.bytes?.checked_mul(u64::try_from(work.n_ranks).ok()?),
        _ => work.bytes,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use flow::schema::RankKey;

    use super::{Part::*, *};

    fn of(function: &str, rank: i32, n_ranks: i32, root: Option<i32>, peer: Option<i32>) -> Work {
        Work {
            key: RankKey { hash: Some(7), instance: 0, rank, pid: 1 },
            function: function.into(),
            n_ranks,
            bytes: Some(8),
            peer,
            root,
            ts_ns: 0,
            seq: None,
            lane: None,
            launch_ns: None,
            launched: None,
        }
    }

    #[test]
    fn a_reduce_is_a_chain_that_ends_at_its_root() {
        for (n_ranks, root) in [(2, 0), (2, 1), (5, 0), (5, 3)] {
            let of_rank = |rank| parts(&of("Reduce", rank, n_ranks, Some(root), None)).unwrap();
            let mut at = (root + 1) % n_ranks;
            assert_eq!(of_rank(at)[0], SendTo((at + 1) % n_ranks), "the first has nothing to wait for");
            for _ in 1..n_ranks {
                let next = (at + 1) % n_ranks;
                assert!(of_rank(at).contains(&SendTo(next)), "{at}");
                assert_eq!(of_rank(next)[0], ReceiveFrom(at));
                at = next;
            }
            assert_eq!((at, of_rank(root).len()), (root, 1));
        }
    }

    /// Every send has its receive.
    #[test]
    fn sends_and_receives_belong_together() {
        for function in ["Reduce", "Gather", "Scatter"] {
            let mut sent = BTreeSet::new();
            let mut received = BTreeSet::new();
            for rank in 0..6 {
                for part in parts(&of(function, rank, 6, Some(2), None)).unwrap() {
                    match part {
                        SendTo(peer) => assert!(sent.insert((rank, peer))),
                        ReceiveFrom(peer) => assert!(received.insert((peer, rank))),
                        Collective(_) => panic!("{function} ends a simulation"),
                    }
                }
            }
            assert_eq!((sent.len(), &sent), (5, &received), "{function}");
            assert!(sent.iter().all(|(from, to)| from != to));
        }
    }

    #[test]
    fn what_no_simulator_runs_has_no_node() {
        assert_eq!(parts(&of("Send", 1, 4, None, Some(1))), Err(NoPart::ToItself));
        assert_eq!(parts(&of("Recv", 1, 4, None, Some(0))), Ok(vec![ReceiveFrom(0)]));
        assert_eq!(parts(&of("PutSignal", 1, 4, None, Some(0))), Err(NoPart::NotInChakra));
        assert_eq!(parts(&of("Reduce", 1, 4, None, None)), Err(NoPart::PeerUnknown));
        assert_eq!(parts(&of("Gather", 1, 4, Some(4), None)), Err(NoPart::PeerUnknown));
        assert_eq!(parts(&of("Broadcast", 1, 4, Some(0), None)), Ok(vec![Collective(5)]));
        assert_eq!(comm_size(&of("ReduceScatter", 0, 4, None, None)), Some(32));
        assert_eq!(comm_size(&of("Scatter", 0, 4, Some(0), None)), Some(8), "each message has one part");
    }
}
