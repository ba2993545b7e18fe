//! Does every message that one rank sends arrive at the other? Compared are, for each pair of ranks and each
//! op, the number of messages, and their sizes where both ends know them.

use std::collections::BTreeMap;

use super::Findings;
use super::ops::{self, Path, PathOp};
use crate::communicator::Member;
use crate::tracer::Trace;

/// Counts ops on a path from one rank to another. All ranks of a communicator must have been traced.
pub fn check(trace: &Trace) -> Findings {
    let mut findings = Findings::default();
    let ranks: BTreeMap<Member, BTreeMap<Path, Vec<PathOp<'_>>>> =
        trace.ranks.iter().map(|(member, rank)| (*member, ops::by_path(rank))).collect();
    for (member, paths) in &ranks {
        let n_ranks = trace.ranks[member].flows.first().map_or(0, |flow| flow.n_ranks);
        for (path, ours) in paths.iter().filter(|(path, _)| path.peer < n_ranks) {
            let peer = Member { comm_hash: member.comm_hash, rank: path.peer };
            let Some(theirs) = ranks.get(&peer) else {
                findings.complain(format!("{member} {path}: {peer} has no files"));
                continue;
            };
            let back = Path { direction: path.direction.opposite(), peer: member.rank, ..*path };
            let theirs = theirs.get(&back).map_or(&[][..], Vec::as_slice);
            check_path(&mut findings, member, path, ours, theirs);
        }
    }
    findings
}

fn check_path(
    findings: &mut Findings,
    member: &Member,
    path: &Path,
    ours: &[PathOp<'_>],
    theirs: &[PathOp<'_>],
) {
    let peer = path.peer;
    if ours.len() != theirs.len() {
        let (here, there) = (ours.len(), theirs.len());
        findings.complain(format!("{member} {path}: {here} ops here, {there} at the peer"));
    }
    for (our, their) in ours.iter().zip(theirs) {
        let name = ops::name(member, path, our.seq);
        // Sends and receives are counted by each rank for itself; they meet in their order.
        if !path.p2p && our.seq != their.seq {
            findings.complain(format!("{name}: meets seq {} of rank {peer}", their.seq));
            return;
        }
        findings.compare(our.messages() == their.messages(), || {
            format!("{name}: {} messages here, {} at rank {peer}", our.messages(), their.messages())
        });
        if let (Some(ours), Some(theirs)) = (our.exact_sizes(), their.exact_sizes())
            && ours.len() == theirs.len()
            && ours != theirs
        {
            findings.complain(format!("{name}: {}", ops::difference(&ours, &theirs)));
        }
    }
}
