//! A session's model of a process: takes events, gives out flow records.

use foldhash::HashMap;

use super::{
    call::{CallAssembler, ProxyCall},
    communicator::{CommKey, Communicator},
    counters::ModelCounters,
    execution::{StepKey, executing_rank},
    flow::FlowRecord,
    graphs::Graphs,
    measured::{Executions, Sampling},
    node::Node,
    plan::PlanAssembler,
    post_match::is_posted_copy,
    proxy_ranks::CommunicatorRank,
};
use crate::{
    decode::{Event, Origin, ProxyOpEvent, ProxyPeerEvent, ProxyRank, ProxyStepEvent, StepMoment},
    schema::Outcome,
};

/// Communicators that are kept apart. A process has some tens; one that claims more wants to fill our memory.
pub(super) const MAX_COMMUNICATORS: usize = 65_536;

/// State of a session.
#[derive(Debug, Default)]
pub struct Session {
    calls: CallAssembler,
    plans: PlanAssembler,
    communicators: HashMap<CommKey, Communicator>,
    graphs: Graphs,
    /// Counts, without those that the session's parts keep themselves.
    counters: ModelCounters,
    /// Steps are traced: posted ops wait for their messages.
    measures_steps: bool,
    executions: Executions,
    /// Another process executes some of the ops.
    posts_elsewhere: bool,
}

impl Session {
    /// Makes a session in which steps are traced (`measures_steps`) or not.
    pub fn new(measures_steps: bool) -> Self {
        Self { measures_steps, ..Self::default() }
    }

    /// Measures only the messages of ops that `sampling` takes.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.executions.sampling = sampling;
        self
    }

    /// Takes an event; `out` gets what it completes. `node`: the state that sessions of all processes share.
    pub fn apply(&mut self, event: Event, node: &mut Node, out: &mut impl FnMut(FlowRecord)) {
        match event {
            Event::ProxyOp(event) => {
                let origin = event.origin;
                // NCCL serves one call of a communicator at a time: calls that other threads had open on it
                // are over.
                let key = CommKey::new(event.origin.tgid, &event.comm);
                let over = self.calls.end_where(&origin, |open| {
                    open.event.plan_pass == event.plan_pass
                        && open.event.origin.tid != event.origin.tid
                        && CommKey::new(open.event.origin.tgid, &open.event.comm) == key
                });
                self.complete_all(over, &origin, node, out);
                let before = self.calls.begin(*event);
                self.complete_all(before, &origin, node, out);
                // A replay's peers are those of the op that was captured, so the call need not be over. Its
                // thread can be silent from now on, and what other threads plan comes after the replay.
                let communicator = self.communicators.get(&key);
                let is_replay = |call: &ProxyCall| {
                    communicator.is_some_and(|communicator| communicator.is_replay(&call.event))
                };
                let replay = self.calls.give_out(&origin, is_replay);
                self.complete_all(replay, &origin, node, out);
            }
            // Events of another level: the pipeline gives them to the API's side of the session.
            Event::ApiLine(_) | Event::ApiEntry(_) | Event::ApiReturn(_) | Event::Stack(_) => {}
            Event::ProxyPeer(peer) => {
                self.posts_elsewhere |= peer.connector.elsewhere().is_some();
                self.calls.peer(peer);
            }
            Event::PlanPart(part) => self.plans.part(part),
            Event::Plan(plan) => {
                if !plan.in_callback {
                    node.calls.launched(&CommKey::new(plan.origin.tgid, &plan.comm));
                }
                let calls = self.plans.plan(&plan);
                let is_captured = plan.persistent && !plan.in_callback;
                if is_captured {
                    self.graphs.begin(plan.origin.tid);
                }
                self.complete_all(calls, &plan.origin, node, out);
                if !plan.in_callback {
                    self.graphs.launched_plan(&plan);
                }
            }
            Event::Graph(graph) => {
                self.called(&graph.origin, node, out);
                self.graphs.apply(&graph, out);
            }
            Event::ProxyStep(mut step) => {
                if !self.step(&mut step, node, out) {
                    self.unjoined(&step);
                }
            }
            Event::SendSize(size) => self.executions.send_sizes.take(&size),
            Event::CallWithoutCommunicator(by) => self.called(&by, node, out),
            Event::ApiCall(call) => {
                self.called(&call.origin, node, out);
                self.graphs.begin(call.origin.tid);
                let key = CommKey::new(call.origin.tgid, &call.comm);
                if self.communicators.len() < MAX_COMMUNICATORS {
                    self.communicator(key, call.comm.n_ranks, node).api_call(call);
                }
            }
        }
    }

    /// Takes note that records were passed over, which nobody counts as lost.
    pub fn passed_over(&mut self) {
        self.graphs.forget();
    }

    /// Completes what a thread was planning, as the program calls the API there.
    pub fn called(&mut self, by: &Origin, node: &mut Node, out: &mut impl FnMut(FlowRecord)) {
        let done = self.calls.end(by);
        self.complete_all(done, by, node, out);
    }

    /// Ends the session: what is still open goes out as it is. `lost`: records of a process that were lost
    /// until now.
    pub fn finish(&mut self, lost: impl Fn(u32) -> u64, node: &mut Node, out: &mut impl FnMut(FlowRecord)) {
        for call in self.calls.drain(&lost) {
            let by = Origin { lost: lost(call.event.origin.tgid), ..call.event.origin };
            self.complete(call, &by, node, out);
        }
        for (key, communicator) in &mut self.communicators {
            node.instances.forget(key);
            let mut left: Vec<FlowRecord> = communicator.posts.drain().collect();
            left.sort_by_key(|record| (record.seq, record.op.channel));
            self.counters.unposted += left.len() as u64;
            left.into_iter().for_each(&mut *out);
        }
        for left in self.executions.drain(lost, &node.proxy_ranks) {
            self.count_unfinished(&left);
            out(left);
        }
    }

    /// Returns about how many bytes of memory the session takes: memory is shared out to the sessions of many
    /// processes.
    pub fn held_bytes(&self) -> usize {
        size_of::<Self>()
            + self.calls.held_bytes()
            + self.plans.held_bytes()
            + self.communicators.values().map(Communicator::held_bytes).sum::<usize>()
            + self.executions.held_bytes()
            + self.graphs.held_bytes()
    }

    pub fn counters(&self) -> ModelCounters {
        ModelCounters {
            orphan_peers: self.calls.orphan_peers,
            unplanned_posts: self.communicators.values().map(|known| known.unplanned_posts).sum(),
            left_out: self.executions.left_out,
            plans: self.plans.counters,
            graphs: self.graphs.counters,
            ..self.counters
        }
    }

    fn complete_all(
        &mut self,
        calls: impl IntoIterator<Item = ProxyCall>,
        by: &Origin,
        node: &mut Node,
        out: &mut impl FnMut(FlowRecord),
    ) {
        for call in calls {
            self.complete(call, by, node, out);
        }
    }

    /// Completes a call, because of `by`, a record of its process.
    fn complete(&mut self, call: ProxyCall, by: &Origin, node: &mut Node, out: &mut impl FnMut(FlowRecord)) {
        let key = CommKey::new(call.event.origin.tgid, &call.event.comm);
        if self.communicators.len() >= MAX_COMMUNICATORS && !self.communicators.contains_key(&key) {
            self.counters.refused += 1;
            return;
        }
        self.note_proxy_ranks(&call, node);
        let n_ranks = call.event.comm.n_ranks;
        if !call.event.plan_pass && !self.communicator(key, n_ranks, node).posts.waits_for(&call.event) {
            // CUDA's callback thread posts what another thread planned, and that thread has done nothing
            // since. NCCL posts nothing before its plan is complete, so the call that planned the op is over.
            // A call that began after the post is of another op that only looks alike.
            let posted_at = call.event.origin;
            let planned = self.calls.end_where(by, |open| {
                open.event.plan_pass
                    && open.event.origin.tid != posted_at.tid
                    && open.event.origin.ts_ns <= posted_at.ts_ns
                    && CommKey::new(open.event.origin.tgid, &open.event.comm) == key
                    && is_posted_copy(&open.event.op, &call.event.op)
            });
            self.complete_all(planned, by, node, out);
        }
        self.communicator(key, n_ranks, node);
        let Self { communicators, graphs, .. } = self;
        let Some(communicator) = communicators.get_mut(&key) else { return };
        let mut planned = |record: &FlowRecord| {
            if let Some(origin) = record.planned_at {
                graphs.planned(origin.tid, key.pointer, record);
            }
        };
        if let Some(record) = communicator.proxy_call(call, &mut node.calls, &mut planned) {
            if record.needed && record.posted_at.is_none() {
                self.counters.unposted += 1;
            }
            if !(record.posted_at.is_some() && self.measures_steps) {
                out(record);
                return;
            }
            for ended in self.executions.begin(by, record, &node.proxy_ranks) {
                self.count_unfinished(&ended);
                out(ended);
            }
        }
    }

    /// Notes the ranks that the call shows its process to have.
    fn note_proxy_ranks(&self, call: &ProxyCall, node: &mut Node) {
        if !self.measures_steps {
            return;
        }
        let (comm, tgid) = (&call.event.comm, call.event.origin.tgid);
        let mut note = |rank| node.proxy_ranks.note_owner(CommunicatorRank { hash: comm.hash, rank }, tgid);
        note(ProxyRank::Rank(comm.rank));
        // A rank whose proxy is in this process belongs to this process. (Up to 2.22 src/transport/shm.cc
        // numbers the rank otherwise where it receives.)
        for peer in
            call.peers.iter().filter(|peer| matches!(peer.connector.transport.as_str(), "NET" | "P2P"))
        {
            if let Some(owner) = peer.connector.owner.filter(|owner| owner.same_process) {
                note(owner.rank);
            }
        }
    }

    fn count_unfinished(&mut self, record: &FlowRecord) {
        match record.outcome {
            Some(Outcome::LeftOut) => {}
            Some(Outcome::ProxyNotKnown) => self.counters.proxy_not_known += 1,
            _ if record.peers.iter().any(|peer| peer.connector.has_proxy) => self.counters.unfinished += 1,
            _ => {}
        }
    }

    /// Takes the step of a message in this process's proxy. False: no op of this process is known for it.
    /// Then the step may be of [another process's op](Self::step_elsewhere), or of [no known
    /// op](Self::unjoined).
    pub fn step(
        &mut self,
        step: &mut ProxyStepEvent,
        node: &mut Node,
        out: &mut impl FnMut(FlowRecord),
    ) -> bool {
        if step.moment == StepMoment::Other {
            return true;
        }
        self.executions.settle_size(step);
        self.note_step(StepKey::of_event(step), step, &step.origin, node, out)
    }

    /// Counts a step of the process whose op is not known.
    pub fn unjoined(&mut self, step: &ProxyStepEvent) {
        self.counters.unjoined_steps += 1;
        self.counters.foreign_messages +=
            u64::from(step.moment == StepMoment::Stop && step.is_foreign == Some(true));
    }

    /// Tells whether ops that were first seen before this moment still wait for messages.
    pub fn waits_for_ops_before(&self, ts_ns: u64) -> bool {
        let mut open = self.executions.by_number.values().map(|open| open.record.origin());
        open.any(|origin| origin.is_some_and(|origin| origin.ts_ns < ts_ns))
    }

    /// Tells whether other processes execute ops of this one.
    pub fn posts_elsewhere(&self) -> bool {
        self.posts_elsewhere || !self.executions.elsewhere.is_empty()
    }

    /// Returns the ranks one of whose proxies must have made this step, if the step is of an op that this
    /// process, `tgid`, posted.
    pub fn executors(&self, tgid: u32, step: &ProxyStepEvent) -> Vec<CommunicatorRank> {
        let mut ranks: Vec<CommunicatorRank> = self.executions.executors(tgid, step).collect();
        for open in self.calls.posting(tgid, step.op_count) {
            let connectors = open.peers.iter().map(|peer| &peer.connector);
            for connector in connectors.filter(|it| it.has_proxy && it.connection == step.connection) {
                if let Some(at) = executing_rank(open.event.comm.hash, connector)
                    && !ranks.contains(&at)
                {
                    ranks.push(at);
                }
            }
        }
        ranks
    }

    /// Takes the step of a message of an op that this process posted, which the proxy of the rank `at` made.
    /// `by`: this process, now. False: the step is of no op after all.
    pub fn step_elsewhere(
        &mut self,
        at: CommunicatorRank,
        step: &ProxyStepEvent,
        by: &Origin,
        node: &mut Node,
        out: &mut impl FnMut(FlowRecord),
    ) -> bool {
        let key = StepKey { tgid: by.tgid, elsewhere: Some(at), ..StepKey::of_event(step) };
        self.note_step(key, step, by, node, out)
    }

    /// Notes a step with its op. The proxy can be at a message before the thread that posted the op has done
    /// anything else, and so before its call is known to be complete. NCCL posts only complete calls, so the
    /// step shows that the call is over.
    fn note_step(
        &mut self,
        key: StepKey,
        step: &ProxyStepEvent,
        by: &Origin,
        node: &mut Node,
        out: &mut impl FnMut(FlowRecord),
    ) -> bool {
        if self.calls.has_open() && !self.executions.by_key.contains_key(&key) {
            let posting = self.calls.end_where(by, |open| {
                let ProxyOpEvent { origin, comm, op, plan_pass, .. } = &open.event;
                let is_it = |peer: &ProxyPeerEvent| {
                    StepKey::of_part(origin.tgid, comm.hash, op.op_count, &peer.connector) == key
                };
                !plan_pass && open.peers.iter().any(is_it)
            });
            self.complete_all(posting, by, node, out);
        }
        match self.executions.note(key, step, by.lost, &node.proxy_ranks) {
            Ok(Some(record)) => {
                self.counters.measured_otherwise += u64::from(record.outcome == Some(Outcome::OtherBytes));
                out(record);
                true
            }
            Ok(None) => true,
            Err(()) => false,
        }
    }

    fn communicator(&mut self, key: CommKey, n_ranks: i32, node: &mut Node) -> &mut Communicator {
        let instances = &mut node.instances;
        self.communicators.entry(key).or_insert_with(|| Communicator::new(key, n_ranks, instances.of(key)))
    }
}
