//! Do the messages carry what the device put into the slots? Compared are, per rank and path and in order,
//! the number of messages, their bytes together, and the size of each.

use super::Findings;
use super::ops::{self, PathOp};
use crate::communicator::Member;
use crate::tracer::{RankTrace, Trace};
use crate::truth::transfer_log::{Transfer, TransferLog};

/// Counts ops. Where the tracer has only an upper bound, the bytes must stay below it.
pub fn check(trace: &Trace, log: &TransferLog) -> Findings {
    let mut findings = Findings::default();
    for (member, transfers) in &log.ranks {
        match trace.ranks.get(member) {
            Some(rank) => check_rank(&mut findings, member, rank, transfers),
            None => findings.complain(format!("{member}: {} transfers, no files", transfers.len())),
        }
    }
    for member in trace.ranks.keys().filter(|member| !log.ranks.contains_key(member)) {
        findings.complain(format!("{member}: files, and no transfers"));
    }
    findings
}

fn check_rank(findings: &mut Findings, member: &Member, rank: &RankTrace, transfers: &[Transfer]) {
    let mut theirs = ops::moved_by_path(transfers);
    for (path, ours) in ops::by_path(rank) {
        let theirs = theirs.remove(&path).unwrap_or_default();
        if ours.len() != theirs.len() {
            let (recorded, ran) = (ours.len(), theirs.len());
            findings.complain(format!("{member} {path}: {recorded} ops recorded, {ran} ran"));
        }
        for (our, their) in ours.iter().zip(theirs) {
            check_op(findings, &ops::name(member, &path, our.seq), our, their);
        }
    }
    for (path, transfers) in theirs {
        findings.complain(format!("{member} {path}: no op recorded, {} ran", transfers.len()));
    }
}

fn check_op(findings: &mut Findings, name: &str, our: &PathOp<'_>, their: &Transfer) {
    findings.compare(our.messages() == their.messages, || {
        format!("{name}: {} messages recorded, {} moved", our.messages(), their.messages)
    });
    let bytes: u64 = our.steps.iter().map(|step| step.bytes).sum();
    let Some(ours) = our.exact_sizes() else {
        if bytes < their.wire_bytes {
            findings.complain(format!("{name}: room for {bytes} bytes, {} moved", their.wire_bytes));
        }
        return;
    };
    if let Some(theirs) = their.wire_sizes()
        && ours != theirs
    {
        findings.complain(format!("{name}: {}", ops::difference(&ours, &theirs)));
    } else if bytes != their.wire_bytes {
        findings.complain(format!("{name}: {bytes} bytes recorded, {} moved", their.wire_bytes));
    }
}
