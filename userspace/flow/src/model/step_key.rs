//! Key by which the executing proxy names an op on a connection.

use std::hash::{Hash, Hasher};

use super::proxy_ranks::CommunicatorRank;
use crate::decode::{Connector, ProxyStepEvent};

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
