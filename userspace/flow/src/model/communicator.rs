//! A communicator as one process has it: its numbers, its waiting ops, its API calls.

use std::collections::VecDeque;

use super::{
    call::ProxyCall,
    flow::{FlowCommunicator, FlowRecord},
    joined_calls::{JoinedCall, JoinedCalls},
    post_match::{Matched, PostMatcher},
    sequence::Sequencer,
};
use crate::{
    decode::{ApiCallEvent, CommunicatorId, ProxyOp, ProxyOpEvent},
    schema::{StackId, StackOf},
};
use nccl_library::nccl::Pattern;

/// API calls that are kept until their op is planned. Calls that never become a proxy op (one rank, zero
/// elements) are pushed out by later ones.
const MAX_API_CALLS: usize = 4096;

/// Identity of a communicator within a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommKey {
    /// Process id in the initial PID namespace.
    pub tgid: u32,
    pub pointer: u64,
    pub hash: Option<u64>,
    pub rank: i32,
}

impl CommKey {
    pub(super) fn new(tgid: u32, id: &CommunicatorId) -> Self {
        Self { tgid, pointer: id.pointer, hash: id.hash, rank: id.rank }
    }
}

/// State of one communicator.
#[derive(Debug)]
pub(super) struct Communicator {
    flow: FlowCommunicator,
    sequencer: Sequencer,
    pub(super) posts: PostMatcher,
    api_calls: VecDeque<ApiCallEvent>,
    key: CommKey,
    /// Post passes whose plan pass was not seen.
    pub(super) unplanned_posts: u64,
}

impl Communicator {
    pub(super) fn new(key: CommKey, n_ranks: i32, instance: u32) -> Self {
        Self {
            flow: FlowCommunicator { hash: key.hash, rank: key.rank, n_ranks, instance },
            sequencer: Sequencer::default(),
            posts: PostMatcher::default(),
            api_calls: VecDeque::new(),
            key,
            unplanned_posts: 0,
        }
    }

    /// Keeps a call of the API, whose op is planned later.
    pub(super) fn api_call(&mut self, call: ApiCallEvent) {
        if self.api_calls.len() == MAX_API_CALLS {
            self.api_calls.pop_front();
        }
        self.api_calls.push_back(call);
    }

    /// Takes a complete call of `ncclProxySaveOp`; returns the record that it completes. `planned` is shown the
    /// op of a plan pass.
    pub(super) fn proxy_call(
        &mut self,
        call: ProxyCall,
        calls: &mut JoinedCalls,
        planned: &mut impl FnMut(&FlowRecord),
    ) -> Option<FlowRecord> {
        if call.event.op.pattern == Pattern::Profiler {
            return None; // the bookkeeping of a profiler plugin: no data flows
        }
        if call.event.plan_pass { self.plan(call, calls, planned) } else { self.post(call, calls) }
    }

    /// Tells whether this post pass is that of a graph's replay, of an op that was posted before.
    pub(super) fn is_replay(&self, event: &ProxyOpEvent) -> bool {
        !event.plan_pass && !self.posts.waits_for(event) && self.posts.replayed(event).is_some()
    }

    fn plan(
        &mut self,
        call: ProxyCall,
        calls: &mut JoinedCalls,
        planned: &mut impl FnMut(&FlowRecord),
    ) -> Option<FlowRecord> {
        let event = &call.event;
        let p2p = event.op.pattern.is_p2p();
        let open = self.sequencer.plan(event)?;
        if open.part() == 0 {
            // Of several calls in one launch, none is the launch's.
            let is_of_one = event.op.launch.as_ref().is_none_or(|launch| launch.calls == Some(1));
            open.joined = if is_of_one {
                calls.join(&self.key, event, open.seq)
            } else {
                JoinedCall { number: calls.unknown(), ..JoinedCall::default() }
            };
            open.called = take_api_call(&mut self.api_calls, event);
        }
        let mut record = FlowRecord::new(self.flow, open.seq, call);
        record.api_call = open.joined.number;
        let called_at = |id: Option<u64>| id.map(|id| (StackId(id), StackOf::Call));
        record.stack = called_at(open.joined.stack).or(record.stack);
        if let Some(api) = &open.called {
            record.count = record.count.or(Some(api.count));
            record.api_name = Some(api.name.clone());
            record.stack = called_at(api.origin.stack).or(record.stack);
        }
        record.p2p_part = p2p.then_some(open.part());
        if !record.is_copy_to_self() {
            planned(&record);
        }
        if record.is_copy_to_self() {
            None
        } else if record.needed {
            self.posts.wait(record)
        } else {
            Some(record)
        }
    }

    fn post(&mut self, call: ProxyCall, calls: &JoinedCalls) -> Option<FlowRecord> {
        let event = &call.event;
        let record = match self.posts.post(event) {
            Matched::Planned(mut record) => {
                record.op.op_count = event.op.op_count;
                record.posted_at = Some(event.origin);
                *record
            }
            Matched::Replay(record) => FlowRecord {
                seq: self.sequencer.post(event),
                captured_seq: Some(record.seq),
                api_call: calls.unknown(),
                // The captured op was completed with the device work. The replay has a number of its own, and
                // NCCL overwrites the steps of PAT.
                op: ProxyOp { op_count: event.op.op_count, nsteps: event.op.nsteps, ..record.op },
                planned_at: None,
                posted_at: Some(event.origin),
                ..*record
            },
            Matched::Unknown => {
                self.unplanned_posts += 1;
                let record = FlowRecord::new(self.flow, self.sequencer.post(event), call);
                FlowRecord { api_call: calls.unknown(), ..record }
            }
        };
        (!record.is_copy_to_self()).then_some(record)
    }

    /// Returns about how many bytes of memory the communicator takes.
    pub(super) fn held_bytes(&self) -> usize {
        size_of::<Self>()
            + self.posts.held_bytes()
            + self.sequencer.held_bytes()
            + self.api_calls.len() * size_of::<ApiCallEvent>()
    }
}

/// Takes the API call that the op comes from: the first of its function (for p2p: and peer). Where
/// several collectives of the same function wait, NCCL may have sorted them by size, so the call is
/// returned only if their counts agree.
fn take_api_call(calls: &mut VecDeque<ApiCallEvent>, event: &ProxyOpEvent) -> Option<ApiCallEvent> {
    let p2p = event.op.pattern.is_p2p();
    let coll = event.op.coll.as_deref();
    let fits = |call: &ApiCallEvent| {
        if p2p {
            call.function.as_deref() == coll && call.root == event.op.root
        } else {
            match (coll, call.function.as_deref()) {
                (Some(coll), called) => called == Some(coll),
                // Before 2.20 the op does not name its function.
                (None, called) => !matches!(called, Some("Send" | "Recv")),
            }
        }
    };
    let at = calls.iter().position(fits)?;
    let ambiguous = !p2p && {
        let count = calls.get(at).map(|call| call.count);
        calls.iter().filter(|call| fits(call)).any(|call| Some(call.count) != count)
    };
    let call = calls.remove(at)?;
    (!ambiguous).then_some(call)
}
