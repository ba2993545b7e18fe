//! What is copied where NCCL has a whole plan in memory: one probe hit for a kernel launch, however many ops it has.
//!
//! `ncclLaunchKernelAfter_NoCuda(comm, plan)` is called for each plan, after its kernel was launched and before its ops are
//! posted, and is a real function in every official library from 2.16 to 2.32. There the plan's tasks, its device work and its
//! proxy ops can be followed. Where the ops are posted from the stream instead (CUDA graphs), `hostStreamPlanCallback(plan)` is
//! called each time. From 2.23 on a plan holds what its ops are made of: see [`crate::model`].

use ncclflow_common::{
    Fan, GATE_TAGS, Gate, MAX_GATES, MAX_QUEUES, NODE_GIVEN, NOWHERE, Queue, ROW_GIVEN, STACK_POINTER_SLOT,
    Walk,
};

use super::{
    lookup::{Lack, communicator, field, len, offset, parameter, place as place_of, signed},
    op_probes::task,
    plan_builder::{FinishedPlan, PlanBuilder, PlanError, Slot, Span},
    set::{Part, WalkProgram},
    spans::{ChannelSpans, ConnectorSpans, ConnectorsSpans, PlanList, PlanNodeSpans, PlanSpans, ProbeKind},
};
use crate::{
    nccl::{Algorithm, NameTables, Pattern},
    symbols::{Field, Function, Layouts, Resolution},
};

/// A probe that walks: its own plan, what its last record means, and the walk.
pub(super) type CompiledWalk = Result<(FinishedPlan, ProbeKind, WalkProgram), Lack>;

/// Dimensions of PAT that connectors are read for: 2^10 ranks.
const PAT_DIMENSIONS: u32 = 10;

/// Bytes of `p2pOpCount` and `collOpCount`, which are neighbours: 64 channels at most, and one more.
const MAX_OP_COUNTS: u64 = 640;

/// `nChannels` and the like: rows of the table of channels.
const ROWS_ALL: u8 = 0;
const ROWS_NVLS: u8 = 1;

/// Which of a plan's probes it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// `ncclLaunchKernelAfter_NoCuda`.
    AfterLaunch,
    /// `hostStreamPlanCallback`.
    Callback,
}

/// Whether the plans of this version hold all that ops are made of.
pub(super) fn is_possible(resolution: &Resolution) -> bool {
    let layouts = &resolution.layouts;
    [
        ("ncclProxyOp", "task"),
        ("ncclProxyOp", "enqNext"),
        ("ncclKernelPlan", "collTaskQueue.head"),
        ("ncclKernelPlan", "p2pTaskQueue.head"),
        ("ncclKernelPlan", "workQueue.head"),
        ("ncclKernelPlan", "proxyOpQueue.head"),
        ("ncclTaskColl", "algorithm"),
        ("ncclWorkList", "workType"),
        ("ncclDevWorkColl", "cbd.chunkGrainsLo"),
        ("ncclDevWorkP2p", "sendChunkSize_u32fp8"),
        ("ncclDevWorkBatch", "offsetBitset"),
    ]
    .iter()
    .all(|(strukt, path)| layouts.field(strukt, path).is_some())
        && ["ncclLaunchKernelAfter_NoCuda", "hostStreamPlanCallback"]
            .iter()
            .all(|name| resolution.functions(name).len() == 1)
}

/// Compiles one of the two probes.
pub(super) fn walk(resolution: &Resolution, function: &Function, place: Place) -> CompiledWalk {
    let layouts = &resolution.layouts;
    let mut walk =
        Assembly { resolution, layouts, parts: Vec::new(), walk: Walk::default(), lists: Vec::new() };
    let head = walk.head(function, place)?;
    let (plan, spans) = walk.last_record(function, place)?;
    let Assembly { parts, walk, .. } = walk;
    Ok((plan, ProbeKind::Plan(spans), WalkProgram { head, parts, walk }))
}

struct Assembly<'a> {
    resolution: &'a Resolution,
    layouts: &'a Layouts,
    parts: Vec<Part>,
    walk: Walk,
    lists: Vec<PlanList>,
}

impl Assembly<'_> {
    /// The words that both plans start from.
    fn comm_and_plan(
        &self,
        builder: &mut PlanBuilder,
        function: &Function,
        place: Place,
    ) -> Result<(Slot, Slot), Lack> {
        Ok(match place {
            Place::AfterLaunch => (
                builder.parameter(parameter(function, "comm")?),
                builder.parameter(parameter(function, "plan")?),
            ),
            Place::Callback => {
                let plan = builder.parameter(parameter(function, "plan_")?);
                let comm = field(self.layouts, "ncclKernelPlan", "comm")?;
                (builder.load(plan, offset(&comm)?, 8), plan)
            }
        })
    }

    /// The plan that finds the lists, and the walk's own description.
    fn head(&mut self, function: &Function, place: Place) -> Result<FinishedPlan, Lack> {
        let mut head = PlanBuilder::new(self.resolution.machine);
        let (comm, plan) = self.comm_and_plan(&mut head, function, place)?;
        let channels = field(self.layouts, "ncclComm", "channels")?;
        let rows = head.offset(comm, offset(&channels)?);
        let n_channels = load_field(&mut head, comm, &field(self.layouts, "ncclComm", "nChannels")?)?;
        let nvls_channels = match self.layouts.field("ncclComm", "nvlsChannels") {
            Some(at) => load_field(&mut head, comm, &at)?,
            None => n_channels,
        };
        let hash = match self.layouts.field("ncclComm", "commHash") {
            Some(at) => load_field(&mut head, comm, &at)?,
            None => comm,
        };
        self.walk.rows = rows.number();
        self.walk.row_size = self.size("ncclChannel")?;
        self.walk.n_rows = [n_channels.number(), nvls_channels.number()];
        self.walk.identity = [comm.number(), hash.number()];
        let ops = self.head_of(&mut head, plan, "proxyOpQueue.head")?;
        if place == Place::AfterLaunch {
            let p2p = self.head_of(&mut head, plan, "p2pTaskQueue.head")?;
            let tasks = self.head_of(&mut head, plan, "collTaskQueue.head")?;
            let works = self.head_of(&mut head, plan, "workQueue.head")?;
            self.coll_tasks(tasks)?;
            self.works(works, p2p)?;
            self.p2p_tasks(p2p)?;
            self.batches(&mut head, plan, p2p)?;
        }
        // What only the launch needs is gone when a callback comes: device work lies in memory that the group frees at its end.
        self.op_counts(&mut head, comm, ops)?;
        self.proxy_ops(ops, place)?;
        Ok(head.finish()?)
    }

    fn head_of(&self, builder: &mut PlanBuilder, plan: Slot, path: &'static str) -> Result<Slot, Lack> {
        load_field(builder, plan, &field(self.layouts, "ncclKernelPlan", path)?)
    }

    /// The record of the probe itself.
    fn last_record(&self, function: &Function, place: Place) -> Result<(FinishedPlan, PlanSpans), Lack> {
        let layouts = self.layouts;
        let mut last = PlanBuilder::after_walk(self.resolution.machine);
        let (comm, plan) = self.comm_and_plan(&mut last, function, place)?;
        let nodes = self
            .lists
            .iter()
            .enumerate()
            .map(|(at, list)| {
                let found = last.nodes(u8::try_from(at).unwrap_or(u8::MAX));
                (*list, last.emit(found))
            })
            .collect();
        let plan_pointer = last.emit(plan);
        let of_plan = |path| field(layouts, "ncclKernelPlan", path);
        let mut places = vec![
            place_of(&of_plan("persistent")?)?,
            place_of(&of_plan("channelMask")?)?,
            place_of(&of_plan("workBytes")?)?,
        ];
        let callback = layouts.field("ncclKernelPlan", "isHostCbEnq");
        if let Some(at) = &callback {
            places.push(place_of(at)?);
        }
        let copied = last.copy_together(plan, &places);
        let [persistent, channel_mask, work_bytes, rest @ ..] = copied.as_slice() else {
            return Err(Lack::Struct("ncclKernelPlan"));
        };
        let by_callback = if let Some(span) = rest.first() {
            *span
        } else {
            let refs = load_field(&mut last, comm, &field(layouts, "ncclComm", "persistentRefs")?)?;
            last.emit(refs)
        };
        let (persistent, channel_mask, work_bytes) = (*persistent, *channel_mask, *work_bytes);
        let comm = communicator(&mut last, layouts, comm)?;
        let spans = PlanSpans {
            comm,
            plan: plan_pointer,
            in_callback: place == Place::Callback,
            persistent,
            by_callback,
            channel_mask,
            work_bytes,
            nodes,
        };
        Ok((last.finish()?, spans))
    }

    fn size(&self, strukt: &'static str) -> Result<u32, Lack> {
        let size = self.layouts.struct_size(strukt).ok_or(Lack::Struct(strukt))?;
        u32::try_from(size).map_err(|_| Lack::Struct(strukt))
    }

    fn add_list(&mut self, list: PlanList, queue: Queue) -> Result<(), Lack> {
        let at = self.lists.len();
        *self.walk.queues.get_mut(at).ok_or(Lack::Plan(PlanError::TooManySteps))? = queue;
        self.lists.push(list);
        self.walk.n_queues += 1;
        Ok(())
    }

    fn add_part(&mut self, name: &'static str, kind: ProbeKind, plan: FinishedPlan) -> u32 {
        self.parts.push(Part { name, kind, plan });
        u32::try_from(self.parts.len() - 1).unwrap_or(u32::MAX)
    }

    /// A plan that copies the first `bytes` of a node.
    fn node(&mut self, list: PlanList, name: &'static str, bytes: u64) -> Result<u32, Lack> {
        let mut part = PlanBuilder::part(self.resolution.machine, NODE_GIVEN);
        let node = part.given(0);
        let spans = PlanNodeSpans {
            list,
            address: part.emit(node),
            bytes: part.copy(node, 0, len(bytes)?),
            task: None,
        };
        let plan = part.finish()?;
        Ok(self.add_part(name, ProbeKind::PlanNode(spans), plan))
    }

    fn next_of(&self, strukt: &'static str, path: &'static str) -> Result<u16, Lack> {
        len(field(self.layouts, strukt, path)?.offset)
    }

    fn coll_tasks(&mut self, head: Slot) -> Result<(), Lack> {
        let strukt = "ncclTaskColl";
        let algorithm = field(self.layouts, strukt, "algorithm")?;
        let end = field(self.layouts, strukt, "regBufType")?;
        let gate =
            Gate { tag_at: bits_byte(&algorithm)?, fans: self.fans_by_algorithm()?, ..Gate::default() };
        *self.walk.gates.first_mut().ok_or(Lack::Plan(PlanError::TooManySteps))? = gate;
        let queue = Queue {
            plan: self.node(PlanList::CollTasks, "collTaskQueue", end.offset + end.size)?,
            next_at: self.next_of(strukt, "next")?,
            head: head.number(),
            when: STACK_POINTER_SLOT,
            first_gate: 0,
            n_gates: 1,
            gates_when: STACK_POINTER_SLOT,
            ..Queue::default()
        };
        self.add_list(PlanList::CollTasks, queue)
    }

    fn works(&mut self, head: Slot, p2p_tasks: Slot) -> Result<(), Lack> {
        let list = self.layouts.struct_size("ncclWorkList").ok_or(Lack::Struct("ncclWorkList"))?;
        let coll = u64::from(self.size("ncclDevWorkColl")?);
        let p2p = u64::from(self.size("ncclDevWorkP2p")?);
        let of_work = |path: &'static str| -> Result<u16, Lack> {
            len(list + field(self.layouts, "ncclDevWorkP2p", path)?.offset)
        };
        let work_type = field(self.layouts, "ncclWorkList", "workType")?;
        let p2p_type = self.layouts.enum_value("ncclDevWorkType", "ncclDevWorkTypeP2p").unwrap_or(0);
        let gate = |rank: &'static str, rows: &'static str| -> Result<Gate, Lack> {
            Ok(Gate {
                only_at: len(work_type.offset)?,
                only: u16::try_from(p2p_type).unwrap_or(NOWHERE),
                tag_at: of_work(rank)?,
                tag_len: 4,
                rows_at: of_work(rows)?,
                first_row_at: of_work("channelBase")?,
                modulo_at: of_work("nP2pChannels")?,
                // Up to 2.27 parts go to channels in bit-reversed order (ncclP2pChannelForPart, src/include/device.h).
                reversed: u16::from(parts_are_reversed(self.layouts)),
                one_fan: 1,
                fans: [Fan::default(); GATE_TAGS],
            })
        };
        let (mut send, mut receive) =
            (gate("sendRank", "nSendChannels")?, gate("recvRank", "nRecvChannels")?);
        send.fans[0] = self.p2p_fan(true)?;
        receive.fans[0] = self.p2p_fan(false)?;
        for (slot, gate) in self.walk.gates.iter_mut().skip(1).zip([send, receive]) {
            *slot = gate;
        }
        let queue = Queue {
            plan: self.node(PlanList::Works, "workQueue", list + coll.max(p2p))?,
            next_at: self.next_of("ncclWorkList", "next")?,
            head: head.number(),
            when: STACK_POINTER_SLOT,
            first_gate: 1,
            n_gates: 2,
            gates_when: p2p_tasks.number(),
            ..Queue::default()
        };
        self.add_list(PlanList::Works, queue)
    }

    fn p2p_tasks(&mut self, head: Slot) -> Result<(), Lack> {
        let strukt = "ncclTaskP2p";
        let queue = Queue {
            plan: self.node(PlanList::P2pTasks, "p2pTaskQueue", u64::from(self.size(strukt)?))?,
            next_at: self.next_of(strukt, "next")?,
            head: head.number(),
            when: STACK_POINTER_SLOT,
            ..Queue::default()
        };
        self.add_list(PlanList::P2pTasks, queue)
    }

    /// Which work is in which batch, as a p2p op's number in its plan is that of its batch.
    fn batches(&mut self, head: &mut PlanBuilder, plan: Slot, when: Slot) -> Result<(), Lack> {
        let args_at = offset(&field(self.layouts, "ncclKernelPlan", "kernelArgs")?)?;
        let args_size = i64::from(self.size("ncclDevKernelArgs")?);
        let count_at = place_of(&field(self.layouts, "ncclKernelPlan", "nWorkBatches")?)?;
        let (mut batches, mut count) = (when, when);
        head.unless_zero(when, |head| {
            let args = head.load(plan, args_at, 8);
            batches = head.offset(args, args_size);
            count = head.load(plan, count_at.0, count_at.1);
        });
        let size = self.size("ncclDevWorkBatch")?;
        let queue = Queue {
            plan: self.node(PlanList::Batches, "kernelArgs", u64::from(size))?,
            stride: size,
            head: batches.number(),
            count: count.number(),
            when: when.number(),
            ..Queue::default()
        };
        self.add_list(PlanList::Batches, queue)
    }

    /// How many ops were posted before: what a queued op's number is relative to.
    fn op_counts(&mut self, head: &mut PlanBuilder, comm: Slot, when: Slot) -> Result<(), Lack> {
        let (first, bytes) =
            op_counts_extent(self.layouts).ok_or(Lack::Field("ncclSharedResources", "p2pOpCount"))?;
        let shared_at = offset(&field(self.layouts, "ncclComm", "sharedRes")?)?;
        let (mut counts, one) = (when, head.constant(1));
        let first = signed(first)?;
        head.unless_zero(when, |head| {
            let shared = head.load(comm, shared_at, 8);
            counts = head.offset(shared, first);
        });
        let queue = Queue {
            plan: self.node(PlanList::OpCounts, "opCounts", bytes)?,
            stride: u32::try_from(bytes).map_err(|_| Lack::Field("ncclSharedResources", "p2pOpCount"))?,
            head: counts.number(),
            count: one.number(),
            when: when.number(),
            ..Queue::default()
        };
        self.add_list(PlanList::OpCounts, queue)
    }

    fn proxy_ops(&mut self, head: Slot, place: Place) -> Result<(), Lack> {
        let strukt = "ncclProxyOp";
        let mut part = PlanBuilder::part(self.resolution.machine, NODE_GIVEN);
        let node = part.given(0);
        let address = part.emit(node);
        let task_at = field(self.layouts, strukt, "task")?;
        let task = Some(task(&mut part, self.layouts, node, &task_at)?);
        let bytes = part.copy(node, 0, len(u64::from(self.size(strukt)?))?);
        let spans = PlanNodeSpans { list: PlanList::ProxyOps, address, bytes, task };
        let plan = part.finish()?;
        let plan = self.add_part("proxyOpQueue", ProbeKind::PlanNode(spans), plan);
        let mut queue = Queue {
            plan,
            next_at: self.next_of(strukt, "enqNext")?,
            head: head.number(),
            when: STACK_POINTER_SLOT,
            ..Queue::default()
        };
        if place == Place::Callback {
            let gates = self.gates_of_ops()?;
            queue.n_gates = 3;
            queue.gates_when = STACK_POINTER_SLOT;
            self.walk.gates = gates;
        }
        self.add_list(PlanList::ProxyOps, queue)
    }

    /// Where only ops are seen, they tell which connectors are used.
    fn gates_of_ops(&mut self) -> Result<[Gate; MAX_GATES], Lack> {
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
        Ok([graphs, p2p(Pattern::Send, send)?, p2p(Pattern::Recv, receive)?])
    }

    /// What each algorithm's ops use of a channel: its graphs, and the connectors.
    fn fans_by_algorithm(&mut self) -> Result<[Fan; GATE_TAGS], Lack> {
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
    fn p2p_fan(&mut self, sends: bool) -> Result<Fan, Lack> {
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
        };
        spans.nvls_heads = copy("nvls.nHeads").zip(copy("nvls.headRank")).map(|(count, rank)| [count, rank]);
        spans.nvls_out = copy("nvls.out");
        spans.nvls_tree_up = copy("nvls.treeUp");
        spans.nvls_tree_down = copy("nvls.treeDown");
        let sizes = field(layouts, "ncclComm", "buffSizes")?;
        let comm = part.given(3);
        spans.buffer_sizes = part.copy(comm, offset(&sizes)?, len(sizes.size)?);
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
        let progress_at = of_connector("proxyConn.proxyProgress")?;
        let connection_at = of_connector("proxyConn.connection")?;
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
            let proxy_progress = part.copy(of_peer, at + progress_at, 8);
            let connection = part.copy(of_peer, at + connection_at, 8);
            let transport_comm = part.load(of_peer, at + transport_comm_at, 8);
            let transport = part.copy(transport_comm, name_at - transport, 8);
            part.forget_since(mark);
            spans.push(ConnectorSpans {
                sends,
                connection_index: index,
                peer: peer_span,
                connection,
                proxy_progress,
                transport,
            });
        }
        let plan = part.finish()?;
        let kind = ProbeKind::Connectors(ConnectorsSpans { channel: number, connectors: spans });
        let at = self.add_part("connectors", kind, plan);
        u16::try_from(at).map_err(|_| Lack::Plan(PlanError::TooManySteps))
    }
}

/// Whether parts of a send or receive go to channels in bit-reversed order: up to 2.27. 2.28 turned the base instead, and
/// brought `ncclComm.p2pSchedGroupSize`.
pub(crate) fn parts_are_reversed(layouts: &Layouts) -> bool {
    layouts.field("ncclComm", "p2pSchedGroupSize").is_none()
}

/// Where `p2pOpCount` and `collOpCount` are in `ncclSharedResources`: offset and bytes of both together.
pub(crate) fn op_counts_extent(layouts: &Layouts) -> Option<(u64, u64)> {
    let p2p = layouts.field("ncclSharedResources", "p2pOpCount")?;
    let collectives = layouts.field("ncclSharedResources", "collOpCount")?;
    let first = p2p.offset.min(collectives.offset);
    let end = p2p.offset.checked_add(p2p.size)?.max(collectives.offset.checked_add(collectives.size)?);
    Some((first, end.checked_sub(first).filter(|bytes| *bytes <= MAX_OP_COUNTS)?))
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

/// Loads a field that is a number or an address.
fn load_field(builder: &mut PlanBuilder, base: Slot, at: &Field) -> Result<Slot, Lack> {
    Ok(builder.load(base, offset(at)?, len(at.size)?))
}

/// The byte that a bit field of 8 bits fills.
fn bits_byte(at: &Field) -> Result<u16, Lack> {
    match at.bits {
        None => len(at.offset),
        Some(bits) if bits.width == 8 && bits.shift % 8 == 0 => len(at.offset + u64::from(bits.shift / 8)),
        Some(_) => Err(Lack::Field("ncclTaskColl", "algorithm, in a byte of its own")),
    }
}

const _: () = assert!(MAX_QUEUES == 6, "as many as there are lists");
