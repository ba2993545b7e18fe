//! Numbers by which events of several ranks are joined.

use flow::schema::{MessageRow, Op, RankKey};
use nccl_library::nccl::Direction;

/// Returns the number of an op. A collective has the same on all ranks and channels. Gives `None` if its
/// `seq` is counted from the beginning of a part, so that other ranks' need not be the same, or is that of the op
/// that is replayed.
pub(super) fn op_id(op: &Op) -> Option<u64> {
    if op.row.graph_launch.is_some() {
        return None;
    }
    id_of(op.rank, op.row.seq, op.row.pattern.is_numbered_apart(), op.row.seq_local)
}

/// Returns the number of an API call's op, as [`op_id`] does.
pub(super) fn id_of(rank: RankKey, seq: u64, is_p2p: bool, seq_local: Option<bool>) -> Option<u64> {
    if seq_local == Some(true) {
        return None;
    }
    let RankKey { hash, instance, rank, pid } = rank;
    // Each rank numbers its own sends, receives, and launches without proxy ops. Without a hash (before 2.18)
    // nothing tells which ranks are of one communicator.
    let own = match hash {
        Some(_) if !is_p2p => [0, 0],
        _ => [u64::from(rank.cast_unsigned()) + 1, u64::from(pid)],
    };
    Some(mix(&[hash.unwrap_or(0), instance.into(), seq, own[0], own[1]]))
}

/// Returns the number of a message, which is the same at both of its ends. Gives `None` if it is not known
/// which message of the other end it is.
pub(super) fn flow_id(op: &Op, message: &MessageRow) -> Option<u64> {
    let (row, hash) = (&op.row, op.rank.hash?);
    if row.pattern.is_p2p() || row.seq_local == Some(true) || !(0..row.n_ranks).contains(&message.peer) {
        return None;
    }
    let (from, to) = match message.op {
        Direction::Send => (row.rank, message.peer),
        Direction::Recv => (message.peer, row.rank),
    };
    let ends = u64::from(from.cast_unsigned()) << 32 | u64::from(to.cast_unsigned());
    Some(mix(&[hash, op.rank.instance.into(), row.seq, row.channel.into(), ends, message.step]))
}

/// Mixes these numbers into one that is not 0. It is the same in each run: a trace of the same rows is the
/// same.
fn mix(numbers: &[u64]) -> u64 {
    // This is the finaliser of splitmix64 (Vigna, public domain): one to one, each bit depends on each.
    let scramble = |mut value: u64| {
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    };
    let mixed = numbers.iter().fold(numbers.len() as u64, |mixed, number| {
        scramble(mixed.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_add(scramble(*number)))
    });
    mixed.max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_collective_has_one_number_on_all_ranks_and_a_send_has_not() {
        let key = |rank, pid| RankKey { hash: Some(7), instance: 0, rank, pid };
        let of = |rank, pid, seq, is_p2p| id_of(key(rank, pid), seq, is_p2p, None).unwrap();
        assert_eq!(of(0, 10, 4, false), of(1, 11, 4, false));
        assert_ne!(of(0, 10, 4, false), of(0, 10, 6, false));
        assert_ne!(of(0, 10, 5, true), of(1, 11, 5, true));
        assert_eq!(id_of(key(0, 10), 4, false, Some(true)), None);
        let no_hash = |pid| id_of(RankKey { hash: None, ..key(0, pid) }, 4, false, None);
        assert_ne!(no_hash(10), no_hash(11));
    }

    #[test]
    fn numbers_do_not_meet() {
        let mut seen = HashSet::new();
        for a in 0..100 {
            for b in 0..100 {
                assert!(seen.insert(mix(&[a, b])) && seen.insert(mix(&[a, b, 0])), "{a} {b}");
            }
        }
    }
}
