//! Are PAT's messages by ncclflow's rule those that the library counts?

use super::Findings;
use crate::truth::pat_counts::PatCount;

/// Counts ops. `messages`: by distance, of an op between so many members with so many bytes each.
/// `between_nodes`: the members are nodes, and the peers lie in a table that the truth does not have.
pub fn check(
    truth: &[PatCount],
    between_nodes: bool,
    messages: impl Fn(&PatCount, u64, u64) -> Option<Vec<u64>>,
) -> Findings {
    let mut findings = Findings::default();
    for op in truth {
        let members = if between_nodes { op.ranks / op.local_ranks } else { op.ranks };
        let ours = messages(op, members, op.nbytes / op.ranks).unwrap_or_default();
        let calls = ours.iter().zip((0..).map(|bit| 1u64 << bit)).flat_map(|(messages, distance)| {
            let (above, below) =
                ((op.rank + distance) % op.ranks, (op.rank + op.ranks - distance) % op.ranks);
            let (to, from) = if op.pattern == "PatUp" { (above, below) } else { (below, above) };
            [(true, to, *messages), (false, from, *messages)]
        });
        let peers_are_known = members == op.ranks;
        let known =
            |(sends, peer, messages): (bool, u64, u64)| (sends, peers_are_known.then_some(peer), messages);
        let ours: Vec<_> = calls.map(known).collect();
        let theirs: Vec<_> = op.calls.iter().copied().map(known).collect();
        findings.compare(ours == theirs, || format!("{ours:?}, and the library counts {op:?}"));
    }
    findings
}
