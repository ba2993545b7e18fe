//! Graphs of a channel: this rank's neighbours.

use super::{PlanPart, PlanPartEvent, RecordView, Result, record};
use crate::wire::{ChannelSpans, Span};

/// This rank's place in a channel's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    pub prev: i32,
    pub next: i32,
    /// Position of this rank, counted along the ring.
    pub index: i32,
}

/// This rank's place in a channel's tree. -1: there is no such rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    pub up: i32,
    /// Children: `NCCL_MAX_TREE_ARITY` is 3 in every version from 2.16 to 2.32.
    pub down: [i32; 3],
}

/// A channel's place in the communicator's graphs. -1: there is no such rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelGraphs {
    pub ring: Ring,
    pub tree: Tree,
    pub collnet_chain_up: i32,
    pub collnet_direct_out: i32,
    pub nvls_out: i32,
    pub nvls_tree_up: i32,
    pub nvls_tree_down: [i32; 3],
    /// `nHeads` and `headRank` of `nvls`; `collnet_heads`: of `collnetDirect`.
    pub nvls_heads: (i32, i32),
    pub collnet_heads: (i32, i32),
    /// `ncclComm.buffSizes`, sizes of the communicator's buffers by protocol, bytes.
    pub buffer_sizes: Vec<u64>,
    /// Nodes of the communicator.
    pub n_nodes: Option<i32>,
}

pub(super) fn ring([prev, next, index]: &[Span; 3], record: &RecordView<'_>) -> Result<Ring> {
    Ok(Ring { prev: record.int(prev)?, next: record.int(next)?, index: record.int(index)? })
}

pub(super) fn tree(up: &Span, down: &Span, record: &RecordView<'_>) -> Result<Tree> {
    Ok(Tree { up: record.int(up)?, down: record.ints(down)? })
}

/// Decodes a record of a channel.
pub(super) fn channel(spans: &ChannelSpans, record: &RecordView<'_>) -> Result<PlanPartEvent> {
    let heads =
        |[count, rank]: &[Span; 2]| -> Result<(i32, i32)> { Ok((record.int(count)?, record.int(rank)?)) };
    let optional = |span: &Option<Span>| span.as_ref().map_or(Ok(-1), |span| record.int(span));
    let (buffer_sizes, _) = record.bytes(&spans.buffer_sizes)?.as_chunks();
    let graphs = ChannelGraphs {
        ring: ring(&spans.ring, record)?,
        tree: tree(&spans.tree_up, &spans.tree_down, record)?,
        collnet_chain_up: record.int(&spans.collnet_chain_up)?,
        collnet_direct_out: record.int(&spans.collnet_direct_out)?,
        nvls_out: optional(&spans.nvls_out)?,
        nvls_tree_up: optional(&spans.nvls_tree_up)?,
        nvls_tree_down: spans.nvls_tree_down.as_ref().map_or(Ok([-1; 3]), |span| record.ints(span))?,
        nvls_heads: spans.nvls_heads.as_ref().map_or(Ok((0, -1)), heads)?,
        collnet_heads: heads(&spans.collnet_heads)?,
        buffer_sizes: buffer_sizes.iter().map(|size| u32::from_le_bytes(*size).into()).collect(),
        n_nodes: spans.n_nodes.and_then(|span| record.int(&span).ok()),
    };
    let number = record::channel(record.unsigned(&spans.channel)?)?;
    Ok(PlanPartEvent { origin: record.origin(), part: PlanPart::Channel(number, graphs) })
}
