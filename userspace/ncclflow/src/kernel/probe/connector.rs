//! The proxy's part of a connector: which connection it is, and who serves it.

use super::{
    lookup::{Lack, field, place},
    plan_builder::{PlanBuilder, Slot},
};
use flow::wire::{ProxyOwnerSpans, Span};
use nccl_library::layouts::Layouts;

/// What is copied of an `ncclProxyConnector`.
pub(super) struct Copied {
    pub(super) connection: Span,
    /// Not zero where there is a proxy; 2.19 and later.
    pub(super) progress: Option<Span>,
    /// 2.18 and later.
    pub(super) owner: Option<ProxyOwnerSpans>,
}

/// Of the `ncclConnector` at `base + at`, in one copy: the fields lie together.
pub(super) fn proxy_connector(
    plan: &mut PlanBuilder,
    layouts: &Layouts,
    base: Slot,
    at: i64,
) -> Result<Copied, Lack> {
    let of = |path| -> Result<Option<(i64, u16)>, Lack> {
        let Some(field) = layouts.field("ncclConnector", path) else { return Ok(None) };
        let (offset, len) = place(&field)?;
        Ok(Some((at + offset, len)))
    };
    let (offset, len) = place(&field(layouts, "ncclConnector", "proxyConn.connection")?)?;
    let optional = [
        of("proxyConn.proxyProgress")?,
        of("proxyConn.sameProcess")?,
        of("proxyConn.tpRank")?,
        // In 2.16 and 2.17 it is the rank of the proxy too, but nothing says whether it is of this process.
        of("proxyConn.rank")?.filter(|_| layouts.field("ncclConnector", "proxyConn.sameProcess").is_some()),
    ];
    let mut places = vec![(at + offset, len)];
    places.extend(optional.iter().flatten());
    let mut spans = plan.copy_together(base, &places).into_iter();
    let connection = spans.next().ok_or(Lack::Field("ncclConnector", "proxyConn.connection"))?;
    let [progress, same_process, top_rank, rank] =
        optional.map(|place| if place.is_some() { spans.next() } else { None });
    let owner = same_process.zip(top_rank).map(|(same_process, top_rank)| ProxyOwnerSpans {
        same_process,
        top_rank,
        rank,
    });
    Ok(Copied { connection, progress, owner })
}
