//! What one op does with one peer on one channel, from every witness: the lines of `flow_steps` put together
//! again, the plugin's ops, the device's transfers.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use crate::communicator::Member;
use crate::direction::Direction;
use crate::tracer::{BytesKind, FlowStep, RankTrace, is_p2p};
use crate::truth::plugin::{CallId, ProxyOp, RankTruth};
use crate::truth::transfer_log::Transfer;

/// A path that ops of a rank take one after the other. Collectives and p2p calls have connections of their
/// own, so their order against each other is nobody's promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path {
    pub p2p: bool,
    pub channel: u32,
    pub direction: Direction,
    pub peer: i32,
}

impl fmt::Display for Path {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.p2p { "p2p" } else { "coll" };
        write!(formatter, "channel {} {} peer {} ({kind})", self.channel, self.direction, self.peer)
    }
}

/// An op on a path.
#[derive(Debug, Clone)]
pub struct PathOp<'a> {
    pub seq: u64,
    /// In the order of their steps.
    pub steps: Vec<&'a FlowStep>,
}

impl PathOp<'_> {
    pub fn messages(&self) -> u64 {
        self.steps.len() as u64
    }

    pub fn is_posted(&self) -> bool {
        self.steps.iter().all(|step| step.posted)
    }

    /// The size of each message, if all are known.
    pub fn exact_sizes(&self) -> Option<Vec<u64>> {
        self.steps.iter().map(|step| (step.bytes_kind == BytesKind::Exact).then_some(step.bytes)).collect()
    }
}

/// The ops of each path, by `seq`.
pub fn by_path(rank: &RankTrace) -> BTreeMap<Path, Vec<PathOp<'_>>> {
    let mut ops: BTreeMap<(Path, u64), Vec<&FlowStep>> = BTreeMap::new();
    for step in &rank.steps {
        let path = Path {
            p2p: is_p2p(&step.pattern),
            channel: step.channel,
            direction: step.direction,
            peer: step.peer,
        };
        ops.entry((path, step.seq)).or_default().push(step);
    }
    let mut paths: BTreeMap<Path, Vec<PathOp<'_>>> = BTreeMap::new();
    for ((path, seq), mut steps) in ops {
        steps.sort_by_key(|step| step.step);
        paths.entry(path).or_default().push(PathOp { seq, steps });
    }
    paths
}

/// The ops that NCCL's proxy ran, in its order.
pub fn run_by_path(truth: &RankTruth) -> BTreeMap<Path, Vec<&ProxyOp>> {
    let p2ps: HashSet<CallId> = truth.p2ps.iter().map(|p2p| p2p.call).collect();
    let mut paths: BTreeMap<Path, Vec<&ProxyOp>> = BTreeMap::new();
    for op in &truth.ops {
        let p2p = op.call.is_some_and(|call| p2ps.contains(&call));
        let path = Path { p2p, channel: op.channel, direction: op.direction, peer: op.peer };
        paths.entry(path).or_default().push(op);
    }
    paths
}

/// What the device moved, by launch and operation. Its kernels also open connections that an op leaves alone,
/// as the root of a broadcast does with its predecessor: nothing moved there.
pub fn moved_by_path(transfers: &[Transfer]) -> BTreeMap<Path, Vec<&Transfer>> {
    let mut paths: BTreeMap<Path, Vec<&Transfer>> = BTreeMap::new();
    for transfer in transfers.iter().filter(|transfer| transfer.messages > 0) {
        let (p2p, channel) = (transfer.is_p2p(), transfer.channel);
        let path = Path { p2p, channel, direction: transfer.direction, peer: transfer.peer };
        paths.entry(path).or_default().push(transfer);
    }
    paths
}

/// For messages about one op.
pub fn name(member: &Member, path: &Path, seq: u64) -> String {
    format!("{member} seq {seq} {path}")
}

/// Where two lists of numbers part, for messages.
pub fn difference(ours: &[u64], theirs: &[u64]) -> String {
    let at = ours.iter().zip(theirs).position(|(a, b)| a != b).unwrap_or(ours.len().min(theirs.len()));
    let show = |list: &[u64]| list.get(at).map_or_else(|| "nothing".to_owned(), u64::to_string);
    format!(
        "message {at}: {} against {} ({} and {} messages)",
        show(ours),
        show(theirs),
        ours.len(),
        theirs.len()
    )
}
