//! Probes where NCCL has a whole plan in memory: one hit for a kernel launch, however many ops it has.
//!
//! `ncclLaunchKernelAfter_NoCuda(comm, plan)` is called for each plan, after its kernel was launched and
//! before its ops are posted, and is a real function in every official library from 2.16 to 2.32. There the
//! plan's tasks, its device work and its proxy ops can be followed. Where the ops are posted from the stream
//! instead (CUDA graphs), `hostStreamPlanCallback(plan)` is called each time. From 2.23 on a plan holds all
//! that its ops are made of: see [`flow::model`].

use ncclflow_common::{
    Fan, FetchPlan, GATE_TAGS, Gate, MAX_GATES, MAX_QUEUES, NODE_BYTES_AT, NODE_GIVEN, NOWHERE, ONE_NODE,
    Queue, STACK_POINTER_SLOT, Walk,
};

use super::{
    error::PlanError,
    lookup::{
        Compiled, communicator, len, load, load_field, near_offset_of, offset_of, parameter,
        place as place_in, place_of, signed,
    },
    op_probes::task,
    plan_builder::{PlanBuilder, Slot},
    set::{Part, WalkProgram},
    short_walk::short,
};
use flow::wire::{PlanList, PlanNodeSpans, PlanSpans, ProbeKind};
use nccl_library::{
    fields::{
        FieldRef, MissingField, StructRef, channel, comm, dev_kernel_args, dev_work_batch, dev_work_coll,
        dev_work_p2p, enums, kernel_plan, op_counts_extent, parts_are_reversed, proxy_op, shared_resources,
        task_coll, task_p2p, work_list,
    },
    layouts::{Field, Layouts},
    nccl::Algorithm,
    symbols::{Function, Resolution},
};

/// The function that NCCL calls for each plan that it has launched.
pub(super) const LAUNCH: &str = "ncclLaunchKernelAfter_NoCuda";

/// The two probes of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanProbe {
    /// `ncclLaunchKernelAfter_NoCuda`.
    AfterLaunch,
    /// `hostStreamPlanCallback`.
    Callback,
}

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
        && ["ncclLaunchKernelAfter_NoCuda", "hostStreamPlanCallback"]
            .iter()
            .all(|name| resolution.functions(name).len() == 1)
}

/// Compiles one of the two probes.
pub(super) fn walk(resolution: &Resolution, function: &Function, place: PlanProbe) -> Compiled {
    let layouts = &resolution.layouts;
    let mut walk =
        Assembly { resolution, layouts, parts: Vec::new(), walk: Walk::default(), lists: Vec::new() };
    let head = walk.head(function, place)?;
    let (plan, spans) = walk.last_record(function, place)?;
    let Assembly { parts, walk, .. } = walk;
    let mut program = WalkProgram { head, parts, walk };
    program.walk.short = short(&program, &plan).unwrap_or_default();
    Ok((plan, ProbeKind::Plan(spans), Some(program)))
}

/// A walk in the making.
pub(super) struct Assembly<'a> {
    pub(super) resolution: &'a Resolution,
    pub(super) layouts: &'a Layouts,
    pub(super) parts: Vec<Part>,
    walk: Walk,
    lists: Vec<PlanList>,
}

impl Assembly<'_> {
    /// Loads the communicator and the plan, the words that both fetch plans start from.
    fn comm_and_plan(
        &self,
        builder: &mut PlanBuilder,
        function: &Function,
        place: PlanProbe,
    ) -> Result<(Slot, Slot), PlanError> {
        Ok(match place {
            PlanProbe::AfterLaunch => (
                builder.parameter(parameter(function, "comm")?),
                builder.parameter(parameter(function, "plan")?),
            ),
            PlanProbe::Callback => {
                let plan = builder.parameter(parameter(function, "plan_")?);
                (builder.load(plan, offset_of(self.layouts, kernel_plan::COMM)?, 8), plan)
            }
        })
    }

    /// Compiles the plan that finds the lists, and fills in the walk's own description.
    fn head(&mut self, function: &Function, place: PlanProbe) -> Result<FetchPlan, PlanError> {
        let mut head = PlanBuilder::new(self.resolution.machine);
        let (comm, plan) = self.comm_and_plan(&mut head, function, place)?;
        let of_comm = |field: FieldRef| -> Result<u32, PlanError> {
            let offset = field.need(self.layouts)?.offset;
            u32::try_from(offset).map_err(|_| field.missing().into())
        };
        let n_channels = of_comm(comm::N_CHANNELS)?;
        self.walk.rows_at = of_comm(comm::CHANNELS)?;
        self.walk.row_size = self.size(channel::STRUCT)?;
        self.walk.n_rows_at = [n_channels, of_comm(comm::NVLS_CHANNELS).unwrap_or(n_channels)];
        let hash = match comm::HASH.find(self.layouts) {
            Some(at) => load_field(&mut head, comm, &at)?,
            None => comm,
        };
        self.walk.identity = [comm.number(), hash.number()];
        let at = |field| offset_of(self.layouts, field);
        let mut heads = vec![at(kernel_plan::PROXY_OPS)?];
        if place == PlanProbe::AfterLaunch {
            heads.extend([
                at(kernel_plan::P2P_TASKS)?,
                at(kernel_plan::COLL_TASKS)?,
                at(kernel_plan::WORKS)?,
            ]);
        }
        let heads = head.load_words(plan, &heads);
        let [ops, rest @ ..] = heads.as_slice() else { return Err(kernel_plan::STRUCT.missing().into()) };
        let ops = *ops;
        if let [p2p, tasks, works] = *rest {
            self.coll_tasks(tasks)?;
            self.works(works, p2p)?;
            self.p2p_tasks(p2p)?;
            self.batches(&mut head, plan, p2p)?;
        }
        // Lists that only the launch needs are gone when a callback comes: device work lies in memory that
        // the group frees at its end.
        self.op_counts(&mut head, comm, ops)?;
        self.proxy_ops(ops, place)?;
        head.finish()
    }

    /// Compiles the record of the probe itself.
    fn last_record(
        &mut self,
        function: &Function,
        place: PlanProbe,
    ) -> Result<(FetchPlan, PlanSpans), PlanError> {
        let layouts = self.layouts;
        let mut last = PlanBuilder::after_walk(self.resolution.machine);
        let (comm, plan) = self.comm_and_plan(&mut last, function, place)?;
        let comm_spans = communicator(&mut last, self.resolution, comm)?;
        let mut places = vec![
            place_of(layouts, kernel_plan::PERSISTENT)?,
            place_of(layouts, kernel_plan::CHANNEL_MASK)?,
            place_of(layouts, kernel_plan::WORK_BYTES)?,
        ];
        if let Some(at) = kernel_plan::BY_CALLBACK.find(layouts) {
            places.push(place_in(&at)?);
        }
        let (plan_pointer, copied) = last.emit_and_copy_together(plan, &places);
        let [persistent, channel_mask, work_bytes, rest @ ..] = copied.as_slice() else {
            return Err(kernel_plan::STRUCT.missing().into());
        };
        let (persistent, channel_mask, work_bytes) = (*persistent, *channel_mask, *work_bytes);
        let by_callback = if let Some(span) = rest.first() {
            *span
        } else {
            let refs = load(&mut last, layouts, comm, comm::PERSISTENT_REFS)?;
            last.emit(refs)
        };
        let nodes = last.nodes();
        self.walk.nodes_at = nodes.first().map_or(0, |first| first.at);
        let nodes = self.lists.iter().copied().zip(nodes).collect();
        let spans = PlanSpans {
            comm: comm_spans,
            plan: plan_pointer,
            in_callback: place == PlanProbe::Callback,
            persistent,
            by_callback,
            channel_mask,
            work_bytes,
            nodes,
        };
        Ok((last.finish()?, spans))
    }

    fn size(&self, strukt: StructRef) -> Result<u32, PlanError> {
        u32::try_from(strukt.size(self.layouts)?).map_err(|_| strukt.missing().into())
    }

    fn add_list(&mut self, list: PlanList, queue: Queue) -> Result<(), PlanError> {
        let at = self.lists.len();
        *self.walk.queues.get_mut(at).ok_or(PlanError::TooManySteps)? = queue;
        self.lists.push(list);
        self.walk.n_queues += 1;
        Ok(())
    }

    pub(super) fn add_part(&mut self, name: &'static str, kind: ProbeKind, plan: &FetchPlan) -> u32 {
        self.parts.push(Part { name, kind, plan: *plan });
        u32::try_from(self.parts.len() - 1).unwrap_or(u32::MAX)
    }

    /// Adds a list, of whose nodes the first `bytes` are copied and, for ops, what their tasks say.
    fn node(&mut self, list: PlanList, bytes: u64) -> Result<Queue, PlanError> {
        let mut part = PlanBuilder::part(self.resolution.machine, NODE_GIVEN);
        let node = part.given(0);
        let (address, bytes) = part.emit_and_copy(node, 0, len(bytes)?);
        let is_op = list == PlanList::ProxyOps;
        let task = is_op.then(|| task(&mut part, self.layouts, node)).transpose()?;
        let spans = PlanNodeSpans { list, address, bytes, task };
        let plan = part.finish()?;
        // The walk looks for the node's bytes at this place in the record only.
        let is_there = plan.class == 0 && usize::from(bytes.at) == NODE_BYTES_AT;
        let copied = if is_there { bytes.len } else { 0 };
        let plan = self.add_part(list.name(), ProbeKind::PlanNode(spans), &plan);
        Ok(Queue { plan, copied, when: STACK_POINTER_SLOT, ..Queue::default() })
    }

    fn coll_tasks(&mut self, head: Slot) -> Result<(), PlanError> {
        let algorithm = task_coll::ALGORITHM.need(self.layouts)?;
        let end = task_coll::REG_BUFFER_TYPE.need(self.layouts)?;
        let gate =
            Gate { tag_at: bits_byte(&algorithm)?, fans: self.fans_by_algorithm()?, ..Gate::default() };
        *self.walk.gates.first_mut().ok_or(PlanError::TooManySteps)? = gate;
        let queue = Queue {
            next_at: near_offset_of(self.layouts, task_coll::NEXT)?,
            head: head.number(),
            first_gate: 0,
            n_gates: 1,
            gates_when: STACK_POINTER_SLOT,
            ..self.node(PlanList::CollTasks, end.offset + end.size)?
        };
        self.add_list(PlanList::CollTasks, queue)
    }

    fn works(&mut self, head: Slot, p2p_tasks: Slot) -> Result<(), PlanError> {
        let list = work_list::STRUCT.size(self.layouts)?;
        let coll = u64::from(self.size(dev_work_coll::STRUCT)?);
        let p2p = u64::from(self.size(dev_work_p2p::STRUCT)?);
        let of_work =
            |field: FieldRef| -> Result<u16, PlanError> { len(list + field.need(self.layouts)?.offset) };
        let p2p_type = enums::WORK_P2P.find(self.layouts).unwrap_or(0);
        let gate = |rank, rows| -> Result<Gate, PlanError> {
            Ok(Gate {
                only_at: near_offset_of(self.layouts, work_list::WORK_TYPE)?,
                only: u16::try_from(p2p_type).unwrap_or(NOWHERE),
                tag_at: of_work(rank)?,
                tag_len: 4,
                rows_at: of_work(rows)?,
                first_row_at: of_work(dev_work_p2p::CHANNEL_BASE)?,
                modulo_at: of_work(dev_work_p2p::N_P2P_CHANNELS)?,
                reversed: u16::from(parts_are_reversed(self.layouts)),
                one_fan: 1,
                fans: [Fan::default(); GATE_TAGS],
            })
        };
        let (mut send, mut receive) = (
            gate(dev_work_p2p::SEND_RANK, dev_work_p2p::SEND_N_CHANNELS)?,
            gate(dev_work_p2p::RECV_RANK, dev_work_p2p::RECV_N_CHANNELS)?,
        );
        send.fans[0] = self.p2p_fan(true)?;
        receive.fans[0] = self.p2p_fan(false)?;
        for (slot, gate) in self.walk.gates.iter_mut().skip(1).zip([send, receive]) {
            *slot = gate;
        }
        let queue = Queue {
            next_at: near_offset_of(self.layouts, work_list::NEXT)?,
            head: head.number(),
            first_gate: 1,
            n_gates: 2,
            gates_when: p2p_tasks.number(),
            ..self.node(PlanList::Works, list + coll.max(p2p))?
        };
        self.add_list(PlanList::Works, queue)
    }

    fn p2p_tasks(&mut self, head: Slot) -> Result<(), PlanError> {
        let queue = Queue {
            next_at: near_offset_of(self.layouts, task_p2p::NEXT)?,
            head: head.number(),
            ..self.node(PlanList::P2pTasks, u64::from(self.size(task_p2p::STRUCT)?))?
        };
        self.add_list(PlanList::P2pTasks, queue)
    }

    /// Adds the table that tells which batch a work is in: a p2p op's number in its plan is that of its
    /// batch.
    fn batches(&mut self, head: &mut PlanBuilder, plan: Slot, when: Slot) -> Result<(), PlanError> {
        let args_at = offset_of(self.layouts, kernel_plan::KERNEL_ARGS)?;
        let args_size = i64::from(self.size(dev_kernel_args::STRUCT)?);
        let count_at = place_of(self.layouts, kernel_plan::N_WORK_BATCHES)?;
        let (mut batches, mut count) = (when, when);
        head.unless_zero(when, |head| {
            let args = head.load(plan, args_at, 8);
            batches = head.offset(args, args_size);
            count = head.load(plan, count_at.0, count_at.1);
        });
        let size = self.size(dev_work_batch::STRUCT)?;
        let queue = Queue {
            stride: size,
            head: batches.number(),
            count: count.number(),
            when: when.number(),
            ..self.node(PlanList::Batches, u64::from(size))?
        };
        self.add_list(PlanList::Batches, queue)
    }

    /// Adds the counts of ops that were posted before: a queued op's number is relative to them.
    fn op_counts(&mut self, head: &mut PlanBuilder, comm: Slot, when: Slot) -> Result<(), PlanError> {
        let missing = shared_resources::P2P_OP_COUNT.missing();
        let (first, bytes) = op_counts_extent(self.layouts).ok_or(missing)?;
        let shared_at = offset_of(self.layouts, comm::SHARED_RESOURCES)?;
        let mut counts = when;
        let first = signed(first)?;
        head.unless_zero(when, |head| {
            let shared = head.load(comm, shared_at, 8);
            counts = head.offset(shared, first);
        });
        let queue = Queue {
            stride: u32::try_from(bytes).map_err(|_| missing)?,
            head: counts.number(),
            count: ONE_NODE,
            when: when.number(),
            ..self.node(PlanList::OpCounts, bytes)?
        };
        self.add_list(PlanList::OpCounts, queue)
    }

    fn proxy_ops(&mut self, head: Slot, place: PlanProbe) -> Result<(), PlanError> {
        let mut queue = Queue {
            next_at: near_offset_of(self.layouts, proxy_op::QUEUE_NEXT)?,
            head: head.number(),
            ..self.node(PlanList::ProxyOps, proxy_op::STRUCT.size(self.layouts)?)?
        };
        if place == PlanProbe::Callback {
            let gates = self.gates_of_ops()?;
            queue.n_gates = 3;
            queue.gates_when = STACK_POINTER_SLOT;
            self.walk.gates = gates;
        } else {
            let ring = usize::from(Algorithm::Ring.number());
            let rings =
                self.walk.gates.first().and_then(|gate| gate.fans.get(ring)).copied().unwrap_or_default();
            let last = MAX_GATES - 1;
            if let (Some(gate), Some(slot)) = (self.gate_of_grouped(rings)?, self.walk.gates.get_mut(last)) {
                *slot = gate;
                queue.first_gate = u8::try_from(last).unwrap_or(u8::MAX);
                queue.n_gates = 1;
                queue.gates_when = STACK_POINTER_SLOT;
            }
        }
        self.add_list(PlanList::ProxyOps, queue)
    }
}

/// Returns the byte that a bit field of 8 bits fills.
fn bits_byte(at: &Field) -> Result<u16, PlanError> {
    match at.bits {
        None => len(at.offset),
        Some(bits) if bits.width == 8 && bits.shift % 8 == 0 => len(at.offset + u64::from(bits.shift / 8)),
        Some(_) => {
            Err(MissingField { path: Some("algorithm, in a byte of its own"), ..task_coll::STRUCT.missing() }
                .into())
        }
    }
}

const _: () = assert!(MAX_QUEUES == 6, "as many as there are lists");
