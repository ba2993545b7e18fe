//! Rebuilds, from a walked plan, the calls that NCCL made for its ops.
//!
//! The result is what `ncclProxySaveOp` and `SaveProxy` would have shown call by call. Ops that need a proxy
//! are taken from the plan's queue; the others are derived.

mod collective;
mod launch;
mod p2p;
mod pat;
mod peers;
mod topology;

use std::collections::VecDeque;

use foldhash::HashMap;

use self::{p2p::Batches, topology::Topology};
use super::{
    call::ProxyCall,
    communicator::CommKey,
    counters::PlanCounters,
    flow::{RECORD_BYTES, WORDS_BYTES},
};
use crate::{
    decode::{
        CollTask, CommunicatorId, Connector, OneSidedCall, OpCounts, Origin, P2pTask, PlanEvent, PlanPart,
        PlanPartEvent, ProxyOp, ProxyOpEvent, ProxyPeerEvent, QueuedOp, TaskInfo, Work, WorkBatch, WorkKind,
    },
    wire::PlanList,
};
use nccl_library::nccl::Pattern;

/// Nodes and rows of one walk that are kept. The kernel side sends at most this many.
const MAX_PARTS: usize = 16_384;
/// Threads with a walk in progress. A walk takes one probe hit, so threads beyond that have lost the last
/// record of their walk.
const MAX_THREADS: usize = 65_536;
/// Plans that were posted by a callback before their launch was over.
const MAX_EARLY: usize = 4096;

/// Walks in progress, and what is known of communicators.
#[derive(Debug, Default)]
pub(super) struct PlanAssembler {
    threads: HashMap<(u32, u32), Vec<PlanPartEvent>>,
    topologies: HashMap<CommKey, Topology>,
    /// Calls that a callback posted before the plan's launch was walked, by process and plan.
    early: HashMap<(u32, u64), Vec<ProxyCall>>,
    /// Plans whose launch was walked and whose callback is to come.
    waiting: VecDeque<(u32, u64)>,
    /// Records of a process that were lost before a thread's last walk was over, by process and thread.
    lost: HashMap<(u32, u32), u64>,
    pub(super) counters: PlanCounters,
}

/// The parts of one walk, by list.
#[derive(Default)]
struct Parts {
    coll_tasks: Vec<CollTask>,
    p2p_tasks: Vec<P2pTask>,
    works: Vec<Work>,
    batches: Vec<WorkBatch>,
    op_counts: Option<OpCounts>,
    queued: Vec<QueuedOp>,
    one_sided: Vec<OneSidedCall>,
}

impl PlanAssembler {
    /// Returns about how many bytes of memory walks and communicators take.
    pub(super) fn held_bytes(&self) -> usize {
        let parts: usize = self.threads.values().map(Vec::len).sum();
        let early: usize = self.early.values().map(Vec::len).sum();
        parts * size_of::<PlanPartEvent>()
            + early * RECORD_BYTES
            + self.topologies.values().map(Topology::held_bytes).sum::<usize>()
            + self.topologies.len() * size_of::<(CommKey, Topology)>()
            + (self.threads.len() + self.lost.len() + self.waiting.len()) * WORDS_BYTES
    }

    /// Keeps a node or row until the walk's last record, which names the plan and the communicator.
    pub(super) fn part(&mut self, event: PlanPartEvent) {
        let thread = (event.origin.tgid, event.origin.tid);
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&thread) {
            self.threads.clear();
        }
        let parts = self.threads.entry(thread).or_default();
        // All records of a walk have the same time. Older records are of a walk whose end was lost.
        if parts.first().is_some_and(|first| first.origin.ts_ns != event.origin.ts_ns) {
            parts.clear();
            self.counters.incomplete += 1;
        }
        if parts.len() < MAX_PARTS {
            parts.push(event);
        }
    }

    /// Ends a walk. Gives the calls that NCCL made for the plan, in NCCL's order.
    pub(super) fn plan(&mut self, plan: &PlanEvent) -> Vec<ProxyCall> {
        let parts = self.parts_of(plan);
        let whole = self.check(plan, &parts);
        if self.lost.len() >= MAX_THREADS {
            self.lost.clear();
        }
        let Origin { tgid, tid, lost, .. } = plan.origin;
        // The plan counts its nodes, but not its rows.
        let lossy = self.lost.insert((tgid, tid), lost).unwrap_or(0) != lost || !whole;
        let mut calls = self.calls(plan, &parts, whole);
        for call in &mut calls {
            call.incomplete |= lossy;
        }
        calls
    }

    fn calls(&mut self, plan: &PlanEvent, parts: &Parts, whole: bool) -> Vec<ProxyCall> {
        let known_as = (plan.origin.tgid, plan.plan);
        if plan.in_callback {
            let posts = self.posts(plan, parts);
            if let Some(at) = self.waiting.iter().position(|waiting| *waiting == known_as) {
                if !plan.persistent {
                    self.waiting.remove(at);
                }
                return posts;
            }
            if plan.persistent {
                return posts; // captured before the session began
            }
            // The callback was faster than the thread that launches.
            if self.early.len() >= MAX_EARLY {
                self.early.clear();
            }
            self.early.insert(known_as, posts);
            return Vec::new();
        }
        if plan.one_sided {
            return Self::one_sided(plan, parts);
        }
        self.counters.plans += 1;
        if let Some(launch) = &plan.launch {
            return self.launched(plan, launch).into_iter().collect();
        }
        self.counters.empty += u64::from(plan.nodes.iter().all(|(_, nodes, cut)| *nodes == 0 && !cut));
        let mut calls = self.planned(plan, parts, whole);
        calls.extend(launch::grouped(plan, parts).filter(|_| whole));
        if let Some(posts) = self.early.remove(&known_as) {
            calls.extend(posts);
        } else if plan.by_callback || plan.persistent {
            if self.waiting.len() >= MAX_EARLY {
                self.waiting.pop_front();
            }
            if !self.waiting.contains(&known_as) {
                self.waiting.push_back(known_as);
            }
        } else {
            calls.extend(self.posts(plan, parts));
        }
        calls
    }

    /// Takes out the parts that came for this walk, and notes graphs and connectors.
    fn parts_of(&mut self, plan: &PlanEvent) -> Parts {
        let thread = (plan.origin.tgid, plan.origin.tid);
        let mut parts = Parts::default();
        let key = CommKey::new(plan.origin.tgid, &plan.comm);
        let events = self.threads.remove(&thread).unwrap_or_default();
        if self.topologies.len() >= super::session::MAX_COMMUNICATORS && !self.topologies.contains_key(&key) {
            return parts; // the session refuses the communicator too
        }
        let topology = self.topologies.entry(key).or_default();
        for event in events.into_iter().filter(|event| event.origin.ts_ns == plan.origin.ts_ns) {
            match event.part {
                PlanPart::CollTask(task) => parts.coll_tasks.push(task),
                PlanPart::P2pTask(task) => parts.p2p_tasks.push(task),
                PlanPart::Work(work) => parts.works.push(work),
                PlanPart::Batch(batch) => parts.batches.push(batch),
                PlanPart::OpCounts(counts) => parts.op_counts = Some(counts),
                PlanPart::ProxyOp(op) => parts.queued.push(*op),
                PlanPart::OneSided(call) => parts.one_sided.push(*call),
                PlanPart::Channel(channel, graphs) => topology.note_channel(channel, graphs),
                PlanPart::Connectors(channel, connectors) => topology.note_connectors(channel, connectors),
            }
        }
        parts
    }

    /// Tells whether every node came that ops are derived from; counts what did not come.
    fn check(&mut self, plan: &PlanEvent, parts: &Parts) -> bool {
        let (mut whole, mut cut) = (true, false);
        for (list, nodes, was_cut) in &plan.nodes {
            let came = match list {
                PlanList::CollTasks => parts.coll_tasks.len(),
                PlanList::Works => parts.works.len(),
                PlanList::P2pTasks => parts.p2p_tasks.len(),
                PlanList::Batches => parts.batches.len(),
                PlanList::OpCounts => usize::from(parts.op_counts.is_some()),
                PlanList::ProxyOps => parts.queued.len(),
                PlanList::OneSidedByProxy => parts.one_sided.iter().filter(|call| call.by_proxy).count(),
                PlanList::OneSidedByCopy => parts.one_sided.iter().filter(|call| !call.by_proxy).count(),
            };
            whole &= u64::try_from(came) == Ok(*nodes);
            cut |= *was_cut;
        }
        if !whole {
            self.counters.incomplete += 1;
        } else if cut {
            self.counters.cut += 1;
            let seen: u64 = parts.works.iter().map(|work| work.size).sum();
            self.counters.work_bytes_cut += plan.work_bytes.saturating_sub(seen);
        }
        whole
    }

    /// Returns the calls of the plan pass.
    fn planned(&mut self, plan: &PlanEvent, parts: &Parts, whole: bool) -> Vec<ProxyCall> {
        let derived = if whole { self.derived(plan, parts) } else { Vec::new() };
        // A derived op that is also queued is taken from the queue.
        let mut of: HashMap<(u64, u32, Pattern, i32), VecDeque<&QueuedOp>> = HashMap::default();
        for queued in &parts.queued {
            of.entry(identity(&queued.op)).or_default().push_back(queued);
        }
        let mut ops = Vec::new();
        for (mut op, task) in derived {
            let queued = of.get_mut(&identity(&op)).and_then(VecDeque::pop_front);
            if let Some(queued) = queued.filter(|queued| differs(&op, &queued.op)) {
                self.counters.derived_otherwise += 1;
                op = queued.op.clone();
            }
            ops.push((QueuedOp { address: 0, op, task }, queued.map(|queued| queued.op.nsteps)));
        }
        let is_left = |queued: &&QueuedOp| {
            of.get(&identity(&queued.op))
                .is_some_and(|left| left.iter().any(|op| op.address == queued.address))
        };
        let left = parts.queued.iter().filter(is_left);
        ops.extend(left.map(|queued| (QueuedOp { address: 0, ..queued.clone() }, Some(queued.op.nsteps))));
        ops.into_iter()
            .filter_map(|(op, left)| {
                let call = self.call(plan, plan.comm, true, op, left)?;
                Some(ProxyCall { derived: left.is_none(), queued: left.is_some(), ..call })
            })
            .collect()
    }

    /// Returns the ops that follow from tasks and device work, in NCCL's order.
    fn derived(&mut self, plan: &PlanEvent, parts: &Parts) -> Vec<(ProxyOp, Option<TaskInfo>)> {
        let topology = self.topologies.get(&CommKey::new(plan.origin.tgid, &plan.comm));
        let batches = Batches::new(plan, &parts.batches, p2p::work_size(&parts.works));
        let (mut colls, mut p2ps) = (parts.coll_tasks.iter(), parts.p2p_tasks.iter().peekable());
        let (mut ops, mut number, mut offset) = (Vec::new(), 0, 0);
        for work in &parts.works {
            let found = match &work.what {
                WorkKind::Coll(coll) => colls.next().and_then(|task| {
                    let graphs = topology?.channels.get(&coll.channels.0)?;
                    let ops = collective::ops(plan, graphs, task, coll, number)?;
                    number += 1;
                    Some(ops.into_iter().map(|op| (op, Some(task.info.clone()))).collect())
                }),
                WorkKind::P2p(p2p) => {
                    let [receive, send] = &p2p.sides;
                    // The send is queued before the receive (scheduleP2pTasksToPlan); a side without channels
                    // has no task.
                    let mut take = |wanted: bool, function: &str, peer: i32| {
                        p2ps.next_if(|task| {
                            wanted && task.peer == peer && task.function.as_deref() == Some(function)
                        })
                    };
                    let send_task = take(send.n_channels != 0, "Send", send.peer);
                    let receive_task = take(receive.n_channels != 0, "Recv", receive.peer);
                    p2p::ops(plan, p2p, [receive_task, send_task], &batches, offset)
                }
                // The ops do not follow from the work. If each channel has one in the queue, these are all;
                // if none has, the launch has an op of its own.
                WorkKind::Broadcast(_) => (is_queued_everywhere(plan, parts)
                    || launch::grouped(plan, parts).is_some())
                .then(Vec::new),
                WorkKind::Other => None,
            };
            match found {
                Some(found) => ops.extend::<Vec<_>>(found),
                None => self.counters.underived += 1,
            }
            offset += work.size;
        }
        ops
    }

    /// Returns the calls of the post pass (`uploadProxyOps`, src/enqueue.cc).
    fn posts(&mut self, plan: &PlanEvent, parts: &Parts) -> Vec<ProxyCall> {
        // Without the counts the final numbers of ops are not known, and their plan passes wait.
        let Some(counts) = &parts.op_counts else { return Vec::new() };
        let post = |queued: &QueuedOp| {
            let relative = queued.op.op_count;
            // Without its channel's count an op's final number is not known.
            let before = match relative & 1 {
                1 => *counts.p2p.get(usize::try_from(queued.op.channel).ok()?)?,
                _ => counts.collectives,
            };
            let op = ProxyOp { op_count: before.wrapping_mul(2).wrapping_add(relative), ..queued.op.clone() };
            // When NCCL posts the op it has counted the plan's collectives.
            let counted = |launched: u64| launched.saturating_add(relative >> 1).saturating_add(1);
            let comm = CommunicatorId { launched: plan.comm.launched.map(counted), ..plan.comm };
            let (address, task, left) = (queued.address, queued.task.clone(), Some(op.nsteps));
            self.call(plan, comm, false, QueuedOp { address, op, task }, left)
        };
        parts.queued.iter().filter_map(post).collect()
    }

    /// Rebuilds a call of `ncclProxySaveOp` with its calls of `SaveProxy`. `left`: the steps of the last
    /// `SaveProxy`, which NCCL leaves in an op that it queues.
    fn call(
        &mut self,
        plan: &PlanEvent,
        comm: CommunicatorId,
        plan_pass: bool,
        op: QueuedOp,
        left: Option<u64>,
    ) -> Option<ProxyCall> {
        let QueuedOp { address: op_pointer, op, task } = op;
        let topology = self.topologies.get(&CommKey::new(plan.origin.tgid, &comm));
        let Some((topology, graphs)) = topology.and_then(|all| Some((all, all.channels.get(&op.channel)?)))
        else {
            self.counters.without_graphs += 1;
            return None;
        };
        let origin = plan.origin;
        let (calls, nsteps) = if op.pattern.is_pat() {
            let mut found = pat::calls(&op, graphs, &plan.comm, plan.pat);
            let differs = left.is_some_and(|left| found.forget_unless(left));
            self.counters.derived_otherwise += u64::from(differs && plan_pass);
            self.counters.without_messages += u64::from(found.nsteps.is_none() && plan_pass);
            (found.calls, found.nsteps)
        } else if let Some(slices) = op.slices {
            let (calls, nsteps) = peers::of_grouped(graphs, slices).into_iter().unzip();
            (calls, Some(nsteps))
        } else {
            let calls = peers::calls(&op, graphs, plan.comm.rank);
            let nsteps = vec![op.nsteps; calls.len()];
            (calls, Some(nsteps))
        };
        // A queued op has the steps of its last peer, not the steps that it was made with.
        let op = if plan_pass && op.slices.is_some() { ProxyOp { nsteps: 0, ..op } } else { op };
        let mut incomplete = false;
        let steps_of = |at: usize| nsteps.as_ref().and_then(|nsteps| nsteps.get(at)).copied();
        let peers = (0..)
            .zip(calls)
            .filter(|(_, (_, peer, _))| *peer >= 0)
            .filter_map(|(at, (direction, peer, index))| {
                let known = topology.connectors.get(&(op.channel, peer, direction, index)).copied();
                if nsteps.is_none() && known.is_none_or(|connector| connector.transport.is_empty()) {
                    return None; // never connected, so the algorithm takes no step to it
                }
                incomplete |= known.is_none() && peer < plan.comm.n_ranks;
                let connector = known.unwrap_or_else(|| Connector::unknown(direction, peer, index));
                Some(ProxyPeerEvent { origin, op_pointer, plan_pass, nsteps: steps_of(at), connector })
            })
            .collect();
        let (ring, tree) = (graphs.ring, graphs.tree);
        let event = ProxyOpEvent { origin, comm, op_pointer, plan_pass, op, ring, tree, task };
        Some(ProxyCall { event, peers, incomplete, derived: false, queued: !plan_pass })
    }
}

/// Tells whether the queued op differs from the derived one, apart from what a queued op does not have: its
/// own steps, as NCCL overwrites them from peer to peer, and what only the device work says.
fn differs(derived: &ProxyOp, queued: &ProxyOp) -> bool {
    let nsteps = if derived.pattern.is_pat() { derived.nsteps } else { queued.nsteps };
    let channel_size = queued.channel_size.or(derived.channel_size);
    let ProxyOp { last_chunk, part_bytes, .. } = *derived;
    *derived != ProxyOp { nsteps, channel_size, last_chunk, part_bytes, ..queued.clone() }
}

/// Tells whether each channel of the plan has an op of grouped broadcasts in the queue.
fn is_queued_everywhere(plan: &PlanEvent, parts: &Parts) -> bool {
    let grouped = parts.queued.iter().filter(|queued| queued.op.slices.is_some());
    let channels = grouped.filter_map(|queued| 1u64.checked_shl(queued.op.channel));
    channels.fold(0, |all, channel| all | channel) & plan.channel_mask == plan.channel_mask
}

/// Returns the properties that distinguish an op from others of its plan.
fn identity(op: &ProxyOp) -> (u64, u32, Pattern, i32) {
    (op.op_count, op.channel, op.pattern, if op.pattern.is_p2p() { op.root } else { 0 })
}

#[cfg(test)]
mod tests;
