//! Do the files agree with each other? Every op on a channel stands once, its number says what it is, its
//! messages join it, and a collective is the same on every rank.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use crate::communicator::{CommHash, Member};
use crate::tracer::{FlowStep, ProxyFlow, RankTrace, Trace, is_p2p};

/// Counts lines of both files, and collectives that are compared between ranks.
pub fn check(trace: &Trace) -> Findings {
    let mut findings = Findings::default();
    for (member, rank) in &trace.ranks {
        check_rank(&mut findings, member, rank);
    }
    check_collectives(&mut findings, trace);
    findings
}

fn check_rank(findings: &mut Findings, member: &Member, rank: &RankTrace) {
    let mut flows: BTreeMap<(u64, u32), &ProxyFlow> = BTreeMap::new();
    let mut ops: BTreeMap<u64, &ProxyFlow> = BTreeMap::new();
    for flow in &rank.flows {
        let name = format!("{member} seq {} channel {}", flow.seq, flow.channel);
        findings.compare((flow.seq & 1 == 1) == is_p2p(&flow.pattern), || {
            format!(
                "{name}: the number of {} for {}",
                if flow.seq & 1 == 1 { "p2p" } else { "coll" },
                flow.pattern
            )
        });
        if flows.insert((flow.seq, flow.channel), flow).is_some() {
            findings.complain(format!("{name}: stands twice"));
        }
        let first = ops.entry(flow.seq).or_insert(flow);
        if what(first) != what(flow) {
            let (here, there) = (what(flow), what(first));
            findings.complain(format!("{name}: {here:?}, on channel {} {there:?}", first.channel));
        }
    }
    let mut messages = BTreeSet::new();
    for step in &rank.steps {
        let name = format!(
            "{member} seq {} channel {} {} step {}",
            step.seq, step.channel, step.direction, step.step
        );
        let flow = flows.get(&(step.seq, step.channel));
        findings.compare(flow.is_some(), || format!("{name}: of no op"));
        if let Some(flow) = flow {
            check_join(findings, &name, step, flow);
        }
        if !messages.insert((step.seq, step.channel, step.direction, step.peer, step.step)) {
            findings.complain(format!("{name}: stands twice for peer {}", step.peer));
        }
    }
}

/// What the channels of an op have in common.
fn what(flow: &ProxyFlow) -> (&str, Option<&str>, i32, Option<u64>) {
    (&flow.pattern, flow.coll.as_deref(), flow.root, flow.count)
}

fn check_join(findings: &mut Findings, name: &str, step: &FlowStep, flow: &ProxyFlow) {
    if step.op_count != flow.op_count {
        findings.complain(format!("{name}: opCount {}, its op has {}", step.op_count, flow.op_count));
    }
    if (&step.pattern, &step.protocol) != (&flow.pattern, &flow.protocol) {
        let (ours, theirs) = (format!("{} {}", step.pattern, step.protocol), (&flow.pattern, &flow.protocol));
        findings.complain(format!("{name}: {ours}, its op has {} {}", theirs.0, theirs.1));
    }
    if step.posted && !flow.posted {
        findings.complain(format!("{name}: posted, and its op is not"));
    }
    if step.slots != u64::from(flow.slice_steps.max(1)) || !step.step.is_multiple_of(step.slots.max(1)) {
        let (slots, slice_steps) = (step.slots, flow.slice_steps);
        findings.complain(format!("{name}: {slots} slots, a message takes {slice_steps} steps"));
    }
}

/// What all ranks must say of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Collective {
    coll: Option<String>,
    count: Option<u64>,
    root: i32,
    n_ranks: i32,
    channels: BTreeSet<u32>,
}

/// Of one rank, by `seq`.
type Collectives = BTreeMap<u64, Collective>;

/// Ranks need not have been traced for the same time: compared is what lies between the first and the last
/// collective that both have. Those two may have been caught with some of their channels only.
fn check_collectives(findings: &mut Findings, trace: &Trace) {
    let mut communicators: BTreeMap<CommHash, Vec<(i32, Collectives)>> = BTreeMap::new();
    for (member, rank) in &trace.ranks {
        communicators.entry(member.comm_hash).or_default().push((member.rank, collectives(rank)));
    }
    for (comm_hash, mut ranks) in communicators {
        ranks.retain(|(_, collectives)| !collectives.is_empty());
        let Some(((first, expected), others)) = ranks.split_first() else { continue };
        for (rank, collectives) in others {
            let begin = expected.keys().next().max(collectives.keys().next()).copied();
            let end = expected.keys().next_back().min(collectives.keys().next_back()).copied();
            let all: BTreeSet<u64> = expected.keys().chain(collectives.keys()).copied().collect();
            for seq in all.into_iter().filter(|seq| (begin..=end).contains(&Some(*seq))) {
                let edge = Some(seq) == begin || Some(seq) == end;
                let theirs = expected.get(&seq).map(|collective| collective.at(edge));
                let ours = collectives.get(&seq).map(|collective| collective.at(edge));
                findings.compare(theirs == ours, || {
                    format!(
                        "comm {comm_hash} seq {seq}: rank {first} has {theirs:?}, rank {rank} has {ours:?}"
                    )
                });
            }
        }
    }
}

impl Collective {
    /// At the edge of a recording channels can be missing.
    fn at(&self, edge: bool) -> Self {
        if edge { Self { channels: BTreeSet::new(), ..self.clone() } } else { self.clone() }
    }
}

fn collectives(rank: &RankTrace) -> Collectives {
    let mut collectives = Collectives::new();
    for flow in rank.flows.iter().filter(|flow| flow.seq & 1 == 0) {
        let collective = collectives.entry(flow.seq).or_insert_with(|| Collective {
            coll: flow.coll.clone(),
            count: flow.count,
            root: flow.root,
            n_ranks: flow.n_ranks,
            channels: BTreeSet::new(),
        });
        collective.channels.insert(flow.channel);
    }
    collectives
}
