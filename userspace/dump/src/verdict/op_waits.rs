//! Waits of the ops of one channel, by their steps.
//!
//! The meaning of the steps is that of `sendProxyProgress` and `recvProxyProgress` (src/transport/net.cc).
//!
//! - A sender offers slots to its GPU (`posted`), gives filled ones to the network (`transmitted`) and gets
//!   them back (`done`).
//! - A receiver gives slots to the network (`posted`), gets them filled (`received`), offers them to its GPU
//!   (`transmitted`) and gets them back (`done`).
//!
//! In between the GPU's kernel takes from the receivers of a channel the data that it needs to fill the
//! senders' slots. The op's pattern tells which data those are.

use super::{
    steps::{needed, produced},
    topology::{Topology, is_input},
    waits::Waits,
};
use crate::OpReport;
use nccl_library::nccl::Direction;

pub(super) fn of_ops(ops: &[&OpReport], topology: Topology<'_>, waits: &mut Waits) {
    let sends = || ops.iter().filter(|op| op.direction == Direction::Send);
    let receives: Vec<&OpReport> = ops.iter().filter(|op| op.direction == Direction::Recv).copied().collect();
    let mut feeds_a_send = vec![false; receives.len()];
    for send in sends() {
        let mut inputs = Vec::new();
        for (receive, feeds) in receives.iter().copied().zip(&mut feeds_a_send) {
            if is_input(send, receive, topology.channel) {
                *feeds = true;
                inputs.push(receive);
            }
        }
        of_send(send, &inputs, topology, waits);
    }
    for (receive, feeds) in receives.iter().zip(feeds_a_send) {
        // A receive that feeds a send was looked at with it, unless nothing has to be sent any more.
        if !feeds {
            let is_in_flight = |peer: &u32| sends().any(|send| send.peer == Some(*peer));
            let sinks = topology.beyond(receive).into_iter().filter(|sink| !is_in_flight(sink));
            let (lost, unseen): (Vec<u32>, Vec<u32>) =
                sinks.partition(|sink| topology.over_network(receive, Direction::Send, *sink));
            of_receive(receive, lost.first().copied(), &unseen, waits);
        }
    }
}

fn of_send(send: &OpReport, inputs: &[&OpReport], topology: Topology<'_>, waits: &mut Waits) {
    let steps = |count: u64| if count == 1 { "1 step".to_owned() } else { format!("{count} steps") };
    let label = send.label();
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
        // There is room, so the GPU waits for its input, or makes no progress by itself.
        let missing: Vec<_> =
            inputs.iter().filter(|receive| receive.transmitted < needed(send).min(receive.nsteps)).collect();
        for receive in &missing {
            wait_for_data(receive, waits);
        }
        // The first send of a ring needs no input; but its op's receive is posted with it, and cannot be over
        // before it.
        let over_network = |source: &u32| topology.over_network(send, Direction::Recv, *source);
        let unseen = topology.beyond(send).into_iter().filter(|source| {
            (needed(send) > 0 || over_network(source)) && inputs.iter().all(|op| op.peer != Some(*source))
        });
        let unseen: Vec<u32> = unseen.collect();
        for source in &unseen {
            // The GPU takes what comes in before it sends it on, so that a receive cannot be over before its
            // send. From 2.26 on NCCL takes an op whose network failed out of the list (src/proxy.cc,
            // progressOps).
            let why = if over_network(source) {
                waits.broken.insert(*source, Direction::Recv);
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
                (true, true) => "has no receive in flight (the first rank of a pipeline has none)",
            };
            waits.own = Some(format!(
                "{label}: its GPU {input} and has room for {}, and fills none ({} of {} filled)",
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

/// Adds the waits of a receive. `not_sent_to` is a peer to which its data go over the network, and no send is in
/// flight; to `unseen` they go over NVLink or shared memory.
fn of_receive(receive: &OpReport, not_sent_to: Option<u32>, unseen: &[u32], waits: &mut Waits) {
    let label = receive.label();
    if !receive.begun {
        waits.own = Some(format!("its proxy thread has not begun {label}"));
        return;
    }
    let consumed = receive.gpu.map_or(receive.done, |gpu| gpu.clamp(receive.done, receive.transmitted));
    if receive.transmitted > consumed {
        let left = receive.transmitted - consumed;
        // The GPU takes a chunk and sends it on at once, and is at most its own first chunk ahead: a send of
        // as many steps is not over before the receive's last chunk is taken.
        let is_sending = consumed + receive.chunk_steps < receive.nsteps;
        if let Some(peer) = not_sent_to.filter(|_| is_sending) {
            let why = format!(
                "{label}: its GPU has {left} steps to send on, and the send is no longer in flight: \
                 inferred that its connection broke"
            );
            waits.broken.insert(peer, Direction::Send);
            waits.on(Some(peer), why);
        } else if is_sending && consumed > 0 && !unseen.is_empty() {
            // Its kernel runs: it took a chunk.
            for sink in unseen {
                let why = format!(
                    "{label}: its GPU took {consumed} of {} steps, and sends them on over NVLink or shared memory, which \
                     only the GPU sees",
                    receive.transmitted
                );
                waits.on(Some(*sink), why);
            }
        } else {
            waits.own = Some(format!("{label}: its GPU does not take {left} steps that came in"));
        }
    } else if receive.received > receive.transmitted || receive.posted > receive.received {
        wait_for_data(receive, waits);
    } else {
        waits.own = Some(format!(
            "{label}: its proxy thread posts no more receives ({} of {})",
            receive.posted, receive.nsteps
        ));
    }
}

/// Adds the wait of a receive whose data have not come to the GPU.
fn wait_for_data(receive: &OpReport, waits: &mut Waits) {
    if receive.begun && receive.received > receive.transmitted {
        waits.own = Some(format!("{}: data came in and is not flushed to the GPU", receive.label()));
        return;
    }
    let why = format!("{}: posted {}, received {}", receive.label(), receive.posted, receive.received);
    waits.on(receive.peer, why);
}
