//! Ops that a proxy does for another rank of its host: a send over a network adapter that is near to another
//! rank's GPU goes through that rank's process (PXN, src/transport/net.cc, sendSetup).

use super::{OpReport, RankReport};

/// An op in the list of a proxy, of another rank of the communicator.
#[derive(Clone, Debug, PartialEq)]
pub struct OpForOther {
    pub rank: u32,
    pub op: OpReport,
}

/// Gives ops that stand in the lists of other processes to their ranks, as far as these were read. `ranks` are
/// those of one host.
pub(super) fn give_back(ranks: &mut [RankReport]) {
    for at in 0..ranks.len() {
        let ops = std::mem::take(&mut ranks[at].ops_for_others);
        let (mut lost, is_halted) = (0, ranks[at].process_state.is_halted());
        for OpForOther { rank, op } in ops {
            let is_its = |other: &RankReport, like: &RankReport| {
                (other.rank, other.n_ranks, &other.comm_hash) == (rank, like.n_ranks, &like.comm_hash)
            };
            let owner = ranks.iter().position(|other| is_its(other, &ranks[at]));
            // What a process that does not run leaves undone is not its owner's.
            match owner.filter(|_| !is_halted) {
                Some(owner) => ranks[owner].proxy.ops.push(op),
                None => lost += 1,
            }
        }
        if lost > 0 {
            ranks[at].remarks.push(format!(
                "{lost} ops in flight are of other ranks (PXN), which were not read, or for which this process, which \
                 does not run, does nothing"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ProcessState,
        verdict::tests::made::{judge, op, rank, waiting},
    };
    use nccl_library::nccl::Direction;

    /// Rank 0's GPU gives nothing to send; its send stands in the list of rank 1's proxy.
    fn ranks() -> Vec<RankReport> {
        let mut ranks = vec![waiting(0), waiting(1), waiting(2), waiting(3)];
        let mut send = op(Direction::Send, 1, 4);
        (send.posted, send.gpu) = (8, Some(0));
        ranks[0].proxy.ops.retain(|op| op.direction == Direction::Recv);
        ranks[0].proxy.ops.iter_mut().for_each(|op| (op.received, op.transmitted) = (4, 4));
        ranks[1].ops_for_others.push(OpForOther { rank: 0, op: send });
        ranks
    }

    #[test]
    fn an_op_is_of_the_rank_whose_it_is() {
        let mut ranks = ranks();
        give_back(&mut ranks);
        assert_eq!(ranks.iter().map(|rank| rank.proxy.ops.len()).collect::<Vec<_>>(), [2; 4]);
        assert!(ranks.iter().all(|rank| rank.remarks.is_empty() && rank.ops_for_others.is_empty()));
        assert_eq!(judge(&ranks, &[]).culprits, [0]);
    }

    #[test]
    fn an_op_whose_rank_is_unknown_or_that_nobody_works_at_is_left_out() {
        let mut stopped = ranks();
        stopped[1].process_state = ProcessState::Stopped;
        let mut alone = vec![ranks().remove(1), rank(3, 5, Vec::new())];
        let mut other = ranks();
        other[0].comm_hash = "0x2".to_owned();
        for ranks in [&mut stopped, &mut alone, &mut other] {
            let before: usize = ranks.iter().map(|rank| rank.proxy.ops.len()).sum();
            give_back(ranks);
            assert_eq!(ranks.iter().map(|rank| rank.proxy.ops.len()).sum::<usize>(), before);
            assert!(ranks.iter().any(|rank| rank.remarks.iter().any(|remark| remark.starts_with("1 ops"))));
        }
    }
}
