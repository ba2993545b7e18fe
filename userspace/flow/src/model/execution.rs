//! An op with messages on their way, and its record when it ends.

use std::hash::{Hash, Hasher};

use super::{
    flow::FlowRecord,
    message::Measured,
    proxy_ranks::{CommunicatorRank, Owner, ProxyRanks},
    transfers::transfers,
};
use crate::{
    decode::{Connector, ProxyStepEvent},
    schema::{BytesKind, Outcome},
};

/// Key by which the proxy names an op on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepKey {
    /// Process that posted the op.
    pub(super) tgid: u32,
    /// Rank that executes the op, if that is another process's; `connection` is then an address there.
    pub(super) elsewhere: Option<CommunicatorRank>,
    pub(super) connection: u64,
    pub(super) op_count: u64,
}

/// Leaves `elsewhere` out: each step of each message is looked up, and keys that differ in `elsewhere` alone
/// are rare.
impl Hash for StepKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.tgid);
        state.write_u64(self.connection);
        state.write_u64(self.op_count);
    }
}

impl StepKey {
    /// Makes the key of a step, provided that the step's process posted the op itself.
    pub(super) fn of_event(event: &ProxyStepEvent) -> Self {
        let ProxyStepEvent { origin, connection, op_count, .. } = *event;
        Self { tgid: origin.tgid, elsewhere: None, connection, op_count }
    }

    /// Makes the key of a part of an op that the process posted with the final number `op_count`.
    pub(super) fn of_part(tgid: u32, hash: Option<u64>, op_count: u64, connector: &Connector) -> Self {
        let elsewhere = executing_rank(hash, connector);
        Self { tgid, elsewhere, connection: connector.connection, op_count }
    }

    /// Returns the key of the connection alone, without an op.
    pub(super) fn line(&self) -> Self {
        Self { op_count: 0, ..*self }
    }
}

/// Returns the rank whose proxy serves the connection, if that is another process's. `hash`: `commHash` of
/// the connection's communicator.
pub(super) fn executing_rank(hash: Option<u64>, connector: &Connector) -> Option<CommunicatorRank> {
    connector.elsewhere().map(|rank| CommunicatorRank { hash, rank })
}

/// An op whose messages are on their way.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) record: FlowRecord,
    /// Peers with a proxy whose messages have not all ended.
    pub(super) open_peers: usize,
    /// Messages of all peers.
    pub(super) messages: usize,
    pub(super) keys: Vec<StepKey>,
    pub(super) tgid: u32,
    /// Records of the process that were lost before the op began.
    pub(super) lost: u64,
    /// Ranks of other processes that execute parts of the op, with the losses of those processes then, as far
    /// as they were known.
    pub(super) elsewhere: Vec<(CommunicatorRank, Option<u64>)>,
}

impl Execution {
    /// Ends the op for the reason `outcome`, or with `None` because all of it was measured. `lost`: records
    /// of its process that were lost until now.
    pub(super) fn ended(self, lost: u64, outcome: Option<Outcome>, ranks: &ProxyRanks) -> FlowRecord {
        let mut record = self.record;
        record.incomplete |= self.lost != lost;
        let mut is_unknown = false;
        for (at, lost_before) in &self.elsewhere {
            let lost_now = ranks.lost(at);
            is_unknown |= match ranks.owner(at) {
                Owner::Process(_) => false,
                Owner::Unknown => lost_before.is_none(),
                Owner::Several => true,
            };
            record.incomplete |= lost_now.is_some_and(|lost| lost_before.unwrap_or(0) != lost);
        }
        for peer in &mut record.peers {
            let Some(at) = executing_rank(record.comm.hash, &peer.connector) else { continue };
            peer.proxy_pid = peer.proxy_pid.or_else(|| ranks.pid(&at));
            // A process that is not recorded shows no messages, and nothing is said of them.
            if outcome.is_some() && peer.measured.as_ref().is_some_and(Measured::is_unseen) {
                peer.measured = peer.measured.take().filter(|_| peer.proxy_pid.is_some());
            }
        }
        record.outcome = Some(match outcome {
            None => of_whole(&mut record),
            Some(_) if is_unknown => Outcome::ProxyNotKnown,
            Some(_) if record.incomplete => Outcome::RecordsLost,
            Some(outcome) => outcome,
        });
        record
    }
}

/// Returns the outcome of an op of which every message has come to its end. Keeps the layout of the messages,
/// for the op's rows.
fn of_whole(record: &mut FlowRecord) -> Outcome {
    let mut agrees = true;
    for index in 0..record.peers.len() {
        let Some(peer) = record.peers.get(index) else { continue };
        let Some(measured) = &peer.measured else { continue };
        let layout: Vec<_> = transfers(record, peer).collect();
        agrees &= layout.iter().zip(&measured.messages).all(|(planned, message)| match message.bytes {
            None => true,
            Some(bytes) if planned.bytes_kind == BytesKind::Exact => bytes == planned.bytes,
            Some(bytes) => bytes <= planned.bytes,
        });
        if let Some(measured) = record.peers.get_mut(index).and_then(|peer| peer.measured.as_mut()) {
            measured.layout = layout;
        }
    }
    if agrees { Outcome::AsPlanned } else { Outcome::OtherBytes }
}
