//! Probes where NCCL has a whole plan in memory: one hit for a kernel launch, however many ops it has.
//!
//! `ncclLaunchKernelAfter_NoCuda(comm, plan)` is called for each plan, after its kernel was launched and
//! before its ops are posted, and is a real function in every official library from 2.16 to 2.32. There the
//! plan's tasks, its device work and its proxy ops can be followed. Where the ops are posted from the stream
//! instead (CUDA graphs), `hostStreamPlanCallback(plan)` is called each time. One-sided calls are taken out
//! of their plan before, in `ncclLaunchRma(comm, plan)` (2.29 and later). From 2.23 on a plan holds all
//! that its ops are made of: see [`flow::model`].

use ncclflow_common::{
    Fan, FetchPlan, GATE_TAGS, Gate, MAX_GATES, MAX_QUEUES, NODE_BYTES_AT, NODE_GIVEN, NOWHERE, ONE_NODE,
    Queue, STACK_POINTER_SLOT, Walk,
};

use super::{
    launch_args,
    lookup::Compiled,
    op_probes::task,
    plan_builder::{PlanBuilder, Slot},
    set::{Part, WalkProgram},
    short_walk::short,
};
use flow::wire::{PlanList, PlanNodeSpans, PlanSpans, ProbeKind};
use nccl_library::{
    fields::{
        FieldRef, MissingField, channel, comm, dev_kernel_args, dev_work_batch, dev_work_coll, dev_work_p2p,
        enums, kernel_plan, op_counts_extent, parts_are_reversed, proxy_op, shared_resources, task_coll,
        task_p2p, work_list,
    },
    nccl::Algorithm,
    symbols::{Function, Resolution},
};

/// The function that NCCL calls for each plan that it has launched.
pub(super) const LAUNCH: &str = "ncclLaunchKernelAfter_NoCuda";

/// The function that posts the plans of graphs.
pub(super) const CALLBACK: &str = "hostStreamPlanCallback";

/// Tells whether the plans of this version hold all that ops are made of.
pub(super) fn is_possible(resolution: &Resolution) -> bool {
    let layouts = &resolution.layouts;
    [
        proxy_op::TASK,
        proxy_op::QUEUE_NEXT,
        kernel_plan::COLL_TASKS,
        kernel_plan::P2P_TASKS,
        kernel_plan::WORKS,
        kernel_plan::PROXY_OPS,
        task_coll::ALGORITHM,
        work_list::WORK_TYPE,
        dev_work_coll::CHUNK_GRAINS_LO,
        dev_work_p2p::SEND_CHUNK_SIZE,
        dev_work_batch::OFFSET_BITS,
    ]
    .iter()
    .all(|field| field.exists(layouts))
        && [LAUNCH, CALLBACK].iter().all(|name| resolution.functions(name).len() == 1)
}

/// Compiles one of the probes.
pub(super) fn walk(resolution: &Resolution, function: &Function) -> Compiled {
    let in_callback = function.name == CALLBACK;
    let mut head = PlanBuilder::new(resolution);
    let (comm, plan) = comm_and_plan(&mut head, function);
    let parts = vec![Part { name: "head", kind: ProbeKind::Head, plan: FetchPlan::default() }];
    let mut assembly = Assembly { resolution, head, comm, plan, parts, lists: Vec::new(), gates: Vec::new() };
    let mut walk = assembly.table();
    let one_sided = function.name == launch_args::ONE_SIDED;
    if one_sided {
        assembly.one_sided(plan);
    } else {
        assembly.find_lists(in_callback);
    }
    let Assembly { head, mut parts, lists, gates, .. } = assembly;
    if let Some(part) = parts.first_mut() {
        part.plan = head.finish()?;
    }
    walk.n_queues = u32::try_from(lists.len()).unwrap_or(0);
    for (slot, (_, queue)) in walk.queues.iter_mut().zip(&lists) {
        *slot = *queue;
    }
    for (slot, gate) in walk.gates.iter_mut().zip(gates) {
        *slot = gate;
    }

    let nodes: Vec<PlanList> = lists.iter().map(|(list, _)| *list).collect();
    let of_launch = function.name == LAUNCH;
    // Where the arguments of other launches do not fit, ordinary ones are seen all the same.
    let own = own_record(resolution, function, &nodes, of_launch);
    let own =
        own.or_else(
            |error| if of_launch { own_record(resolution, function, &nodes, false) } else { Err(error) },
        )?;
    walk.nodes_at = own.spans.nodes.first().map_or(0, |(_, first)| first.at);
    let mut program = WalkProgram { parts, walk };
    if of_launch {
        program.walk.short =
            short(&resolution.layouts, own.args, &program, &own.ordinary).unwrap_or_default();
    }
    Ok((own.plan, ProbeKind::Plan(own.spans), Some(program)))
}

/// The record of the probe itself.
struct OwnRecord {
    plan: FetchPlan,
    /// The plan without what only launches without proxy ops need.
    ordinary: FetchPlan,
    spans: PlanSpans,
    /// Slots of the communicator and of the plan.
    args: [u8; 2],
}

fn own_record(
    resolution: &Resolution,
    function: &Function,
    lists: &[PlanList],
    with_args: bool,
) -> anyhow::Result<OwnRecord> {
    let mut last = PlanBuilder::after_walk(resolution);
    let (comm, plan) = comm_and_plan(&mut last, function);
    let comm_spans = last.communicator(resolution, comm);
    let [kernel, args_size] = launch_args::COPIED;
    let needed =
        [kernel_plan::PERSISTENT, kernel_plan::CHANNEL_MASK, kernel_plan::WORK_BYTES, kernel, args_size];
    let [symmetric, copy_engine, rma] = launch_args::FLAGS.map(Some);
    let (pointer, [persistent, channel_mask, work_bytes, kernel, args_size], [by_callback, flags @ ..]) =
        last.emit_and_copy_fields(
            plan,
            needed,
            [Some(kernel_plan::BY_CALLBACK), symmetric, copy_engine, rma],
        );
    let by_callback = by_callback.unwrap_or_else(|| last.emit_field(comm, comm::PERSISTENT_REFS));
    let nodes = last.nodes();
    let (steps, bytes) = last.extent();
    let launch = if with_args {
        launch_args::args(&mut last, resolution, plan, flags, [kernel, args_size])
    } else {
        None
    };
    let spans = PlanSpans {
        comm: comm_spans,
        plan: pointer,
        in_callback: function.name == CALLBACK,
        persistent,
        by_callback,
        channel_mask,
        work_bytes,
        nodes: lists.iter().copied().zip(nodes).collect(),
        launch,
        one_sided: function.name == launch_args::ONE_SIDED,
    };
    let whole = last.finish()?;
    let ordinary = FetchPlan { n_steps: steps, record_len: bytes, ..whole };
    Ok(OwnRecord { plan: whole, ordinary, spans, args: [comm, plan].map(Slot::number) })
}

/// Loads the communicator and the plan, the words that both fetch plans start from.
fn comm_and_plan(builder: &mut PlanBuilder<'_>, function: &Function) -> (Slot, Slot) {
    if function.name == CALLBACK {
        let plan = builder.parameter(function, "plan_");
        (builder.load_pointer(plan, kernel_plan::COMM), plan)
    } else {
        (builder.parameter(function, "comm"), builder.parameter(function, "plan"))
    }
}

/// A walk in the making.
pub(super) struct Assembly<'a> {
    pub(super) resolution: &'a Resolution,
    /// Plan that finds the lists. It also keeps what the library lacks for the others.
    pub(super) head: PlanBuilder<'a>,
    comm: Slot,
    plan: Slot,
    pub(super) parts: Vec<Part>,
    pub(super) lists: Vec<(PlanList, Queue)>,
    gates: Vec<Gate>,
}

impl Assembly<'_> {
    /// Describes the table of channels, and how one is told from another.
    fn table(&mut self) -> Walk {
        let head = &mut self.head;
        let n_channels = head.offset_of(comm::N_CHANNELS);
        let has_nvls = comm::NVLS_CHANNELS.exists(head.layouts);
        Walk {
            rows_at: head.offset_of(comm::CHANNELS),
            row_size: head.size_of(channel::STRUCT),
            n_rows_at: [n_channels, if has_nvls { head.offset_of(comm::NVLS_CHANNELS) } else { n_channels }],
            identity: [self.comm, head.load_if_there(self.comm, comm::HASH).unwrap_or(self.comm)]
                .map(Slot::number),
            ..Walk::default()
        }
    }

    fn find_lists(&mut self, in_callback: bool) {
        // Lists that only the launch needs are gone when a callback comes: device work lies in memory that
        // the group frees at its end.
        if in_callback {
            let [ops] = self.head.load_pointers(self.plan, [kernel_plan::PROXY_OPS]);
            self.op_counts(ops);
            self.proxy_ops(ops, in_callback);
            return;
        }
        let heads =
            [kernel_plan::PROXY_OPS, kernel_plan::P2P_TASKS, kernel_plan::COLL_TASKS, kernel_plan::WORKS];
        let [ops, p2p, tasks, works] = self.head.load_pointers(self.plan, heads);
        self.coll_tasks(tasks);
        self.works(works, p2p);
        self.p2p_tasks(p2p);
        self.batches(p2p);
        self.op_counts(ops);
        self.proxy_ops(ops, in_callback);
    }

    /// Adds a plan for nodes or rows. Returns its place among the parts.
    pub(super) fn add_part(&mut self, name: &'static str, kind: ProbeKind, plan: PlanBuilder<'_>) -> u32 {
        let plan = plan.finish().unwrap_or_else(|error| self.head.lack(error));
        self.parts.push(Part { name, kind, plan });
        u32::try_from(self.parts.len() - 1).unwrap_or(u32::MAX)
    }

    /// Compiles the plan for the nodes of a list, of which the first `bytes` are copied and, for ops, what
    /// their tasks say. Returns the list, without the place of its head.
    fn nodes(&mut self, list: PlanList, bytes: u64) -> Queue {
        let mut part = PlanBuilder::part(self.resolution, NODE_GIVEN);
        let node = part.given(0);
        let bytes = part.number(bytes);
        let (address, bytes) = part.emit_and_copy(node, 0, bytes);
        let task = (list == PlanList::ProxyOps).then(|| task(&mut part, node));
        let spans = PlanNodeSpans { list, address, bytes, task, ranks: None };
        let plan = self.add_part(list.name(), ProbeKind::PlanNode(spans), part);
        // The walk looks for the node's bytes at this place in the record only.
        let is_small = self.parts.last().is_some_and(|part| part.plan.class == 0);
        let is_there = is_small && usize::from(bytes.at) == NODE_BYTES_AT;
        let copied = if is_there { bytes.len } else { 0 };
        Queue { plan, copied, when: STACK_POINTER_SLOT, ..Queue::default() }
    }

    /// Has the nodes of a list go through these gates, where `when` is not 0.
    fn gated(&mut self, queue: Queue, when: u8, gates: impl IntoIterator<Item = Gate>) -> Queue {
        let first_gate = u8::try_from(self.gates.len()).unwrap_or(u8::MAX);
        self.gates.extend(gates);
        let n_gates = u8::try_from(self.gates.len()).unwrap_or(u8::MAX) - first_gate;
        Queue { first_gate, n_gates, gates_when: when, ..queue }
    }

    fn coll_tasks(&mut self, head: Slot) {
        let tag_at = self.algorithm_byte();
        let last: u64 = self.head.offset_of(task_coll::REG_BUFFER_TYPE);
        let (_, len) = self.head.place_of(task_coll::REG_BUFFER_TYPE);
        let gate = Gate { tag_at, fans: self.fans_by_algorithm(), ..Gate::default() };
        let next_at = self.head.offset_of(task_coll::NEXT);
        let nodes = self.nodes(PlanList::CollTasks, last.saturating_add(len.into()));
        let queue = Queue { next_at, head: head.number(), ..nodes };
        let queue = self.gated(queue, STACK_POINTER_SLOT, [gate]);
        self.lists.push((PlanList::CollTasks, queue));
    }

    fn works(&mut self, head: Slot, p2p_tasks: Slot) {
        let list: u64 = self.head.size_of(work_list::STRUCT);
        let coll: u64 = self.head.size_of(dev_work_coll::STRUCT);
        let p2p: u64 = self.head.size_of(dev_work_p2p::STRUCT);
        let p2p_type = enums::WORK_P2P.find(self.head.layouts).unwrap_or(0);
        let sides = [
            (dev_work_p2p::SEND_RANK, dev_work_p2p::SEND_N_CHANNELS, true),
            (dev_work_p2p::RECV_RANK, dev_work_p2p::RECV_N_CHANNELS, false),
        ];
        let gates = sides.map(|(rank, rows, sends)| {
            let mut of_work = |field: FieldRef| {
                let offset: u64 = self.head.offset_of(field);
                self.head.number(list.saturating_add(offset))
            };
            Gate {
                tag_at: of_work(rank),
                tag_len: 4,
                rows_at: of_work(rows),
                first_row_at: of_work(dev_work_p2p::CHANNEL_BASE),
                modulo_at: of_work(dev_work_p2p::N_P2P_CHANNELS),
                reversed: u16::from(parts_are_reversed(self.head.layouts)),
                only_at: self.head.offset_of(work_list::WORK_TYPE),
                only: u16::try_from(p2p_type).unwrap_or(NOWHERE),
                ..one_fan(self.p2p_fan(sends))
            }
        });
        let next_at = self.head.offset_of(work_list::NEXT);
        let nodes = self.nodes(PlanList::Works, list.saturating_add(coll.max(p2p)));
        let queue = Queue { next_at, head: head.number(), ..nodes };
        let queue = self.gated(queue, p2p_tasks.number(), gates);
        self.lists.push((PlanList::Works, queue));
    }

    fn p2p_tasks(&mut self, head: Slot) {
        let next_at = self.head.offset_of(task_p2p::NEXT);
        let bytes = self.head.size_of(task_p2p::STRUCT);
        let queue = Queue { next_at, head: head.number(), ..self.nodes(PlanList::P2pTasks, bytes) };
        self.lists.push((PlanList::P2pTasks, queue));
    }

    /// Adds the table that tells which batch a work is in: a p2p op's number in its plan is that of its
    /// batch.
    fn batches(&mut self, when: Slot) {
        let (mut batches, mut count) = (when, when);
        self.head.unless_zero(when, |head| {
            let args = head.load_pointer(self.plan, kernel_plan::KERNEL_ARGS);
            let args_size = head.size_of(dev_kernel_args::STRUCT);
            batches = head.offset(args, args_size);
            count = head.load_field(self.plan, kernel_plan::N_WORK_BATCHES);
        });
        let stride: u32 = self.head.size_of(dev_work_batch::STRUCT);
        self.in_a_row(PlanList::Batches, stride, batches, count.number(), when);
    }

    /// Adds the counts of ops that were posted before: a queued op's number is relative to them.
    fn op_counts(&mut self, when: Slot) {
        let extent = op_counts_extent(self.head.layouts);
        let (first, bytes) =
            extent.unwrap_or_else(|| self.head.lack(shared_resources::P2P_OP_COUNT.missing()));
        let mut counts = when;
        self.head.unless_zero(when, |head| {
            let shared = head.load_pointer(self.comm, comm::SHARED_RESOURCES);
            let first = head.number(first);
            counts = head.offset(shared, first);
        });
        let stride = self.head.number(bytes);
        self.in_a_row(PlanList::OpCounts, stride, counts, ONE_NODE, when);
    }

    /// Adds a list of nodes that lie in a row, where `when` is not 0.
    fn in_a_row(&mut self, list: PlanList, stride: u32, head: Slot, count: u8, when: Slot) {
        let nodes = self.nodes(list, stride.into());
        let queue = Queue { stride, head: head.number(), count, when: when.number(), ..nodes };
        self.lists.push((list, queue));
    }

    fn proxy_ops(&mut self, head: Slot, in_callback: bool) {
        let next_at = self.head.offset_of(proxy_op::QUEUE_NEXT);
        let bytes = self.head.size_of(proxy_op::STRUCT);
        let nodes = self.nodes(PlanList::ProxyOps, bytes);
        let mut queue = Queue { next_at, head: head.number(), ..nodes };
        if in_callback {
            let gates = self.gates_of_ops();
            queue = self.gated(queue, STACK_POINTER_SLOT, gates);
        } else {
            let ring = usize::from(Algorithm::Ring.number());
            let rings = self.gates.first().and_then(|gate| gate.fans.get(ring)).copied().unwrap_or_default();
            if let Some(gate) = self.gate_of_grouped(rings) {
                queue = self.gated(queue, STACK_POINTER_SLOT, [gate]);
            }
        }
        self.lists.push((PlanList::ProxyOps, queue));
    }

    /// Returns the place of a collective's algorithm, a bit field that fills a byte.
    fn algorithm_byte(&mut self) -> u16 {
        let at: u64 = self.head.offset_of(task_coll::ALGORITHM);
        let bits = task_coll::ALGORITHM.find(self.head.layouts).and_then(|field| field.bits);
        match bits {
            None => self.head.number(at),
            Some(bits) if bits.width == 8 && bits.shift % 8 == 0 => {
                self.head.number(at.saturating_add(u64::from(bits.shift / 8)))
            }
            Some(_) => {
                let path = Some("algorithm, in a byte of its own");
                self.head.lack(MissingField { path, ..task_coll::STRUCT.missing() })
            }
        }
    }
}

/// Returns a gate that uses this fan for every tag.
pub(super) fn one_fan(fan: Fan) -> Gate {
    let mut fans = [Fan::default(); GATE_TAGS];
    fans[0] = fan;
    Gate { one_fan: 1, fans, ..Gate::default() }
}

const _: () = assert!(MAX_QUEUES == 6 && MAX_GATES == 4, "as many as there are");
