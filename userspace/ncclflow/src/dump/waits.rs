//! Who waits for whom: from the steps of the ops in flight on one rank to the ranks that it waits for.
//!
//! The meaning of the steps is that of `sendProxyProgress` and `recvProxyProgress` (src/transport/net.cc). A sender offers
//! slots to its GPU (`posted`), gives filled ones to the network (`transmitted`) and gets them back (`done`); a receiver
//! gives slots to the network (`posted`), gets them filled (`received`), offers them to its GPU (`transmitted`) and gets
//! them back (`done`). In between the GPU's kernel takes from the receivers of a channel what it needs to fill the
//! senders' slots; what it needs is known from the op's pattern.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    pipelines::ChannelOp,
    report::{ChannelReport, ConnectionReport, OpDirection, OpReport, RankReport},
};

/// What one rank waits for, as far as its ops in flight tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    /// Ranks, and why: one phrase each, without a subject.
    pub(super) peers: BTreeMap<u32, String>,
    /// Its own side does not go on. Why.
    pub(super) own: Option<String>,
    /// [`Self::own`] is of an op that the GPU has not begun, while other ops of the rank wait for peers: its kernel may
    /// stand behind theirs.
    pub(super) own_may_be_queued: bool,
    /// Some op's peer is not known.
    pub(super) unknown_peer: bool,
    /// Those of [`Self::peers`] from or to which an op should be in flight that is not, and which way it goes.
    pub(super) broken: BTreeMap<u32, OpDirection>,
}

/// From the oldest unfinished ops of a rank, and the pipelines of which it has lost the receive.
pub(super) fn of_rank(rank: &RankReport, dropped_receives: &BTreeSet<ChannelOp>) -> Waits {
    let mut all = Waits { own_may_be_queued: true, ..Waits::default() };
    for (channel, ops) in oldest(&rank.proxy.ops) {
        let topology = Topology {
            channel: rank.channels.iter().find(|known| known.channel == channel),
            connections: &rank.connections,
            dropped_receives,
        };
        let mut waits = Waits::default();
        of_op(&ops, topology, &mut waits);
        if let Some(own) = waits.own {
            let begun = ops.iter().any(|op| gpu_has_begun(op));
            if all.own.is_none() || (begun && all.own_may_be_queued) {
                all.own = Some(own);
                all.own_may_be_queued = !begun;
            }
        }
        for (peer, why) in waits.peers {
            all.peers.entry(peer).or_insert(why);
        }
        all.unknown_peer |= waits.unknown_peer;
        all.broken.extend(waits.broken);
    }
    all.own_may_be_queued &= all.own.is_some() && !all.peers.is_empty();
    all
}

/// The oldest collective, by channel, and on each channel the oldest point-to-point batch. Collectives are numbered in the
/// order in which the rank's kernels run: a later one that stands still says nothing. Batches are numbered by channel.
fn oldest(ops: &[OpReport]) -> Vec<(u32, Vec<&OpReport>)> {
    let unfinished = || ops.iter().filter(|op| op.done < op.nsteps);
    let first_collective = unfinished().filter(|op| !op.p2p).map(|op| op.op_count).min();
    let mut first_batch: BTreeMap<u32, u64> = BTreeMap::new();
    for op in unfinished().filter(|op| op.p2p) {
        let first = first_batch.entry(op.channel).or_insert(op.op_count);
        *first = op.op_count.min(*first);
    }
    let mut oldest: BTreeMap<(bool, u32), Vec<&OpReport>> = BTreeMap::new();
    for op in unfinished() {
        let first = if op.p2p { first_batch.get(&op.channel).copied() } else { first_collective };
        if first == Some(op.op_count) {
            oldest.entry((op.p2p, op.channel)).or_default().push(op);
        }
    }
    oldest.into_iter().map(|((_, channel), ops)| (channel, ops)).collect()
}

/// Whether the GPU is known to have filled or emptied a slot.
pub(super) fn gpu_has_begun(op: &OpReport) -> bool {
    match op.direction {
        OpDirection::Send => produced(op) > 0,
        OpDirection::Recv => op.done > 0 || op.gpu.is_some_and(|gpu| gpu > 0),
    }
}

/// Whether the GPU is known to be in the collective `count`, the oldest in flight: it filled or emptied a slot of it, or a part
/// of it is over, as a later one has begun on the same channel. A connection's ops run one after the other.
pub(super) fn in_collective(ops: &[OpReport], count: u64) -> bool {
    let unfinished = || ops.iter().filter(|op| !op.p2p && op.done < op.nsteps);
    unfinished().filter(|op| op.op_count == count).any(|op| {
        gpu_has_begun(op)
            || unfinished().any(|later| later.begun && later.op_count > count && later.channel == op.channel)
    })
}

/// Whether the GPU is known to be in a batch of sends and receives: it has begun one that is not over, or a part of the oldest
/// batch of a channel is over already, so that another part stands behind later batches of that channel.
pub(super) fn in_point_to_point(ops: &[OpReport]) -> bool {
    let unfinished = || ops.iter().filter(|op| op.p2p && op.done < op.nsteps);
    let part_is_over = |op: &OpReport| {
        let same_channel = || unfinished().filter(|other| other.channel == op.channel);
        let of = |direction| {
            same_channel().filter(move |other| other.direction == direction).map(|other| other.op_count).min()
        };
        matches!((of(OpDirection::Send), of(OpDirection::Recv)), (Some(send), Some(receive)) if send != receive)
    };
    unfinished().any(|op| gpu_has_begun(op) || part_is_over(op))
}

/// Who a rank is connected with on one channel.
#[derive(Clone, Copy)]
struct Topology<'a> {
    channel: Option<&'a ChannelReport>,
    /// Those over which data go through the proxy.
    connections: &'a [ConnectionReport],
    dropped_receives: &'a BTreeSet<ChannelOp>,
}

impl Topology<'_> {
    /// The peers of which the GPU needs data for `send`, by its pattern; none where that cannot be told.
    fn sources(&self, send: &OpReport) -> Vec<u32> {
        let (Some(channel), Some(to)) = (self.channel, send.peer) else { return Vec::new() };
        let up = u32::try_from(channel.tree_up).ok();
        let sources = match send.pattern.as_deref() {
            Some("RING" | "RING_TWICE") => vec![channel.ring_prev],
            _ if self.dropped_receives.contains(&(send.channel, send.op_count)) => vec![channel.ring_prev],
            Some("TREE_UP_DOWN") if up == Some(to) || up.is_none() => channel.tree_down.clone(),
            Some("TREE_UP_DOWN") => vec![channel.tree_up],
            _ => Vec::new(),
        };
        sources.into_iter().filter_map(|rank| u32::try_from(rank).ok()).collect()
    }

    /// The peers to which the GPU sends on what `receive` brings; none where that cannot be told.
    fn sinks(&self, receive: &OpReport) -> Vec<u32> {
        let (Some(channel), Some(from)) = (self.channel, receive.peer) else { return Vec::new() };
        let up = u32::try_from(channel.tree_up).ok();
        let sinks = match receive.pattern.as_deref() {
            Some("RING" | "RING_TWICE") => vec![channel.ring_next],
            Some("TREE_UP_DOWN") if up == Some(from) || up.is_none() => channel.tree_down.clone(),
            Some("TREE_UP_DOWN") => vec![channel.tree_up],
            _ => Vec::new(),
        };
        sinks.into_iter().filter_map(|rank| u32::try_from(rank).ok()).collect()
    }

    fn over_network(&self, op: &OpReport, direction: OpDirection, peer: u32) -> bool {
        self.connections.iter().any(|connection| {
            (connection.channel, connection.direction, connection.peer) == (op.channel, direction, peer)
        })
    }
}

fn of_op(ops: &[&OpReport], topology: Topology<'_>, waits: &mut Waits) {
    let sends = || ops.iter().filter(|op| op.direction == OpDirection::Send);
    let receives: Vec<&OpReport> =
        ops.iter().filter(|op| op.direction == OpDirection::Recv).copied().collect();
    let mut feeds_a_send = vec![false; receives.len()];
    for send in sends() {
        let inputs: Vec<usize> =
            (0..receives.len()).filter(|index| is_input(send, receives[*index], topology.channel)).collect();
        for index in &inputs {
            feeds_a_send[*index] = true;
        }
        let inputs: Vec<&OpReport> = inputs.into_iter().map(|index| receives[index]).collect();
        of_send(send, &inputs, topology, waits);
    }
    for (receive, feeds) in receives.iter().zip(feeds_a_send) {
        // One that feeds a sender was looked at with it, unless nothing has to be sent any more.
        if !feeds {
            let is_in_flight = |peer: &u32| sends().any(|send| send.peer == Some(*peer));
            let sinks = topology.sinks(receive);
            let lost = sinks.into_iter().filter(|sink| {
                !is_in_flight(sink) && topology.over_network(receive, OpDirection::Send, *sink)
            });
            of_receive(receive, &lost.collect::<Vec<u32>>(), waits);
        }
    }
}

/// Whether the GPU needs what `receive` brings to fill the slots of `send`.
fn is_input(send: &OpReport, receive: &OpReport, topology: Option<&ChannelReport>) -> bool {
    if produced(send) >= send.nsteps {
        return false;
    }
    let pattern = send.pattern.as_deref().unwrap_or_default();
    let (Some(topology), Some(to), Some(from)) = (topology, send.peer, receive.peer) else {
        return !send.p2p;
    };
    let is = |rank: i32, peer: u32| u32::try_from(rank) == Ok(peer);
    match pattern {
        "SEND" | "RECV" => false,
        "TREE_UP" | "TREE_DOWN" | "TREE_UP_DOWN" => {
            if is(topology.tree_up, to) || topology.tree_up < 0 {
                topology.tree_down.iter().any(|down| is(*down, from))
            } else {
                is(topology.tree_up, from)
            }
        }
        _ => true,
    }
}

/// Slots that the GPU has filled, at least.
fn produced(send: &OpReport) -> u64 {
    send.gpu.map_or(send.transmitted, |gpu| gpu.clamp(send.transmitted, send.posted.max(send.transmitted)))
}

/// Steps that must have come in before the next one can go out.
fn needed(send: &OpReport) -> u64 {
    let produced = produced(send);
    match send.pattern.as_deref() {
        // A rank of a ring begins with data of its own and then passes on what came in one chunk before.
        Some("RING" | "RING_TWICE") if produced < send.chunk_steps => 0,
        Some("RING" | "RING_TWICE") => produced + send.slice_steps - send.chunk_steps.min(produced),
        _ => produced + send.slice_steps,
    }
}

fn of_send(send: &OpReport, inputs: &[&OpReport], topology: Topology<'_>, waits: &mut Waits) {
    let steps = |count: u64| if count == 1 { "1 step".to_owned() } else { format!("{count} steps") };
    let label = label(send);
    if !send.begun {
        waits.own = Some(format!("its proxy thread has not begun {label}"));
        return;
    }
    let produced = produced(send);
    if produced > send.transmitted {
        let why = format!(
            "{label}: the GPU filled {}, which the network does not take",
            steps(produced - send.transmitted)
        );
        waits.on(send.peer, why);
        return;
    }
    if produced < send.nsteps && send.posted > produced {
        // There is room, so the GPU waits for its input, or does not go on by itself.
        let missing: Vec<_> =
            inputs.iter().filter(|receive| receive.transmitted < needed(send).min(receive.nsteps)).collect();
        for receive in &missing {
            of_missing_input(receive, waits);
        }
        // The first send of a ring needs no input; but its op's receive is posted with it, and cannot be over before it.
        let over_network = |source: &u32| topology.over_network(send, OpDirection::Recv, *source);
        let unseen = topology.sources(send).into_iter().filter(|source| {
            (needed(send) > 0 || over_network(source)) && inputs.iter().all(|op| op.peer != Some(*source))
        });
        let unseen: Vec<u32> = unseen.collect();
        for source in &unseen {
            // The GPU takes what comes in before it sends it on, so that a receive cannot be over before its send. From
            // 2.26 on NCCL takes an op whose network failed out of the list (src/proxy.cc, progressOps).
            let why = if over_network(source) {
                waits.broken.insert(*source, OpDirection::Recv);
                "the receive that feeds it is no longer in flight: inferred that its connection broke"
            } else {
                "what feeds it comes over NVLink or shared memory, which only the GPU sees"
            };
            waits.on(Some(*source), format!("{label}: {why}"));
        }
        if missing.is_empty() && unseen.is_empty() {
            let is_pipeline = send.pattern.as_deref().is_some_and(|pattern| pattern.starts_with("PIPELINE"));
            let input = match (inputs.is_empty(), is_pipeline) {
                (false, _) => "has its input",
                (true, false) => "needs no input",
                (true, true) => "has no receive in flight, as the first rank has none,",
            };
            waits.own = Some(format!(
                "{label}: its GPU {input} and has room for {}, and does not go on ({} of {} filled)",
                steps(send.posted - produced),
                produced,
                send.nsteps,
            ));
        }
        return;
    }
    if send.transmitted > send.done {
        let left = steps(send.transmitted - send.done);
        waits.on(send.peer, format!("{label}: {left} given to the network, and not taken"));
    } else if send.done < send.nsteps {
        waits.own = Some(format!(
            "{label}: its proxy thread offers no more slots ({} of {})",
            send.done, send.nsteps
        ));
    }
}

fn of_missing_input(receive: &OpReport, waits: &mut Waits) {
    if receive.begun && receive.received > receive.transmitted {
        let label = label(receive);
        waits.own = Some(format!("{label}: data came in and is not flushed to the GPU"));
    } else {
        wait_for_data(receive, waits);
    }
}

/// `not_sent_to`: peers to which its data go and no send is in flight.
fn of_receive(receive: &OpReport, not_sent_to: &[u32], waits: &mut Waits) {
    let label = label(receive);
    if !receive.begun {
        waits.own = Some(format!("its proxy thread has not begun {label}"));
        return;
    }
    let consumed = receive.gpu.map_or(receive.done, |gpu| gpu.clamp(receive.done, receive.transmitted));
    if receive.transmitted > consumed {
        let left = receive.transmitted - consumed;
        // The GPU takes a chunk and sends it on at once, and is at most its own first chunk ahead: a send of as many steps is not
        // over before the receive's last chunk is taken.
        let is_sending = consumed + receive.chunk_steps < receive.nsteps;
        if let (true, [first, ..]) = (is_sending, not_sent_to) {
            let why = format!(
                "{label}: its GPU has {left} steps to send on, and the send is no longer in flight: inferred that its connection broke"
            );
            waits.broken.insert(*first, OpDirection::Send);
            waits.on(Some(*first), why);
            return;
        }
        waits.own = Some(format!("{label}: its GPU does not take {left} steps that came in"));
    } else if receive.received > receive.transmitted {
        waits.own = Some(format!("{label}: data came in and is not flushed to the GPU"));
    } else if receive.posted > receive.received {
        wait_for_data(receive, waits);
    } else {
        waits.own = Some(format!(
            "{label}: its proxy thread posts no more receives ({} of {})",
            receive.posted, receive.nsteps
        ));
    }
}

fn wait_for_data(receive: &OpReport, waits: &mut Waits) {
    let why = format!("{}: posted {}, received {}", label(receive), receive.posted, receive.received);
    waits.on(receive.peer, why);
}

/// `RECV from 1, AllReduce 5, channel 0`.
pub(super) fn label(op: &OpReport) -> String {
    let (word, way) = match op.direction {
        OpDirection::Send => ("SEND", "to"),
        OpDirection::Recv => ("RECV", "from"),
    };
    let peer = op.peer.map_or_else(|| "?".to_owned(), |peer| peer.to_string());
    let coll = op.coll.as_deref().unwrap_or("op");
    format!("{word} {way} {peer} ({coll}, op {}, channel {})", op.op_count, op.channel)
}

impl Waits {
    fn on(&mut self, peer: Option<u32>, why: String) {
        match peer {
            Some(peer) => {
                self.peers.entry(peer).or_insert(why);
            }
            None => self.unknown_peer = true,
        }
    }
}
