//! The proxy's part of a connector: its connection, and who serves it.

use super::{
    error::PlanError,
    lookup::{place, place_of},
    plan_builder::{PlanBuilder, Slot},
};
use flow::wire::{ProxyOwnerSpans, Span};
use nccl_library::{
    fields::{FieldRef, connector},
    layouts::Layouts,
};

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
pub(super) fn proxy_connector(
    plan: &mut PlanBuilder,
    layouts: &Layouts,
    base: Slot,
    at: i64,
) -> Result<Copied, PlanError> {
    let of = |field: FieldRef| -> Result<Option<(i64, u16)>, PlanError> {
        let Some(field) = field.find(layouts) else { return Ok(None) };
        let (offset, len) = place(&field)?;
        Ok(Some((at + offset, len)))
    };
    let (offset, len) = place_of(layouts, connector::PROXY_CONNECTION)?;
    let same_process = of(connector::PROXY_SAME_PROCESS)?;
    // In 2.16 and 2.17 nothing says whether the rank is one of this process.
    let rank = of(connector::PROXY_RANK)?.filter(|_| same_process.is_some());
    let optional = [of(connector::PROXY_PROGRESS)?, same_process, of(connector::PROXY_TOP_RANK)?, rank];
    let mut places = vec![(at + offset, len)];
    places.extend(optional.iter().flatten());
    let mut spans = plan.copy_together(base, &places).into_iter();
    let connection = spans.next().ok_or(connector::PROXY_CONNECTION.missing())?;
    let [progress, same_process, top_rank, rank] =
        optional.map(|place| if place.is_some() { spans.next() } else { None });
    let owner = same_process.zip(top_rank).map(|(same_process, top_rank)| ProxyOwnerSpans {
        same_process,
        top_rank,
        rank,
    });
    Ok(Copied { connection, progress, owner })
}
