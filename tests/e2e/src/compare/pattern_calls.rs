//! Has every op of every pattern the peers, steps, connections and stages that NCCL gave it?

use super::Findings;
use crate::tracer::{BytesKind, FlowPeer, FlowStep, ProxyFlow, RankTrace, Trace};
use crate::truth::pattern_calls::{PatternCall, PatternOp};

/// Counts calls of `SaveProxy`.
pub fn check(trace: &Trace, truth: &[PatternOp]) -> Findings {
    let mut findings = Findings::default();
    let mut ranks = trace.ranks.values();
    let (Some(rank), None) = (ranks.next(), ranks.next()) else {
        findings.complain(format!("{} ranks, and it was one", trace.ranks.len()));
        return findings;
    };
    // What a rank sends to itself is copied on the GPU: no flow, and no line.
    let flows: Vec<&PatternOp> = truth.iter().filter(|op| !is_copy(op)).collect();
    for op in &flows {
        let name = format!("{} {} of channel {}", op.pattern, op.op_count, op.channel);
        let is_it = |flow: &&ProxyFlow| {
            (flow.op_count, flow.channel, flow.posted) == (op.op_count, op.channel, op.posted)
                && flow.pattern == op.pattern
        };
        let found: Vec<&ProxyFlow> = rank.flows.iter().filter(is_it).collect();
        match found[..] {
            [flow] => check_op(&mut findings, &name, rank, flow, op),
            _ => findings.complain(format!("{name}: {} lines", found.len())),
        }
    }
    if rank.flows.len() != flows.len() {
        findings.complain(format!("{} ops recorded, there were {}", rank.flows.len(), flows.len()));
    }
    findings
}

fn is_copy(op: &PatternOp) -> bool {
    matches!(op.pattern.as_str(), "SEND" | "RECV") && op.calls.is_empty()
}

fn check_op(findings: &mut Findings, name: &str, rank: &RankTrace, flow: &ProxyFlow, op: &PatternOp) {
    let needed = op.calls.iter().any(|call| call.proxy);
    findings.compare(flow.needed == Some(needed), || format!("{name}: needed is {:?}", flow.needed));
    for (what, ours, theirs) in [("coll", &flow.coll, &op.coll), ("collApi", &flow.coll_api, &op.coll_api)] {
        // Before 2.20 the op does not say, and the call that would say was not made.
        if theirs.is_some() {
            findings.compare(ours == theirs, || format!("{name}: {what} is {ours:?}, not {theirs:?}"));
        }
    }
    findings.compare(flow.root == op.root, || format!("{name}: the root is {}", flow.root));
    if flow.peers.len() != op.calls.len() {
        let (ours, theirs) = (flow.peers.len(), op.calls.len());
        findings.complain(format!("{name}: {ours} peers recorded, {theirs} calls"));
    }
    for (peer, call) in flow.peers.iter().zip(&op.calls) {
        let expected = expected(call, op);
        findings.compare(*peer == expected, || format!("{name}: {peer:?}, not {expected:?}"));
        check_messages(findings, name, rank, flow, call, op);
    }
}

fn expected(call: &PatternCall, op: &PatternOp) -> FlowPeer {
    let pseudo = call.peer >= op.ranks;
    let transport = match (call.proxy, pseudo) {
        (false, _) => "P2P",
        (true, true) => "COL",
        (true, false) => "NET",
    };
    FlowPeer {
        direction: call.direction(),
        peer: call.peer,
        pseudo,
        nsteps: call.nsteps,
        transport: transport.to_owned(),
        proxy: call.proxy,
        conn_index: call.conn_index,
        proxy_rank: None,
        proxy_pid: None,
    }
}

/// Every message once, one after the other, in its stage. Nothing tells the bytes of these ops,
/// so they are upper bounds.
fn check_messages(
    findings: &mut Findings,
    name: &str,
    rank: &RankTrace,
    flow: &ProxyFlow,
    call: &PatternCall,
    op: &PatternOp,
) {
    let Some(nsteps) = call.nsteps else { return };
    let is_its = |step: &&FlowStep| {
        (step.seq, step.channel, step.direction, step.peer)
            == (flow.seq, flow.channel, call.direction(), call.peer)
    };
    let steps: Vec<&FlowStep> = rank.steps.iter().filter(is_its).collect();
    let messages = nsteps.div_ceil(op.slice_steps);
    let (direction, peer) = (call.direction(), call.peer);
    findings.compare(steps.len() as u64 == messages, || {
        format!("{name} {direction} {peer}: {} messages, not {messages}", steps.len())
    });
    for (number, step) in (0..).zip(steps) {
        let at = number * op.slice_steps;
        let stage = match &call.stage {
            // Only the API call would tell an all-gather from a reduce-scatter, and there was none.
            Some(_) if op.pattern == "RING" && op.coll.is_none() => "ring",
            Some(stage) => stage,
            None => ring_stage(at, op),
        };
        let posted = op.posted && call.proxy;
        if (step.step, step.stage.as_str(), step.posted) != (at, stage, posted) {
            findings.complain(format!("{name}: {step:?}, not {stage} at {at}, posted {posted}"));
            return;
        }
        if step.bytes_kind == BytesKind::Exact && !matches!(op.pattern.as_str(), "SEND" | "RECV") {
            findings.complain(format!("{name}: exact bytes, and nothing tells them: {step:?}"));
        }
    }
}

/// A ring all-reduce first adds up, once around less one, and then hands on.
fn ring_stage(step: u64, op: &PatternOp) -> &'static str {
    let around = u64::try_from(op.ranks).unwrap_or(1) - 1;
    let ring_step = step / op.chunk_steps % (2 * around);
    if ring_step < around { "reduce-scatter" } else { "allgather" }
}
