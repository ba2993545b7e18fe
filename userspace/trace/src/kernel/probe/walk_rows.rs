//! Rows that a walk sends once: a channel's graphs, and the connectors of it that an algorithm, or a send or
//! receive, uses.

use std::iter;

use ncclflow_common::{Fan, GATE_TAGS, Gate, MAX_GATES, NOWHERE, ROW_GIVEN};

use super::{
    connector::proxy_connector,
    error::PlanError,
    lookup::{emit_field, load, near_offset_of, offset_of, place, place_of, signed},
    plan_builder::{PlanBuilder, Slot},
    walk_probes::Assembly,
};
use flow::wire::{ChannelSpans, ConnectorSpans, ConnectorsSpans, ProbeKind, Span};
use nccl_library::{
    fields::{FieldRef, channel, channel_peer, comm, connector, enums, proxy_op, transport},
    layouts::Layouts,
    nccl::{Algorithm, NameTables, Pattern},
};

/// Dimensions of PAT that connectors are read for: 2^10 ranks.
const PAT_DIMENSIONS: u32 = 10;

/// Rows of the table of channels that a gate's plans are run for: `nChannels` and the like.
const ROWS_ALL: u8 = 0;
const ROWS_NVLS: u8 = 1;

impl Assembly<'_> {
    /// Returns the gates for plans of which only ops are seen: these tell which connectors are used.
    pub(super) fn gates_of_ops(&mut self) -> Result<[Gate; MAX_GATES], PlanError> {
        let of_op = |field| near_offset_of(self.layouts, field);
        let (pattern, root, channel) =
            (of_op(proxy_op::PATTERN)?, of_op(proxy_op::ROOT)?, of_op(proxy_op::CHANNEL_ID)?);
        let names = NameTables::from_layouts(self.layouts);
        let number = |wanted: Pattern| {
            (0..i64::try_from(GATE_TAGS).unwrap_or(0)).find(|number| names.pattern(*number) == Some(wanted))
        };
        let by_algorithm = self.fans_by_algorithm()?;
        let mut by_pattern = [Fan::default(); GATE_TAGS];
        for (number, fan) in (0i64..).zip(by_pattern.iter_mut()) {
            let algorithm = names.pattern(number).and_then(algorithm_of);
            let of = algorithm.and_then(|algorithm| by_algorithm.get(usize::from(algorithm.number())));
            *fan = of.copied().unwrap_or_default();
        }
        let graphs = Gate { tag_at: pattern, fans: by_pattern, ..Gate::default() };
        let p2p = |wanted: Pattern, fan: Fan| -> Result<Gate, PlanError> {
            let mut fans = [Fan::default(); GATE_TAGS];
            fans[0] = fan;
            Ok(Gate {
                only_at: pattern,
                only: number(wanted).and_then(|number| u16::try_from(number).ok()).unwrap_or(NOWHERE),
                tag_at: root,
                tag_len: 4,
                first_row_at: channel,
                one_fan: 1,
                fans,
                ..Gate::default()
            })
        };
        let (send, receive) = (self.p2p_fan(true)?, self.p2p_fan(false)?);
        Ok([graphs, p2p(Pattern::Send, send)?, p2p(Pattern::Recv, receive)?, Gate::default()])
    }

    /// Returns the gate of grouped broadcasts, which have no task among the collectives' (2.29 and later):
    /// only their ops tell which graphs are used. `rings`: what ops on rings use of a channel.
    pub(super) fn gate_of_grouped(&self, rings: Fan) -> Result<Option<Gate>, PlanError> {
        let Some(function) = enums::ALL_GATHER_V.find(self.layouts) else {
            return Ok(None);
        };
        let mut fans = [Fan::default(); GATE_TAGS];
        fans[0] = rings;
        Ok(Some(Gate {
            only_at: near_offset_of(self.layouts, proxy_op::COLL)?,
            only: u16::try_from(function).unwrap_or(NOWHERE),
            tag_at: near_offset_of(self.layouts, proxy_op::PATTERN)?,
            one_fan: 1,
            fans,
            ..Gate::default()
        }))
    }

    /// Returns what each algorithm's ops use of a channel: its graphs, and the connectors.
    pub(super) fn fans_by_algorithm(&mut self) -> Result<[Fan; GATE_TAGS], PlanError> {
        let mut fans = [Fan::default(); GATE_TAGS];
        for &algorithm in Algorithm::ALL {
            let fan = self.fan(algorithm)?;
            if let Some(slot) = fans.get_mut(usize::from(algorithm.number())) {
                *slot = fan;
            }
        }
        Ok(fans)
    }

    fn fan(&mut self, algorithm: Algorithm) -> Result<Fan, PlanError> {
        const SEND: bool = true;
        const RECV: bool = false;
        let down = |child| channel::TREE_DOWN.element(child);
        let nvls_down = |child| channel::NVLS_TREE_DOWN.element(child);
        let groups: Vec<Vec<(FieldRef, bool, i32)>> = match algorithm {
            Algorithm::Ring => vec![vec![(channel::RING_PREV, RECV, 0), (channel::RING_NEXT, SEND, 0)]],
            Algorithm::Tree => [SEND, RECV]
                .map(|up| {
                    let children = (0..3).map(|child| (down(child), !up, 0));
                    iter::once((channel::TREE_UP, up, 0)).chain(children).collect()
                })
                .to_vec(),
            Algorithm::CollnetChain => both_ways(channel::COLLNET_CHAIN_UP),
            Algorithm::CollnetDirect => both_ways(channel::COLLNET_DIRECT_OUT),
            Algorithm::Nvls => both_ways(channel::NVLS_OUT),
            Algorithm::NvlsTree => [SEND, RECV]
                .map(|up| {
                    let children = (1..3).map(|child| (nvls_down(child), !up, 0));
                    iter::once((channel::NVLS_TREE_UP, up, 0)).chain(children).collect()
                })
                .to_vec(),
            Algorithm::Pat => Vec::new(),
        };
        let first = self.channel()?;
        for group in groups {
            self.connectors(|part, layouts, channel| {
                group
                    .iter()
                    .map(|(field, sends, index)| {
                        let peer = load(part, layouts, channel, *field)?;
                        Ok((part.int32(peer), *sends, *index))
                    })
                    .collect()
            })?;
        }
        if algorithm == Algorithm::Pat {
            for dimension in 0..PAT_DIMENSIONS {
                self.pat_connectors(1 << dimension)?;
            }
        }
        let n_plans = u8::try_from(self.parts.len() - usize::from(first)).unwrap_or(0);
        let nvls = matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
        Ok(Fan { first_plan: first, n_plans, rows: if nvls { ROWS_NVLS } else { ROWS_ALL } })
    }

    /// Adds PAT's connectors to the two peers at this distance, a power of two, above and below.
    fn pat_connectors(&mut self, distance: i64) -> Result<(), PlanError> {
        self.connectors(|part, layouts, _| {
            let comm = part.given(3);
            let rank = load(part, layouts, comm, comm::RANK)?;
            let n_ranks = load(part, layouts, comm, comm::N_RANKS)?;
            let above = part.offset(rank, distance);
            let above = part.wrap(above, n_ranks);
            let below = part.scale(rank, n_ranks, 1);
            let below = part.offset(below, -distance);
            let below = part.wrap(below, n_ranks);
            Ok([(above, true), (above, false), (below, true), (below, false)]
                .map(|(peer, sends)| (peer, sends, 0))
                .to_vec())
        })
    }

    /// Returns the connectors of a send or receive: those to the peer that is the tag, of index 1.
    pub(super) fn p2p_fan(&mut self, sends: bool) -> Result<Fan, PlanError> {
        // Sends and receives go over more channels than the graphs: those are read here too.
        let first = self.channel()?;
        self.connectors(|part, _, _| {
            let tag = part.given(2);
            Ok(vec![(part.int32(tag), sends, 1)])
        })?;
        Ok(Fan { first_plan: first, n_plans: 2, rows: ROWS_ALL })
    }

    /// Adds the plan that reads the graphs of a channel.
    fn channel(&mut self) -> Result<u16, PlanError> {
        let layouts = self.layouts;
        let mut part = PlanBuilder::part(self.resolution.machine, ROW_GIVEN);
        let (channel, number) = (part.given(0), part.given(1));
        let number = part.emit(number);
        let mark = part.mark();
        let mut copy = |field: FieldRef| -> Option<Span> {
            let at = field.find(layouts)?;
            if at.size > 8 {
                let (offset, len) = place(&at).ok()?;
                return Some(part.copy(channel, offset, len));
            }
            let span = emit_field(&mut part, channel, &at).ok()?;
            part.forget_since(mark);
            Some(span)
        };
        let mut need = |field: FieldRef| copy(field).ok_or(field.missing());
        let mut spans = ChannelSpans {
            channel: number,
            ring: [need(channel::RING_PREV)?, need(channel::RING_NEXT)?, need(channel::RING_INDEX)?],
            tree_up: need(channel::TREE_UP)?,
            tree_down: need(channel::TREE_DOWN)?,
            collnet_chain_up: need(channel::COLLNET_CHAIN_UP)?,
            collnet_direct_out: need(channel::COLLNET_DIRECT_OUT)?,
            nvls_out: None,
            nvls_tree_up: None,
            nvls_tree_down: None,
            nvls_heads: None,
            collnet_heads: [need(channel::COLLNET_DIRECT_N_HEADS)?, need(channel::COLLNET_DIRECT_HEAD_RANK)?],
            buffer_sizes: Span { at: 0, len: 0, rests_on: 0 },
            n_nodes: None,
        };
        let heads = copy(channel::NVLS_N_HEADS).zip(copy(channel::NVLS_HEAD_RANK));
        spans.nvls_heads = heads.map(|(count, rank)| [count, rank]);
        spans.nvls_out = copy(channel::NVLS_OUT);
        spans.nvls_tree_up = copy(channel::NVLS_TREE_UP);
        spans.nvls_tree_down = copy(channel::NVLS_TREE_DOWN);
        let (sizes_at, sizes_len) = place_of(layouts, comm::BUFFER_SIZES)?;
        let comm = part.given(3);
        spans.buffer_sizes = part.copy(comm, sizes_at, sizes_len);
        let n_nodes = comm::N_NODES.find(layouts);
        spans.n_nodes = n_nodes.map(|at| emit_field(&mut part, comm, &at)).transpose()?;
        let plan = part.finish()?;
        let at = self.add_part("channels", ProbeKind::Channel(spans), &plan);
        u16::try_from(at).map_err(|_| PlanError::TooManySteps)
    }

    /// Adds a plan that reads the connectors to some peers of a row's channel.
    fn connectors(
        &mut self,
        peers: impl Fn(&mut PlanBuilder, &Layouts, Slot) -> Result<Vec<(Slot, bool, i32)>, PlanError>,
    ) -> Result<(), PlanError> {
        let layouts = self.layouts;
        let mut part = PlanBuilder::part(self.resolution.machine, ROW_GIVEN);
        let (channel, number) = (part.given(0), part.given(1));
        let number = part.emit(number);
        let table = load(&mut part, layouts, channel, channel::PEERS)?;
        let connector_size = signed(connector::STRUCT.size(layouts)?)?;
        let transport_comm_at = offset_of(layouts, connector::TRANSPORT_COMM)?;
        let name_at = offset_of(layouts, transport::NAME)?;
        let mut spans = Vec::new();
        for (peer, sends, index) in peers(&mut part, layouts, channel)? {
            let (first, transport) = if sends {
                (channel_peer::SEND, transport::SEND)
            } else {
                (channel_peer::RECV, transport::RECV)
            };
            let at = offset_of(layouts, first)? + i64::from(index) * connector_size;
            let transport = offset_of(layouts, transport)?;
            let mark = part.mark();
            let peer_span = part.emit(peer);
            let element = part.scale(table, peer, 8);
            let of_peer = part.load(element, 0, 8);
            let of_proxy = proxy_connector(&mut part, layouts, of_peer, at)?;
            let no_progress = connector::PROXY_PROGRESS.missing();
            let transport_comm = part.load(of_peer, at + transport_comm_at, 8);
            let transport = part.copy(transport_comm, name_at - transport, 8);
            part.forget_since(mark);
            spans.push(ConnectorSpans {
                sends,
                connection_index: index,
                peer: peer_span,
                connection: of_proxy.connection,
                proxy_progress: of_proxy.progress.ok_or(no_progress)?,
                owner: of_proxy.owner,
                transport,
            });
        }
        let plan = part.finish()?;
        let kind = ProbeKind::Connectors(ConnectorsSpans { channel: number, connectors: spans });
        self.add_part("connectors", kind, &plan);
        Ok(())
    }
}

/// Returns a graph that has one peer, to which this rank sends on its second connection and from which it
/// receives on its first.
fn both_ways(peer: FieldRef) -> Vec<Vec<(FieldRef, bool, i32)>> {
    vec![vec![(peer, true, 1), (peer, false, 0)]]
}

/// Returns the graph that a pattern's ops use.
fn algorithm_of(pattern: Pattern) -> Option<Algorithm> {
    Some(match pattern {
        Pattern::Ring | Pattern::RingTwice | Pattern::PipelineFrom | Pattern::PipelineTo => Algorithm::Ring,
        Pattern::TreeUp | Pattern::TreeDown | Pattern::TreeUpDown => Algorithm::Tree,
        Pattern::CollnetChain => Algorithm::CollnetChain,
        Pattern::CollnetDirect => Algorithm::CollnetDirect,
        Pattern::Nvls => Algorithm::Nvls,
        Pattern::NvlsTree => Algorithm::NvlsTree,
        Pattern::PatUp | Pattern::PatDown => Algorithm::Pat,
        Pattern::Send | Pattern::Recv | Pattern::Profiler => return None,
    })
}
