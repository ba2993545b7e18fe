//! Whose proxy thread serves a connection: this process's, or, where NCCL sends through another GPU of the
//! node (PXN), another rank's.

use super::{DecodeError, RecordView};
use crate::wire::ProxyOwnerSpans;

/// By what number a connector names the rank whose proxy serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyRank {
    /// Its rank in this communicator (`ncclProxyConnector.rank`, 2.23 and later).
    Rank(i32),
    /// Its rank in the communicator whose resources this one shares (`tpRank`, 2.18 to 2.22): in this one,
    /// but after a split with `splitShare`.
    TopRank(i32),
}

/// Who serves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyOwner {
    /// It is a rank of this process, and `ncclProxyConnection` an address in it.
    pub same_process: bool,
    pub rank: ProxyRank,
}

impl ProxyOwner {
    /// Who serves it, if that is another process (PXN).
    pub fn elsewhere(self) -> Option<ProxyRank> {
        (!self.same_process).then_some(self.rank)
    }
}

pub(super) fn proxy_owner(
    spans: &ProxyOwnerSpans,
    record: &RecordView<'_>,
) -> Result<ProxyOwner, DecodeError> {
    Ok(ProxyOwner {
        same_process: record.int(&spans.same_process)? != 0,
        rank: match &spans.rank {
            Some(rank) => ProxyRank::Rank(record.int(rank)?),
            None => ProxyRank::TopRank(record.int(&spans.top_rank)?),
        },
    })
}
