//! What an op on a connection is called by the proxy that executes it.

use std::hash::{Hash, Hasher};

use super::proxy_ranks::CommunicatorRank;
use crate::decode::{Connector, ProxyStepEvent};

/// What an op on a connection is called by the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepKey {
    /// The process that posted the op.
    pub(super) tgid: u32,
    /// The rank that executes it, if that is another process's; `connection` is an address there.
    pub(super) elsewhere: Option<CommunicatorRank>,
    pub(super) connection: u64,
    pub(super) op_count: u64,
}

/// Each step of each message is looked up by it. Keys that differ in `elsewhere` alone are rare.
impl Hash for StepKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.tgid);
        state.write_u64(self.connection);
        state.write_u64(self.op_count);
    }
}

impl StepKey {
    /// If the process posted the op itself.
    pub(super) fn of_event(event: &ProxyStepEvent) -> Self {
        let ProxyStepEvent { origin, connection, op_count, .. } = *event;
        Self { tgid: origin.tgid, elsewhere: None, connection, op_count }
    }

    /// Of a part of an op, with this final number, that the process posted.
    pub(super) fn of_part(tgid: u32, hash: Option<u64>, op_count: u64, connector: &Connector) -> Self {
        let elsewhere = executing_rank(hash, connector);
        Self { tgid, elsewhere, connection: connector.connection, op_count }
    }

    /// The connection alone.
    pub(super) fn line(&self) -> Self {
        Self { op_count: 0, ..*self }
    }
}

/// The rank whose proxy serves the connection, if that is another process's. `hash`: of its communicator.
pub(super) fn executing_rank(hash: Option<u64>, connector: &Connector) -> Option<CommunicatorRank> {
    connector.elsewhere().map(|rank| CommunicatorRank { hash, rank })
}
