//! Are the rings and trees those that NCCL printed when it built them? Compared are `ringPrev` and `ringNext`
//! of every op, and the peers of the messages of ring, chain and tree patterns.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use crate::communicator::Member;
use crate::direction::Direction;
use crate::tracer::{ProxyFlow, RankTrace, Trace, is_p2p};
use crate::truth::debug_log::{DebugLog, LoggedCommunicator, Tree};

/// Counts lines of `proxy_flow` whose neighbours were compared, and sets of peers.
pub fn check(trace: &Trace, log: &DebugLog) -> Findings {
    let mut findings = Findings::default();
    for (member, rank) in &trace.ranks {
        let Some(flow) = rank.flows.first() else { continue };
        match log.member_or_alike(*member, flow.n_ranks) {
            Some(logged) => check_rank(&mut findings, member, rank, logged),
            None => findings.complain(format!("{member}: not in the log, or not to be told from others")),
        }
    }
    findings
}

fn check_rank(findings: &mut Findings, member: &Member, rank: &RankTrace, logged: &LoggedCommunicator) {
    let mut peers: BTreeMap<(u64, u32), Peers> = BTreeMap::new();
    for step in &rank.steps {
        peers.entry((step.seq, step.channel)).or_default().add(step.direction, step.peer);
    }
    for flow in &rank.flows {
        let name = format!("{member} seq {} channel {} {}", flow.seq, flow.channel, flow.pattern);
        let Some(ring) = logged.rings.get(&flow.channel) else {
            // Channels beyond the collectives' serve p2p calls, and have no ring.
            if !is_p2p(&flow.pattern) {
                findings.complain(format!("{name}: the log knows of no ring {}", flow.channel));
            }
            continue;
        };
        findings.compare((flow.ring_prev, flow.ring_next) == (ring.prev, ring.next), || {
            let (prev, next) = (flow.ring_prev, flow.ring_next);
            format!(
                "{name}: recorded between {prev} and {next}, built between {} and {}",
                ring.prev, ring.next
            )
        });
        let expected = match expected_peers(flow, ring.prev, ring.next, logged.trees.get(&flow.channel)) {
            Expected::Peers(expected) => expected,
            Expected::NotInLog => continue,
            Expected::Missing => {
                findings.complain(format!("{name}: the log knows of no tree {}", flow.channel));
                continue;
            }
        };
        let recorded = peers.get(&(flow.seq, flow.channel)).cloned().unwrap_or_default();
        // Of grouped broadcasts a rank may have nothing to pass on, or nothing to receive.
        let partial = flow.coll.as_deref() == Some("AllGatherV") && recorded.is_part_of(&expected);
        findings.compare(recorded == expected || partial, || {
            format!("{name}: recorded with peers {recorded:?}, built for {expected:?}")
        });
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Peers {
    send: BTreeSet<i32>,
    recv: BTreeSet<i32>,
}

impl Peers {
    fn add(&mut self, direction: Direction, peer: i32) {
        match direction {
            Direction::Send => self.send.insert(peer),
            Direction::Recv => self.recv.insert(peer),
        };
    }

    fn is_part_of(&self, all: &Self) -> bool {
        self.send.is_subset(&all.send) && self.recv.is_subset(&all.recv)
    }
}

enum Expected {
    Peers(Peers),
    /// A pattern whose peers the log does not tell.
    NotInLog,
    /// A tree that the log should have.
    Missing,
}

fn expected_peers(flow: &ProxyFlow, prev: i32, next: i32, tree: Option<&Tree>) -> Expected {
    let peers = |send: BTreeSet<i32>, recv: BTreeSet<i32>| Expected::Peers(Peers { send, recv });
    let one = |peer: i32| BTreeSet::from([peer]);
    let unless = |none: bool, peer: i32| if none { BTreeSet::new() } else { one(peer) };
    match flow.pattern.as_str() {
        "RING" | "RING_TWICE" => peers(one(next), one(prev)),
        // From the root around the ring: nobody sends to it, it receives nothing.
        "PIPELINE_FROM" => peers(unless(next == flow.root, next), unless(flow.rank == flow.root, prev)),
        "PIPELINE_TO" => peers(unless(flow.rank == flow.root, next), unless(prev == flow.root, prev)),
        "TREE_UP" | "TREE_DOWN" | "TREE_UP_DOWN" => {
            let Some(tree) = tree else { return Expected::Missing };
            let up: BTreeSet<i32> = tree.parent().into_iter().collect();
            let down: BTreeSet<i32> = tree.children().collect();
            match flow.pattern.as_str() {
                "TREE_UP" => peers(up, down),
                "TREE_DOWN" => peers(down, up),
                _ => peers(&up | &down, &up | &down),
            }
        }
        _ => Expected::NotInLog,
    }
}
