//! Is every op that NCCL's proxy ran in the files, and no other? Compared are, per rank and path and in
//! order, the number of messages, the function, and the size of every message where both sides know it.

use std::collections::HashMap;

use super::ops::{self, PathOp};
use super::{Findings, measured};
use crate::communicator::Member;
use crate::tracer::{RankTrace, Trace};
use crate::truth::plugin::{CallId, PluginTruth, ProxyOp, RankTruth};

/// Counts ops. Only what was posted is compared, NCCL tells its plugin of nothing else; nor of everything
/// that was (`RankTruth::sees`).
pub fn check(trace: &Trace, truth: &PluginTruth) -> Findings {
    let mut findings = Findings::default();
    for op in &truth.orphans {
        findings.complain(format!("the plugin's op {} of process call {:?} has no owner", op.id, op.call));
    }
    for (member, rank) in &truth.ranks {
        match trace.ranks.get(member) {
            Some(traced) => check_rank(&mut findings, member, traced, rank),
            None if rank.ops.is_empty() => {}
            None => findings.complain(format!("{member}: {} ops ran, no files", rank.ops.len())),
        }
    }
    for (member, traced) in &trace.ranks {
        if !truth.ranks.contains_key(member) && traced.steps.iter().any(|step| step.posted) {
            findings
                .complain(format!("{member}: files with posted ops, and the plugin knows of no such rank"));
        }
    }
    findings
}

fn check_rank(findings: &mut Findings, member: &Member, traced: &RankTrace, truth: &RankTruth) {
    let facts = Facts::new(traced, truth);
    let mut theirs = ops::run_by_path(truth);
    for (path, ours) in ops::by_path(traced) {
        let shown =
            |our: &PathOp<'_>| our.is_posted() && facts.function(our).is_none_or(|func| truth.sees(func));
        let ours: Vec<PathOp<'_>> = ours.into_iter().filter(shown).collect();
        let theirs = theirs.remove(&path).unwrap_or_default();
        let ours = if path.p2p && !truth.sees_every_p2p_op() { seen(&ours, &theirs, &facts) } else { ours };
        if ours.len() != theirs.len() {
            let (recorded, ran) = (ours.len(), theirs.len());
            findings.complain(format!("{member} {path}: {recorded} ops recorded, {ran} ran"));
        }
        for (our, their) in ours.iter().zip(theirs) {
            check_op(findings, &ops::name(member, &path, our.seq), our, their, &facts);
        }
    }
    for (path, ops) in theirs {
        findings.complain(format!("{member} {path}: no op recorded, {} ran", ops.len()));
    }
}

fn check_op(findings: &mut Findings, name: &str, our: &PathOp<'_>, their: &ProxyOp, facts: &Facts<'_>) {
    let messages = facts.messages(our, their);
    findings.compare(i64::try_from(our.messages()) == Ok(messages), || {
        format!("{name}: {} messages recorded, NCCL planned {messages}", our.messages())
    });
    if let (Some(our), Some(their)) = (facts.function(our), facts.their_function(their))
        && our != their
    {
        findings.complain(format!("{name}: recorded as {our}, it was {their}"));
    }
    measured::compare(findings, name, our, their);
    // An op that was cut off has told only part of its sizes.
    let (Some(ours), Some(_)) = (our.exact_sizes(), their.stop) else { return };
    let sum: u64 = ours.iter().sum();
    match (their.sizes(), their.bytes()) {
        (Some(theirs), _) if ours != theirs => {
            findings.complain(format!("{name}: {}", ops::difference(&ours, &theirs)));
        }
        (None, Some(bytes)) if sum != bytes => {
            findings.complain(format!("{name}: {sum} bytes recorded, {bytes} transferred"));
        }
        _ => {}
    }
}

/// NCCL 2.27 shows the first of the p2p ops that it runs as one. Takes those of ours that can be it: for each
/// op of the plugin, the next one with as many messages.
fn seen<'a>(ours: &[PathOp<'a>], theirs: &[&ProxyOp], facts: &Facts<'_>) -> Vec<PathOp<'a>> {
    let mut rest = ours.iter();
    let fits =
        |our: &&PathOp<'_>, their: &ProxyOp| i64::try_from(our.messages()) == Ok(facts.messages(our, their));
    theirs.iter().map_while(|their| rest.find(|our| fits(our, their)).cloned()).collect()
}

/// What stands beside the steps: in `proxy_flow`, and in the plugin's calls.
struct Facts<'a> {
    flows: HashMap<(u64, u32), (u32, Option<&'a str>)>,
    functions: HashMap<CallId, &'a str>,
}

impl<'a> Facts<'a> {
    fn new(traced: &'a RankTrace, truth: &'a RankTruth) -> Self {
        let colls = truth.colls.iter().map(|coll| (coll.call, coll.func.as_str()));
        Self {
            flows: traced
                .flows
                .iter()
                .map(|flow| ((flow.seq, flow.channel), (flow.slice_steps, flow.coll.as_deref())))
                .collect(),
            functions: colls.chain(truth.p2ps.iter().map(|p2p| (p2p.call, p2p.func.as_str()))).collect(),
        }
    }

    fn flow(&self, our: &PathOp<'_>) -> Option<&(u32, Option<&'a str>)> {
        self.flows.get(&(our.seq, our.steps.first()?.channel))
    }

    fn messages(&self, our: &PathOp<'_>, their: &ProxyOp) -> i64 {
        their.messages(self.flow(our).map_or(1, |(slice_steps, _)| *slice_steps))
    }

    fn function(&self, our: &PathOp<'_>) -> Option<&'a str> {
        self.flow(our)?.1
    }

    fn their_function(&self, their: &ProxyOp) -> Option<&'a str> {
        self.functions.get(&their.call?).copied()
    }
}
