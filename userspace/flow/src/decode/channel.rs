//! A channel: this rank's neighbours in its graphs, and connectors, each of which joins the rank with a peer.

use super::{DecodeError, Origin, PlanPart, PlanPartEvent, RecordView, Result, record};
use crate::wire::{ChannelSpans, ConnectorsSpans, ProxyOwnerSpans, ProxyPeerSpans, Span};
use nccl_library::nccl::{Direction, Transport};

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

/// A connector of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connector {
    pub direction: Direction,
    /// Rank of the peer; numbers from `nRanks` on are NCCL's pseudo-peers. Negative: the tree or chain ends
    /// here, and NCCL does nothing.
    pub peer: i32,
    pub connection_index: i32,
    /// Address of the `ncclProxyConnection`.
    pub connection: u64,
    /// The connection has a proxy, so the op is needed, and in the post pass really queued.
    pub has_proxy: bool,
    /// Owner of the proxy that serves the connection; `None` before 2.18, which does not tell it, and without
    /// a peer.
    pub owner: Option<ProxyOwner>,
    /// Transport of the connection: `NET`, `P2P`, `SHM`, `COL` …; empty where it could not be read.
    pub transport: Transport,
}

impl Connector {
    /// Makes a connector of which only the peer is known.
    pub fn unknown(direction: Direction, peer: i32, connection_index: i32) -> Self {
        let transport = Transport::default();
        Self { direction, peer, connection_index, connection: 0, has_proxy: false, owner: None, transport }
    }

    /// Returns the rank whose proxy serves the connection, if that is in another process (PXN).
    pub fn elsewhere(&self) -> Option<ProxyRank> {
        self.owner.filter(|owner| !owner.same_process).map(|owner| owner.rank)
    }
}

/// Owner of the proxy thread that serves a connection: this process, or, where NCCL sends through another GPU
/// of the node (PXN), another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyOwner {
    /// The owner is a rank of this process, and the `ncclProxyConnection` is an address in it.
    pub same_process: bool,
    pub rank: ProxyRank,
}

/// Number by which a connector names the rank whose proxy serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyRank {
    /// Rank in this communicator (`ncclProxyConnector.rank`, 2.23 and later).
    Rank(i32),
    /// Rank in the communicator whose resources this one shares (`tpRank`, 2.18 to 2.22): the rank in this
    /// one, except after a split with `splitShare`.
    TopRank(i32),
}

/// A call of `SaveProxy`: a peer of the op of the enclosing `ncclProxySaveOp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyPeerEvent {
    pub origin: Origin,
    pub op_pointer: u64,
    pub plan_pass: bool,
    /// FIFO steps to or from this peer; `None` where a walked plan does not tell (PAT).
    pub nsteps: Option<u64>,
    pub connector: Connector,
}

/// Decodes a record of `SaveProxy`.
pub(super) fn proxy_peer(spans: &ProxyPeerSpans, record: &RecordView<'_>) -> Result<ProxyPeerEvent> {
    let direction = match record.int(&spans.direction)? {
        0 => Direction::Recv,
        1 => Direction::Send,
        other => return Err(DecodeError::UnknownValue { what: "direction", value: other.into() }),
    };
    let nsteps = record.int(&spans.nsteps)?;
    let connection_index = record.int(&spans.connection_index)?;
    let mut connector = Connector::unknown(direction, record.int(&spans.peer)?, connection_index);
    // Without a peer NCCL does nothing, and there is no connection to read.
    if connector.peer >= 0 {
        connector.connection = record.unsigned(&spans.connection)?;
        connector.has_proxy = record.unsigned(&spans.proxy_progress)? != 0;
        connector.owner = spans.owner.as_ref().map(|spans| proxy_owner(spans, record)).transpose()?;
        connector.transport = Transport::from_bytes(record.bytes(&spans.transport)?);
    }
    Ok(ProxyPeerEvent {
        origin: record.origin(),
        op_pointer: record.unsigned(&spans.op_pointer)?,
        plan_pass: record.unsigned(&spans.just_inquire)? != 0,
        nsteps: Some(record::in_range("number of steps", nsteps.into())?),
        connector,
    })
}

fn proxy_owner(spans: &ProxyOwnerSpans, record: &RecordView<'_>) -> Result<ProxyOwner> {
    Ok(ProxyOwner {
        same_process: record.int(&spans.same_process)? != 0,
        rank: match &spans.rank {
            Some(rank) => ProxyRank::Rank(record.int(rank)?),
            None => ProxyRank::TopRank(record.int(&spans.top_rank)?),
        },
    })
}

/// Decodes a record of several connectors of a channel.
pub(super) fn connectors(spans: &ConnectorsSpans, record: &RecordView<'_>) -> Result<PlanPartEvent> {
    let number = record::channel(record.unsigned(&spans.channel)?)?;
    let connectors = spans
        .connectors
        .iter()
        .filter_map(|connector| {
            // A connector that does not exist or is not connected cannot be read.
            Some(Connector {
                direction: if connector.sends { Direction::Send } else { Direction::Recv },
                peer: record.int(&connector.peer).ok().filter(|peer| *peer >= 0)?,
                connection_index: connector.connection_index,
                connection: record.unsigned(&connector.connection).ok()?,
                has_proxy: record.unsigned(&connector.proxy_progress).ok()? != 0,
                owner: connector.owner.as_ref().and_then(|spans| proxy_owner(spans, record).ok()),
                transport: Transport::from_bytes(record.bytes(&connector.transport).ok()?),
            })
        })
        .collect();
    Ok(PlanPartEvent { origin: record.origin(), part: PlanPart::Connectors(number, connectors) })
}
