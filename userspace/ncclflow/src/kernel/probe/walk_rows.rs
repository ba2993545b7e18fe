//! What a walk sends once: a channel's graphs, and the connectors that an algorithm, or a send or receive, uses of it.

use ncclflow_common::{Fan, GATE_TAGS, Gate, MAX_GATES, NOWHERE, ROW_GIVEN};

use super::{
    connector::proxy_connector,
    finished_plan::PlanError,
    lookup::{Lack, field, len, load_field, offset, signed},
    plan_builder::{PlanBuilder, Slot},
    walk_probes::Assembly,
};
use flow::wire::{ChannelSpans, ConnectorSpans, ConnectorsSpans, ProbeKind, Span};
use nccl_library::{
    layouts::Layouts,
    nccl::{Algorithm, NameTables, Pattern},
};

/// Dimensions of PAT that connectors are read for: 2^10 ranks.
const PAT_DIMENSIONS: u32 = 10;

/// `nChannels` and the like: rows of the table of channels.
const ROWS_ALL: u8 = 0;
const ROWS_NVLS: u8 = 1;

impl Assembly<'_> {
    /// Where only ops are seen, they tell which connectors are used.
    pub(super) fn gates_of_ops(&mut self) -> Result<[Gate; MAX_GATES], Lack> {
        let of_op = |path: &'static str| field(self.layouts, "ncclProxyOp", path);
        let (pattern, root, channel) = (of_op("pattern")?, of_op("root")?, of_op("channelId")?);
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
        let graphs = Gate { tag_at: len(pattern.offset)?, fans: by_pattern, ..Gate::default() };
        let p2p = |wanted: Pattern, fan: Fan| -> Result<Gate, Lack> {
            let mut fans = [Fan::default(); GATE_TAGS];
            fans[0] = fan;
            Ok(Gate {
                only_at: len(pattern.offset)?,
                only: number(wanted).and_then(|number| u16::try_from(number).ok()).unwrap_or(NOWHERE),
                tag_at: len(root.offset)?,
                tag_len: 4,
                first_row_at: len(channel.offset)?,
                one_fan: 1,
                fans,
                ..Gate::default()
            })
        };
        let (send, receive) = (self.p2p_fan(true)?, self.p2p_fan(false)?);
        Ok([graphs, p2p(Pattern::Send, send)?, p2p(Pattern::Recv, receive)?, Gate::default()])
    }

    /// Grouped broadcasts have no task among the collectives' (2.29 and later): only their ops tell which graphs are used. `rings`: what
    /// ops on rings use of a channel.
    pub(super) fn gate_of_grouped(&self, rings: Fan) -> Result<Option<Gate>, Lack> {
        let Some(function) = self.layouts.enum_value("ncclFunc_t", "ncclFuncAllGatherV") else {
            return Ok(None);
        };
        let of_op = |path: &'static str| field(self.layouts, "ncclProxyOp", path);
        let mut fans = [Fan::default(); GATE_TAGS];
        fans[0] = rings;
        Ok(Some(Gate {
            only_at: len(of_op("coll")?.offset)?,
            only: u16::try_from(function).unwrap_or(NOWHERE),
            tag_at: len(of_op("pattern")?.offset)?,
            one_fan: 1,
            fans,
            ..Gate::default()
        }))
    }

    /// What each algorithm's ops use of a channel: its graphs, and the connectors.
    pub(super) fn fans_by_algorithm(&mut self) -> Result<[Fan; GATE_TAGS], Lack> {
        let mut fans = [Fan::default(); GATE_TAGS];
        for algorithm in Algorithm::ALL {
            let fan = self.fan(algorithm)?;
            if let Some(slot) = fans.get_mut(usize::from(algorithm.number())) {
                *slot = fan;
            }
        }
        Ok(fans)
    }

    fn fan(&mut self, algorithm: Algorithm) -> Result<Fan, Lack> {
        const SEND: bool = true;
        const RECV: bool = false;
        let groups: &[&[(&str, bool, i32)]] = match algorithm {
            Algorithm::Ring => &[&[("ring.prev", RECV, 0), ("ring.next", SEND, 0)]],
            Algorithm::Tree => &[
                &[
                    ("tree.up", SEND, 0),
                    ("tree.down[0]", RECV, 0),
                    ("tree.down[1]", RECV, 0),
                    ("tree.down[2]", RECV, 0),
                ],
                &[
                    ("tree.up", RECV, 0),
                    ("tree.down[0]", SEND, 0),
                    ("tree.down[1]", SEND, 0),
                    ("tree.down[2]", SEND, 0),
                ],
            ],
            Algorithm::CollnetChain => &[&[("collnetChain.up", SEND, 1), ("collnetChain.up", RECV, 0)]],
            Algorithm::CollnetDirect => &[&[("collnetDirect.out", SEND, 1), ("collnetDirect.out", RECV, 0)]],
            Algorithm::Nvls => &[&[("nvls.out", SEND, 1), ("nvls.out", RECV, 0)]],
            Algorithm::NvlsTree => &[
                &[("nvls.treeUp", SEND, 0), ("nvls.treeDown[1]", RECV, 0), ("nvls.treeDown[2]", RECV, 0)],
                &[("nvls.treeUp", RECV, 0), ("nvls.treeDown[1]", SEND, 0), ("nvls.treeDown[2]", SEND, 0)],
            ],
            Algorithm::Pat => &[],
        };
        let first = self.channel()?;
        for group in groups {
            self.connectors(|part, layouts, channel| {
                group
                    .iter()
                    .map(|(path, sends, index)| {
                        let at = layouts.field("ncclChannel", path);
                        let at = at.ok_or(Lack::Field("ncclChannel", "the graph of an algorithm"))?;
                        let peer = load_field(part, channel, &at)?;
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

    /// PAT's peers are at distances of powers of two, either way.
    fn pat_connectors(&mut self, distance: i64) -> Result<(), Lack> {
        self.connectors(|part, layouts, _| {
            let comm = part.given(3);
            let rank = load_field(part, comm, &field(layouts, "ncclComm", "rank")?)?;
            let n_ranks = load_field(part, comm, &field(layouts, "ncclComm", "nRanks")?)?;
            let above = part.offset(rank, distance);
            let above = part.wrap(above, n_ranks);
            let below = part.scale(rank, n_ranks, 1);
            let below = part.offset(below, -distance);
            let below = part.wrap(below, n_ranks);
            Ok([(above, true), (above, false), (below, true), (below, false)]
                .map(|(peer, sends)| (peer, sends, 0))
                .to_vec())
        })?;
        Ok(())
    }

    /// The connectors of a send or receive: those to the peer that is the tag, of index 1.
    pub(super) fn p2p_fan(&mut self, sends: bool) -> Result<Fan, Lack> {
        // Sends and receives go over more channels than the graphs: those are read here too.
        let first = self.channel()?;
        self.connectors(|part, _, _| {
            let tag = part.given(2);
            Ok(vec![(part.int32(tag), sends, 1)])
        })?;
        Ok(Fan { first_plan: first, n_plans: 2, rows: ROWS_ALL })
    }

    /// The graphs of a channel.
    fn channel(&mut self) -> Result<u16, Lack> {
        let layouts = self.layouts;
        let mut part = PlanBuilder::part(self.resolution.machine, ROW_GIVEN);
        let (channel, number) = (part.given(0), part.given(1));
        let number = part.emit(number);
        let mark = part.mark();
        let mut copy = |path: &str| -> Option<Span> {
            let at = layouts.field("ncclChannel", path)?;
            if at.size > 8 {
                return Some(part.copy(channel, signed(at.offset).ok()?, len(at.size).ok()?));
            }
            let value = load_field(&mut part, channel, &at).ok()?;
            let span = part.emit(value);
            part.forget_since(mark);
            Some(span)
        };
        let mut need = |path: &'static str| copy(path).ok_or(Lack::Field("ncclChannel", path));
        let mut spans = ChannelSpans {
            channel: number,
            ring: [need("ring.prev")?, need("ring.next")?, need("ring.index")?],
            tree_up: need("tree.up")?,
            tree_down: need("tree.down")?,
            collnet_chain_up: need("collnetChain.up")?,
            collnet_direct_out: need("collnetDirect.out")?,
            nvls_out: None,
            nvls_tree_up: None,
            nvls_tree_down: None,
            nvls_heads: None,
            collnet_heads: [need("collnetDirect.nHeads")?, need("collnetDirect.headRank")?],
            buffer_sizes: Span { at: 0, len: 0, rests_on: 0 },
            n_nodes: None,
        };
        spans.nvls_heads = copy("nvls.nHeads").zip(copy("nvls.headRank")).map(|(count, rank)| [count, rank]);
        spans.nvls_out = copy("nvls.out");
        spans.nvls_tree_up = copy("nvls.treeUp");
        spans.nvls_tree_down = copy("nvls.treeDown");
        let sizes = field(layouts, "ncclComm", "buffSizes")?;
        let comm = part.given(3);
        spans.buffer_sizes = part.copy(comm, offset(&sizes)?, len(sizes.size)?);
        spans.n_nodes = match layouts.field("ncclComm", "nNodes") {
            Some(at) => {
                let nodes = load_field(&mut part, comm, &at)?;
                Some(part.emit(nodes))
            }
            None => None,
        };
        let plan = part.finish()?;
        let at = self.add_part("channels", ProbeKind::Channel(spans), plan);
        u16::try_from(at).map_err(|_| Lack::Plan(PlanError::TooManySteps))
    }

    /// A plan that reads the connectors to some peers of a row's channel.
    fn connectors(
        &mut self,
        peers: impl Fn(&mut PlanBuilder, &Layouts, Slot) -> Result<Vec<(Slot, bool, i32)>, Lack>,
    ) -> Result<u16, Lack> {
        let layouts = self.layouts;
        let mut part = PlanBuilder::part(self.resolution.machine, ROW_GIVEN);
        let (channel, number) = (part.given(0), part.given(1));
        let number = part.emit(number);
        let table = load_field(&mut part, channel, &field(layouts, "ncclChannel", "peers")?)?;
        let connector_size =
            signed(layouts.struct_size("ncclConnector").ok_or(Lack::Struct("ncclConnector"))?)?;
        let of_connector = |path| offset(&field(layouts, "ncclConnector", path)?);
        let transport_comm_at = of_connector("transportComm")?;
        let name_at = offset(&field(layouts, "ncclTransport", "name")?)?;
        let mut spans = Vec::new();
        for (peer, sends, index) in peers(&mut part, layouts, channel)? {
            let side = if sends { "send" } else { "recv" };
            let first =
                offset(&layouts.field("ncclChannelPeer", side).ok_or(Lack::Struct("ncclChannelPeer"))?)?;
            let at = first + i64::from(index) * connector_size;
            let transport =
                offset(&layouts.field("ncclTransport", side).ok_or(Lack::Struct("ncclTransport"))?)?;
            let mark = part.mark();
            let peer_span = part.emit(peer);
            let element = part.scale(table, peer, 8);
            let of_peer = part.load(element, 0, 8);
            let of_proxy = proxy_connector(&mut part, layouts, of_peer, at)?;
            let no_progress = Lack::Field("ncclConnector", "proxyConn.proxyProgress");
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
        let at = self.add_part("connectors", kind, plan);
        u16::try_from(at).map_err(|_| Lack::Plan(PlanError::TooManySteps))
    }
}

/// The graph that a pattern's ops use.
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
