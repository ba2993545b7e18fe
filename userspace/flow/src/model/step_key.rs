//! What an op on a connection is called by the proxy that executes it.

use super::{
    flow::{FlowRecord, PeerFlow},
    proxy_ranks::CommunicatorRank,
};
use crate::decode::{ProxyOwner, ProxyStepEvent};

/// What an op on a connection is called by the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StepKey {
    /// The process that posted the op.
    pub(super) tgid: u32,
    /// The rank that executes it, if that is another process's; `connection` is an address there.
    pub(super) elsewhere: Option<CommunicatorRank>,
    pub(super) connection: u64,
    pub(super) op_count: u64,
}

impl StepKey {
    /// If the process posted the op itself.
    pub(super) fn of_event(event: &ProxyStepEvent) -> Self {
        let ProxyStepEvent { origin, connection, op_count, .. } = *event;
        Self { tgid: origin.tgid, elsewhere: None, connection, op_count }
    }

    pub(super) fn of_peer(tgid: u32, record: &FlowRecord, peer: &PeerFlow) -> Self {
        Self {
            tgid,
            elsewhere: executing_rank(record, peer),
            connection: peer.connection,
            op_count: record.op.op_count,
        }
    }

    /// The connection alone.
    pub(super) fn line(&self) -> Self {
        Self { op_count: 0, ..*self }
    }
}

/// The rank whose proxy executes the op's part with this peer, if that is another process's.
pub(super) fn executing_rank(record: &FlowRecord, peer: &PeerFlow) -> Option<CommunicatorRank> {
    let rank = peer.owner.and_then(ProxyOwner::elsewhere)?;
    Some(CommunicatorRank { hash: record.comm.hash, rank })
}
