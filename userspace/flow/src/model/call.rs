//! Puts an `ncclProxySaveOp` and the `SaveProxy` calls inside it together, per thread.

use foldhash::HashMap;

use crate::decode::{Origin, ProxyOpEvent, ProxyPeerEvent};

/// Peers of one call that are kept. NCCL has eight at most, and for PAT one per power of two of the ranks; a
/// target that has more wants to fill our memory.
const MAX_PEERS: usize = 256;

/// A call of `ncclProxySaveOp` with the peers that it was made for.
#[derive(Clone, Debug)]
pub struct ProxyCall {
    pub event: ProxyOpEvent,
    pub peers: Vec<ProxyPeerEvent>,
    /// Records of the process were lost between the call's first record and the one that showed that the call
    /// was over: some of its peers can be missing.
    pub incomplete: bool,
    /// The op itself was not seen: it follows from the device work of its plan.
    pub derived: bool,
    /// The op stands in its plan's queue: NCCL posts it, whatever is known of its connectors.
    pub queued: bool,
}

impl ProxyCall {
    /// Ends the call, because of a record that says that `lost` records of the process were lost before it.
    fn over(mut self, lost: u64) -> Self {
        self.incomplete = self.event.origin.lost != lost;
        self
    }
}

#[derive(Debug)]
struct OpenCall {
    call: ProxyCall,
    /// The call was given out before it was over; what still comes of it is known already.
    is_given_out: bool,
}

/// Calls in progress.
///
/// Nothing is probed at the end of `ncclProxySaveOp`, so a call is complete when its thread does something
/// else, or when the session ends: one call per thread is held back.
#[derive(Debug, Default)]
pub struct CallAssembler {
    open: HashMap<(u32, u32), OpenCall>,
    /// `SaveProxy` records whose `ncclProxySaveOp` was not seen: its record was lost, or the probes were
    /// armed in between. After a loss any such record counts as one, as another op at the same address looks
    /// the same.
    pub orphan_peers: u64,
}

impl CallAssembler {
    /// Begins an `ncclProxySaveOp` on its thread; returns the one before it on that thread, which is
    /// complete.
    pub fn begin(&mut self, event: ProxyOpEvent) -> Option<ProxyCall> {
        let Origin { tgid, tid, lost, .. } = event.origin;
        let call = ProxyCall { event, peers: Vec::new(), incomplete: false, derived: false, queued: false };
        let before = self.open.insert((tgid, tid), OpenCall { call, is_given_out: false });
        before.and_then(OpenCall::left).map(|call| call.over(lost))
    }

    /// Gives out the call that a thread has open, if `is_such` says so, before it is over and without all of
    /// its peers. The call is not given out again.
    pub fn give_out(
        &mut self,
        thread: &Origin,
        is_such: impl FnOnce(&ProxyCall) -> bool,
    ) -> Option<ProxyCall> {
        let open = self.open.get_mut(&(thread.tgid, thread.tid))?;
        let gives = !open.is_given_out && is_such(&open.call);
        open.is_given_out |= gives;
        gives.then(|| open.call.clone())
    }

    /// Takes a `SaveProxy` inside the thread's call.
    pub fn peer(&mut self, peer: ProxyPeerEvent) {
        let thread = (peer.origin.tgid, peer.origin.tid);
        match self.open.get_mut(&thread).map(|open| &mut open.call) {
            Some(call)
                if call.event.op_pointer == peer.op_pointer
                    && call.event.plan_pass == peer.plan_pass
                    && call.event.origin.lost == peer.origin.lost
                    && call.peers.len() < MAX_PEERS =>
            {
                call.peers.push(peer);
            }
            _ => self.orphan_peers += 1,
        }
    }

    /// Completes the call of a thread that does something else.
    pub fn end(&mut self, by: &Origin) -> Option<ProxyCall> {
        self.open.remove(&(by.tgid, by.tid)).and_then(OpenCall::left).map(|call| call.over(by.lost))
    }

    /// Completes the calls, on any thread of the process, that `is_over` knows to be over because of `by`, a
    /// record of that process.
    pub fn end_where(&mut self, by: &Origin, mut is_over: impl FnMut(&ProxyCall) -> bool) -> Vec<ProxyCall> {
        let mut is_over =
            |tgid: u32, open: &OpenCall| tgid == by.tgid && !open.is_given_out && is_over(&open.call);
        let ended = self.open.extract_if(|(tgid, _), open| is_over(*tgid, open)).map(|(_, open)| open.call);
        in_order(ended.map(|call| call.over(by.lost)))
    }

    /// Returns about how many bytes of memory the calls take.
    pub(super) fn held_bytes(&self) -> usize {
        self.open.len() * (size_of::<OpenCall>() + 4 * size_of::<ProxyPeerEvent>())
    }

    /// Tells whether any call is not over.
    pub fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns the calls that post an op of this number, on any thread of the process, and are not over.
    pub fn posting(&self, tgid: u32, op_count: u64) -> impl Iterator<Item = &ProxyCall> {
        let open = self.open.iter().filter(move |((of, _), open)| *of == tgid && !open.is_given_out);
        let calls = open.map(|(_, open)| &open.call);
        calls.filter(move |call| !call.event.plan_pass && call.event.op.op_count == op_count)
    }

    /// Ends all calls as the session ends, in the order of time. `lost`: records of a process that were lost
    /// until now.
    pub fn drain(&mut self, lost: impl Fn(u32) -> u64) -> Vec<ProxyCall> {
        let left = self.open.drain().filter_map(|((tgid, _), open)| Some((tgid, open.left()?)));
        in_order(left.map(|(tgid, call)| call.over(lost(tgid))))
    }
}

impl OpenCall {
    /// Returns the call, unless it was given out.
    fn left(self) -> Option<ProxyCall> {
        (!self.is_given_out).then_some(self.call)
    }
}

fn in_order(calls: impl Iterator<Item = ProxyCall>) -> Vec<ProxyCall> {
    let mut calls: Vec<ProxyCall> = calls.collect();
    calls.sort_by_key(|call| call.event.origin.ts_ns);
    calls
}
