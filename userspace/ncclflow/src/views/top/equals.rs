//! Ranks of a large communicator that do the same: they are one row.

use super::rates::{Compared, KindRates, RankRates};

/// Ranks of a communicator up to which each is a row of its own: as many as fit 24 lines, with what is below.
const FEW: usize = 14;
/// Largest difference that counts as none, as a part of the other value.
const SAME: f64 = 0.1;
/// The same in ops: ranks do not run in step with the readings.
const SAME_OPS: f64 = 2.0;
/// Seconds without a record after which a rank counts as silent.
pub(super) const SILENT_S: f64 = 5.0;

/// Parts the ranks of a communicator, given as indexes, into those that do the same: ops of the same kinds,
/// as many and as large over several refreshes. A rank that is waited for is alone.
pub(super) fn parts(ranks: &[RankRates], members: Vec<usize>) -> Vec<Vec<usize>> {
    if members.len() <= FEW {
        return members.into_iter().map(|at| vec![at]).collect();
    }
    let known = members.into_iter().filter_map(|at| Some((at, ranks.get(at)?)));
    let (marked, mut rest): (Vec<_>, Vec<_>) = known.partition(|(_, rank)| rank.lag.is_some());
    let mut parts: Vec<Vec<usize>> = marked.into_iter().map(|(at, _)| vec![at]).collect();
    rest.sort_by(|(_, a), (_, b)| a.compared.ops().total_cmp(&b.compared.ops()));
    // One in the middle is like most others.
    while let Some(&(_, middle)) = rest.get(rest.len() / 2) {
        let (same, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(_, rank)| is_like(rank, middle));
        let mut same: Vec<usize> = same.into_iter().map(|(at, _)| at).collect();
        same.sort_unstable();
        parts.push(same);
        rest = others;
    }
    parts
}

/// Tells whether a rank does what another does.
fn is_like(rank: &RankRates, other: &RankRates) -> bool {
    // Where an iteration is long, all are silent in its middle.
    let is_silent = |rank: &RankRates| rank.idle_s > rank.compared.seconds.max(SILENT_S);
    let (compared, like) = (&rank.compared, &other.compared);
    let kinds = like.kinds.iter().chain(&compared.kinds);
    is_silent(rank) == is_silent(other)
        && kinds.map(KindRates::label).all(|label| {
            let ([ops, bytes], [other_ops, other_bytes]) = (compared.sums(&label), like.sums(&label));
            let slack = if other_ops > 0.0 { SAME.max(SAME_OPS / other_ops) } else { SAME };
            (ops - other_ops).abs() <= (other_ops * SAME).max(SAME_OPS)
                && (other_ops == 0.0 || (bytes - other_bytes).abs() <= other_bytes * slack)
        })
}

impl Compared {
    fn ops(&self) -> f64 {
        self.kinds.iter().map(|kind| kind.ops_per_s * self.seconds).sum()
    }

    /// Returns ops of a kind, and their bytes.
    fn sums(&self, label: &str) -> [f64; 2] {
        let kinds = self.kinds.iter().filter(|kind| kind.label() == label);
        kinds.fold([0.0; 2], |[ops, bytes], kind| {
            [ops + (kind.ops_per_s * self.seconds).round(), bytes + kind.bytes_per_s * self.seconds]
        })
    }
}
