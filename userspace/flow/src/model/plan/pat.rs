//! Peers of an op of PAT: the calls of `SaveProxy` that `ncclProxySaveOp` makes for all distances that are
//! powers of two, each with a number of steps of its own ([`nccl_library::nccl::PatRule`]).

use super::peers::Call;
use crate::decode::{ChannelGraphs, CommunicatorId, ProxyOp};
use nccl_library::nccl::{Direction, PatRule, Pattern};

/// Calls of `SaveProxy` for an op, in NCCL's order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PatCalls {
    pub(super) calls: Vec<Call>,
    /// FIFO steps of each call; `None` where they are not known.
    pub(super) nsteps: Option<Vec<u64>>,
}

/// Returns the calls for an op. `rule`: the version's rule for the steps, where it is known.
pub(super) fn calls(
    op: &ProxyOp,
    graphs: &ChannelGraphs,
    comm: &CommunicatorId,
    rule: Option<PatRule>,
) -> PatCalls {
    use Direction::{Recv, Send};
    let (rank, n_ranks) = (comm.rank, comm.n_ranks);
    // Between nodes of several ranks the peers come from a table that is not read.
    if rule.is_some_and(|rule| rule.between_nodes) && graphs.n_nodes != Some(n_ranks) {
        return PatCalls { calls: Vec::new(), nsteps: None };
    }
    // A reduce-scatter sends to ranks above, an all-gather to ranks below.
    let towards = if op.pattern == Pattern::PatUp { 1 } else { -1 };
    let distances = (0..i32::BITS - 1).map(|bit| 1 << bit).take_while(|distance| *distance < n_ranks);
    let calls = distances
        .flat_map(|distance| {
            let step = towards * distance;
            [(Send, around(rank, step, n_ranks), 0), (Recv, around(rank, -step, n_ranks), 0)]
        })
        .collect();
    let nsteps = rule.and_then(|rule| {
        let members = u64::try_from(n_ranks).ok()?;
        let all = u64::try_from(op.nbytes).ok()?;
        let messages = rule.messages(op.pattern, members, op.chunk_size, all.checked_div(members)?)?;
        Some(messages.into_iter().flat_map(|messages| [messages; 2]).collect())
    });
    PatCalls { calls, nsteps }
}

impl PatCalls {
    /// Forgets the steps if the library counted others for the last call; tells whether it did.
    pub(super) fn forget_unless(&mut self, last: u64) -> bool {
        let differs = self.nsteps.as_ref().is_some_and(|nsteps| nsteps.last() != Some(&last));
        self.nsteps.take_if(|_| differs);
        differs
    }
}

fn around(rank: i32, distance: i32, n_ranks: i32) -> i32 {
    rank.wrapping_add(distance).rem_euclid(n_ranks.max(1))
}

#[cfg(test)]
mod tests {
    use super::{Call, PatCalls, calls};
    use crate::{
        decode::{ChannelGraphs, CommunicatorId, ProxyOp},
        model::plan::peers::tests::{graphs, op},
    };
    use nccl_library::nccl::{
        Direction::{Recv, Send},
        NcclVersion, PatRule, Pattern,
    };

    fn comm(rank: i32, n_ranks: i32) -> CommunicatorId {
        CommunicatorId { pointer: 0x1000, hash: Some(7), rank, n_ranks, launched: None }
    }

    fn rule(minor: u32) -> Option<PatRule> {
        PatRule::of(NcclVersion { major: 2, minor, patch: 0 })
    }

    /// Makes an op of whole chunks of 512 bytes, so that each part is a message.
    fn pat(pattern: Pattern, n_ranks: i64) -> ProxyOp {
        ProxyOp { nbytes: 512 * n_ranks, ..op(pattern, 0) }
    }

    fn nodes(n_nodes: i32) -> ChannelGraphs {
        ChannelGraphs { n_nodes: Some(n_nodes), ..graphs() }
    }

    /// Compares with the calls of `SaveProxy` in the official libraries (tests/patterns compares all sizes
    /// with them).
    #[test]
    fn each_distance_has_messages_of_its_own() {
        let up: [Call; 6] =
            [(Send, 3, 0), (Recv, 1, 0), (Send, 4, 0), (Recv, 0, 0), (Send, 1, 0), (Recv, 3, 0)];
        let nsteps = Some(vec![2, 2, 1, 1, 1, 1]);
        let found = calls(&pat(Pattern::PatUp, 5), &nodes(5), &comm(2, 5), rule(27));
        assert_eq!(found, PatCalls { calls: up.to_vec(), nsteps: nsteps.clone() });
        let down: Vec<Call> =
            up.iter().map(|(direction, peer, index)| (*direction, (9 - peer) % 5, *index)).collect();
        let found = calls(&pat(Pattern::PatDown, 5), &nodes(5), &comm(2, 5), rule(32));
        assert_eq!(found, PatCalls { calls: down, nsteps });
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let op = pat(Pattern::PatDown, 4);
        let later = calls(&op, &nodes(4), &comm(0, 4), rule(33));
        assert_eq!((later.calls.len(), later.nsteps), (4, None));
        let before = calls(&op, &nodes(2), &comm(0, 4), rule(30));
        assert_eq!((before.calls.len(), before.nsteps), (4, Some(vec![2, 2, 1, 1])), "nodes do not matter");
        let between_nodes = calls(&op, &nodes(2), &comm(0, 4), rule(31));
        assert_eq!(between_nodes, PatCalls { calls: Vec::new(), nsteps: None });
        let negative = ProxyOp { nbytes: -4, ..op.clone() };
        assert_eq!(calls(&negative, &nodes(4), &comm(0, 4), rule(27)).nsteps, None);
        for n_ranks in [i32::MIN, -1, 0, 1] {
            assert_eq!(calls(&op, &nodes(n_ranks), &comm(0, n_ranks), rule(27)).calls, []);
        }
        assert_eq!(calls(&op, &nodes(4), &comm(i32::MAX, i32::MAX), rule(27)).calls.len(), 62);
    }

    #[test]
    fn what_the_library_counted_itself_is_believed() {
        let mut found = calls(&pat(Pattern::PatUp, 4), &nodes(4), &comm(0, 4), rule(27));
        assert!(!found.forget_unless(1));
        assert_eq!(found.nsteps, Some(vec![2, 2, 1, 1]));
        assert!(found.forget_unless(2));
        assert_eq!((found.calls.len(), found.nsteps), (4, None));
    }
}
