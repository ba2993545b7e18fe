//! Puts a `ncclProxySaveOp` and the `SaveProxy` calls inside it together, per thread.

use foldhash::HashMap;

use crate::decode::{Origin, ProxyOpEvent, ProxyPeerEvent};

/// Peers of one call that are kept. NCCL makes eight at most, and one per power of two of the ranks for PAT;
/// a target that makes more wants to fill our memory.
const MAX_PEERS: usize = 256;

/// One `ncclProxySaveOp` with the peers that it was made for.
#[derive(Clone, Debug)]
pub struct ProxyCall {
    pub event: ProxyOpEvent,
    pub peers: Vec<ProxyPeerEvent>,
    /// Records of its process were lost between its first record and the one that showed that it was over:
    /// some of its peers can be missing.
    pub incomplete: bool,
    /// The op was not seen itself: it follows from the device work of its plan.
    pub derived: bool,
    /// It stands in its plan's queue: NCCL posts it, whatever is known of its connectors.
    pub queued: bool,
}

impl ProxyCall {
    /// The call is over, by a record that says that so many of its process's were lost before.
    fn over(mut self, lost: u64) -> Self {
        self.incomplete = self.event.origin.lost != lost;
        self
    }
}

#[derive(Debug)]
struct OpenCall {
    call: ProxyCall,
    /// It was given out before it was over; what still comes of it is known.
    is_given_out: bool,
}

/// Calls in progress.
///
/// Nothing is probed at the end of `ncclProxySaveOp`, so a call is complete when its thread does something
/// else, or when the session ends: a record per thread is held back.
#[derive(Debug, Default)]
pub struct CallAssembler {
    open: HashMap<(u32, u32), OpenCall>,
    /// `SaveProxy` records whose `ncclProxySaveOp` was not seen: it was lost, or the probes were armed in
    /// between. After a loss it can always be that it was lost, as another op at the same address looks the
    /// same.
    pub orphan_peers: u64,
}

impl CallAssembler {
    /// A `ncclProxySaveOp` begins on its thread; the one before it on that thread is complete.
    pub fn begin(&mut self, event: ProxyOpEvent) -> Option<ProxyCall> {
        let Origin { tgid, tid, lost, .. } = event.origin;
        let call = ProxyCall { event, peers: Vec::new(), incomplete: false, derived: false, queued: false };
        let before = self.open.insert((tgid, tid), OpenCall { call, is_given_out: false });
        before.and_then(OpenCall::left).map(|call| call.over(lost))
    }

    /// The call that a thread has open, if it is such a one, before it is over: without all of its peers. It
    /// is not given out again.
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

    /// A `SaveProxy` inside the thread's call.
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

    /// The thread does something else: its call is complete.
    pub fn end(&mut self, by: &Origin) -> Option<ProxyCall> {
        self.open.remove(&(by.tgid, by.tid)).and_then(OpenCall::left).map(|call| call.over(by.lost))
    }

    /// Completes the calls, on any thread of the process, that `is_over` knows to be over because of a record
    /// of that process, `by`.
    pub fn end_where(&mut self, by: &Origin, mut is_over: impl FnMut(&ProxyCall) -> bool) -> Vec<ProxyCall> {
        let mut is_over =
            |tgid: u32, open: &OpenCall| tgid == by.tgid && !open.is_given_out && is_over(&open.call);
        let ended = self.open.extract_if(|(tgid, _), open| is_over(*tgid, open)).map(|(_, open)| open.call);
        in_order(ended.map(|call| call.over(by.lost)))
    }

    /// Bytes of memory, about.
    pub(super) fn held_bytes(&self) -> usize {
        self.open.len() * (size_of::<OpenCall>() + 4 * size_of::<ProxyPeerEvent>())
    }

    /// Whether calls are not over.
    pub fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Calls that post an op of this number, on any thread of the process, and are not over.
    pub fn posting(&self, tgid: u32, op_count: u64) -> impl Iterator<Item = &ProxyCall> {
        let open = self.open.iter().filter(move |((of, _), open)| *of == tgid && !open.is_given_out);
        let calls = open.map(|(_, open)| &open.call);
        calls.filter(move |call| !call.event.plan_pass && call.event.op.op_count == op_count)
    }

    /// The session ends. In the order of time. `lost`: records of a process that were lost until now.
    pub fn drain(&mut self, lost: impl Fn(u32) -> u64) -> Vec<ProxyCall> {
        let left = self.open.drain().filter_map(|((tgid, _), open)| Some((tgid, open.left()?)));
        in_order(left.map(|(tgid, call)| call.over(lost(tgid))))
    }
}

impl OpenCall {
    /// The call, unless it was given out.
    fn left(self) -> Option<ProxyCall> {
        (!self.is_given_out).then_some(self.call)
    }
}

fn in_order(calls: impl Iterator<Item = ProxyCall>) -> Vec<ProxyCall> {
    let mut calls: Vec<ProxyCall> = calls.collect();
    calls.sort_by_key(|call| call.event.origin.ts_ns);
    calls
}
