//! Rows that a walk sends once: a channel's graphs, and the connectors of it that an algorithm, or a send or
//! receive, uses.

use std::{iter, ops::Range};

use ncclflow_common::{Fan, GATE_TAGS, Gate, NOWHERE, ROW_GIVEN};

use super::{
    connector::proxy_connector,
    plan_builder::{PlanBuilder, Slot},
    walk_probes::{Assembly, one_fan},
};
use flow::wire::{ChannelSpans, ConnectorSpans, ConnectorsSpans, ProbeKind};
use nccl_library::{
    fields::{FieldRef, channel, channel_peer, comm, connector, enums, proxy_op, transport},
    nccl::{Algorithm, NameTables, Pattern},
};

/// Dimensions of PAT that connectors are read for: 2^10 ranks.
const PAT_DIMENSIONS: u32 = 10;

/// Rows of the table of channels that a gate's plans are run for: `nChannels` and the like.
const ROWS_ALL: u8 = 0;
const ROWS_NVLS: u8 = 1;

const SEND: bool = true;
const RECV: bool = false;

/// Peers of a channel, by the field with the peer's rank: whether this rank sends, and the connection's
/// index.
type Peers = Vec<(FieldRef, bool, i32)>;

impl Assembly<'_> {
    /// Returns the gates for plans of which only ops are seen: these tell which connectors are used.
    pub(super) fn gates_of_ops(&mut self) -> [Gate; 3] {
        let names = NameTables::from_layouts(self.head.layouts);
        let number = |wanted: Pattern| {
            (0..i64::try_from(GATE_TAGS).unwrap_or(0)).find(|number| names.pattern(*number) == Some(wanted))
        };
        let [pattern, root, channel] =
            [proxy_op::PATTERN, proxy_op::ROOT, proxy_op::CHANNEL_ID].map(|field| self.head.offset_of(field));
        let by_algorithm = self.fans_by_algorithm();
        let mut by_pattern = [Fan::default(); GATE_TAGS];
        for (number, fan) in (0i64..).zip(by_pattern.iter_mut()) {
            let algorithm = names.pattern(number).and_then(algorithm_of);
            let of = algorithm.and_then(|algorithm| by_algorithm.get(usize::from(algorithm.number())));
            *fan = of.copied().unwrap_or_default();
        }
        let graphs = Gate { tag_at: pattern, fans: by_pattern, ..Gate::default() };
        let [send, receive] = [(Pattern::Send, SEND), (Pattern::Recv, RECV)].map(|(wanted, sends)| Gate {
            only_at: pattern,
            only: number(wanted).and_then(|number| u16::try_from(number).ok()).unwrap_or(NOWHERE),
            tag_at: root,
            tag_len: 4,
            first_row_at: channel,
            ..one_fan(self.p2p_fan(sends))
        });
        [graphs, send, receive]
    }

    /// Returns the gate of grouped broadcasts, which have no task among the collectives' (2.29 and later):
    /// only their ops tell which graphs are used. `rings`: what ops on rings use of a channel.
    pub(super) fn gate_of_grouped(&mut self, rings: Fan) -> Option<Gate> {
        let function = enums::ALL_GATHER_V.find(self.head.layouts)?;
        Some(Gate {
            only_at: self.head.offset_of(proxy_op::COLL),
            only: u16::try_from(function).unwrap_or(NOWHERE),
            tag_at: self.head.offset_of(proxy_op::PATTERN),
            ..one_fan(rings)
        })
    }

    /// Returns what each algorithm's ops use of a channel: its graphs, and the connectors.
    pub(super) fn fans_by_algorithm(&mut self) -> [Fan; GATE_TAGS] {
        let mut fans = [Fan::default(); GATE_TAGS];
        for &algorithm in Algorithm::ALL {
            let fan = self.fan(algorithm);
            if let Some(slot) = fans.get_mut(usize::from(algorithm.number())) {
                *slot = fan;
            }
        }
        fans
    }

    fn fan(&mut self, algorithm: Algorithm) -> Fan {
        let first = self.channel();
        for group in graphs(algorithm) {
            self.connectors(|part, channel| {
                let load = |(field, sends, index): &(FieldRef, bool, i32)| {
                    let peer = part.load_field(channel, *field);
                    (part.int32(peer), *sends, *index)
                };
                group.iter().map(load).collect()
            });
        }
        if algorithm == Algorithm::Pat {
            for dimension in 0..PAT_DIMENSIONS {
                self.pat_connectors(1 << dimension);
            }
        }
        let nvls = matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
        self.fan_since(first, if nvls { ROWS_NVLS } else { ROWS_ALL })
    }

    /// Returns the fan of the plans from `first` on.
    fn fan_since(&self, first: u32, rows: u8) -> Fan {
        let first_plan = u16::try_from(first).unwrap_or(u16::MAX);
        let n_plans = u8::try_from(self.parts.len() - usize::from(first_plan)).unwrap_or(0);
        Fan { first_plan, n_plans, rows }
    }

    /// Adds PAT's connectors to the two peers at this distance, a power of two, above and below.
    fn pat_connectors(&mut self, distance: i64) {
        self.connectors(|part, _| {
            let comm = part.given(3);
            let rank = part.load_field(comm, comm::RANK);
            let n_ranks = part.load_field(comm, comm::N_RANKS);
            let above = part.offset(rank, distance);
            let above = part.wrap(above, n_ranks);
            let below = part.scale(rank, n_ranks, 1);
            let below = part.offset(below, -distance);
            let below = part.wrap(below, n_ranks);
            [(above, SEND), (above, RECV), (below, SEND), (below, RECV)]
                .map(|(peer, sends)| (peer, sends, 0))
                .to_vec()
        });
    }

    /// Returns the connectors of a send or receive: those to the peer that is the tag, of index 1.
    pub(super) fn p2p_fan(&mut self, sends: bool) -> Fan {
        // Sends and receives go over more channels than the graphs: those are read here too.
        let first = self.channel();
        self.connectors(|part, _| {
            let tag = part.given(2);
            vec![(part.int32(tag), sends, 1)]
        });
        self.fan_since(first, ROWS_ALL)
    }

    /// Adds the plan that reads the graphs of a channel. Returns its place.
    fn channel(&mut self) -> u32 {
        let mut part = PlanBuilder::part(self.resolution, ROW_GIVEN);
        let (channel, number, comm) = (part.given(0), part.given(1), part.given(3));
        let number = part.emit(number);
        let need = |part: &mut PlanBuilder<'_>, field: FieldRef| match part.place_of(field) {
            (offset, len) if len > 8 => part.copy(channel, offset, len),
            (offset, len) => part.freeing(|part| {
                let value = part.load(channel, offset, len);
                part.emit(value)
            }),
        };
        let find = |part: &mut PlanBuilder<'_>, field: FieldRef| {
            field.exists(part.layouts).then(|| need(part, field))
        };
        let ring =
            [channel::RING_PREV, channel::RING_NEXT, channel::RING_INDEX].map(|field| need(&mut part, field));
        let spans = ChannelSpans {
            channel: number,
            ring,
            tree_up: need(&mut part, channel::TREE_UP),
            tree_down: need(&mut part, channel::TREE_DOWN),
            collnet_chain_up: need(&mut part, channel::COLLNET_CHAIN_UP),
            collnet_direct_out: need(&mut part, channel::COLLNET_DIRECT_OUT),
            collnet_heads: [channel::COLLNET_DIRECT_N_HEADS, channel::COLLNET_DIRECT_HEAD_RANK]
                .map(|field| need(&mut part, field)),
            nvls_heads: find(&mut part, channel::NVLS_N_HEADS)
                .zip(find(&mut part, channel::NVLS_HEAD_RANK))
                .map(|(count, rank)| [count, rank]),
            nvls_out: find(&mut part, channel::NVLS_OUT),
            nvls_tree_up: find(&mut part, channel::NVLS_TREE_UP),
            nvls_tree_down: find(&mut part, channel::NVLS_TREE_DOWN),
            buffer_sizes: part.copy_field(comm, comm::BUFFER_SIZES),
            n_nodes: part.emit_if_there(comm, comm::N_NODES),
        };
        self.add_part("channels", ProbeKind::Channel(spans), part)
    }

    /// Adds a plan that reads the connectors to some peers of a row's channel.
    fn connectors(&mut self, peers: impl Fn(&mut PlanBuilder<'_>, Slot) -> Vec<(Slot, bool, i32)>) {
        let mut part = PlanBuilder::part(self.resolution, ROW_GIVEN);
        let (channel, number) = (part.given(0), part.given(1));
        let number = part.emit(number);
        let table = part.load_pointer(channel, channel::PEERS);
        let size: i64 = part.size_of(connector::STRUCT);
        let [transport_comm_at, name_at]: [i64; 2] =
            [connector::TRANSPORT_COMM, transport::NAME].map(|field| part.offset_of(field));
        let mut spans = Vec::new();
        for (peer, sends, index) in peers(&mut part, channel) {
            let (first, transport) = if sends {
                (channel_peer::SEND, transport::SEND)
            } else {
                (channel_peer::RECV, transport::RECV)
            };
            let [first, transport]: [i64; 2] = [first, transport].map(|field| part.offset_of(field));
            let at = first + i64::from(index) * size;
            spans.push(part.freeing(|part| {
                let peer_span = part.emit(peer);
                let element = part.scale(table, peer, 8);
                let of_peer = part.load(element, 0, 8);
                let of_proxy = proxy_connector(part, of_peer, at);
                let progress = of_proxy.progress;
                let progress =
                    progress.unwrap_or_else(|| part.copy_field(of_peer, connector::PROXY_PROGRESS));
                let transport_comm = part.load(of_peer, at + transport_comm_at, 8);
                let transport = part.copy(transport_comm, name_at - transport, 8);
                ConnectorSpans {
                    sends,
                    connection_index: index,
                    peer: peer_span,
                    connection: of_proxy.connection,
                    proxy_progress: progress,
                    owner: of_proxy.owner,
                    transport,
                }
            }));
        }
        let kind = ProbeKind::Connectors(ConnectorsSpans { channel: number, connectors: spans });
        self.add_part("connectors", kind, part);
    }
}

/// Returns the peers that an algorithm's ops have in a channel, in as many groups as it takes plans to read
/// them; those of PAT stand in no field.
fn graphs(algorithm: Algorithm) -> Vec<Peers> {
    // This rank sends on its second connection, and receives on its first.
    let both_ways = |peer: FieldRef| vec![vec![(peer, SEND, 1), (peer, RECV, 0)]];
    let tree = |up: FieldRef, down: FieldRef, children: Range<u64>| {
        let one_way = |sends: bool| {
            let below = children.clone().map(|child| (down.element(child), !sends, 0));
            iter::once((up, sends, 0)).chain(below).collect()
        };
        [SEND, RECV].map(one_way).to_vec()
    };
    match algorithm {
        Algorithm::Ring => vec![vec![(channel::RING_PREV, RECV, 0), (channel::RING_NEXT, SEND, 0)]],
        Algorithm::Tree => tree(channel::TREE_UP, channel::TREE_DOWN, 0..3),
        Algorithm::CollnetChain => both_ways(channel::COLLNET_CHAIN_UP),
        Algorithm::CollnetDirect => both_ways(channel::COLLNET_DIRECT_OUT),
        Algorithm::Nvls => both_ways(channel::NVLS_OUT),
        Algorithm::NvlsTree => tree(channel::NVLS_TREE_UP, channel::NVLS_TREE_DOWN, 1..3),
        Algorithm::Pat => Vec::new(),
    }
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
        Pattern::Send
        | Pattern::Recv
        | Pattern::Profiler
        | Pattern::Symmetric
        | Pattern::CopyEngine
        | Pattern::Grouped
        | Pattern::OneSided => return None,
    })
}
