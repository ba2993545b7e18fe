//! The proxy's part of a connector: its connection, and who serves it.

use super::plan_builder::{PlanBuilder, Slot};
use flow::wire::{ProxyOwnerSpans, Span};
use nccl_library::fields::connector;

/// Spans that are copied of an `ncclProxyConnector`.
pub(super) struct Copied {
    pub(super) connection: Span,
    /// Function that is not zero where there is a proxy; 2.19 and later.
    pub(super) progress: Option<Span>,
    /// 2.18 and later.
    pub(super) owner: Option<ProxyOwnerSpans>,
}

/// Copies the `ncclProxyConnector` of the `ncclConnector` at `base + at`, all at once: its fields lie
/// together.
pub(super) fn proxy_connector(plan: &mut PlanBuilder<'_>, base: Slot, at: i64) -> Copied {
    // In 2.16 and 2.17 nothing says whether the rank is one of this process.
    let has_owner = connector::PROXY_SAME_PROCESS.exists(plan.layouts);
    let optional = [
        Some(connector::PROXY_PROGRESS),
        Some(connector::PROXY_SAME_PROCESS),
        Some(connector::PROXY_TOP_RANK),
        has_owner.then_some(connector::PROXY_RANK),
    ];
    let ([connection], [progress, same_process, top_rank, rank]) =
        plan.copy_fields((base, at), [connector::PROXY_CONNECTION], optional);
    let owner = same_process.zip(top_rank);
    let owner = owner.map(|(same_process, top_rank)| ProxyOwnerSpans { same_process, top_rank, rank });
    Copied { connection, progress, owner }
}
