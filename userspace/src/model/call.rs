//! Puts a `ncclProxySaveOp` and the `SaveProxy` calls inside it together, per thread.

use std::collections::HashMap;

use crate::decode::{ProxyOpEvent, ProxyPeerEvent};

/// Peers of one call that are kept. NCCL makes eight at most, and one per power of two of the ranks for PAT; a target that
/// makes more wants to fill our memory.
const MAX_PEERS: usize = 256;

/// One `ncclProxySaveOp` with the peers that it was made for.
#[derive(Clone, Debug)]
pub struct ProxyCall {
    pub event: ProxyOpEvent,
    pub peers: Vec<ProxyPeerEvent>,
}

/// Calls in progress.
///
/// Nothing is probed at the end of `ncclProxySaveOp`, so a call is complete when its thread does something else, or when
/// the session ends: a record per thread is held back.
#[derive(Debug, Default)]
pub struct CallAssembler {
    open: HashMap<(u32, u32), ProxyCall>,
    /// `SaveProxy` records whose `ncclProxySaveOp` was not seen: it was lost, or the probes were armed in between.
    pub orphan_peers: u64,
}

impl CallAssembler {
    /// A `ncclProxySaveOp` begins on its thread; the one before it on that thread is complete.
    pub fn begin(&mut self, event: ProxyOpEvent) -> Option<ProxyCall> {
        let thread = (event.origin.tgid, event.origin.tid);
        self.open.insert(thread, ProxyCall { event, peers: Vec::new() })
    }

    /// A `SaveProxy` inside the thread's call.
    pub fn peer(&mut self, peer: ProxyPeerEvent) {
        let thread = (peer.origin.tgid, peer.origin.tid);
        match self.open.get_mut(&thread) {
            Some(call)
                if call.event.op_pointer == peer.op_pointer
                    && call.event.plan_pass == peer.plan_pass
                    && call.peers.len() < MAX_PEERS =>
            {
                call.peers.push(peer);
            }
            _ => self.orphan_peers += 1,
        }
    }

    /// The thread does something else: its call is complete.
    pub fn end(&mut self, tgid: u32, tid: u32) -> Option<ProxyCall> {
        self.open.remove(&(tgid, tid))
    }

    /// Completes the calls, on any thread, that `is_over` knows to be over.
    pub fn end_where(&mut self, mut is_over: impl FnMut(&ProxyCall) -> bool) -> Vec<ProxyCall> {
        in_order(self.open.extract_if(|_, call| is_over(call)).map(|(_, call)| call))
    }

    /// The session ends. In the order of time.
    pub fn drain(&mut self) -> Vec<ProxyCall> {
        in_order(self.open.drain().map(|(_, call)| call))
    }
}

fn in_order(calls: impl Iterator<Item = ProxyCall>) -> Vec<ProxyCall> {
    let mut calls: Vec<ProxyCall> = calls.collect();
    calls.sort_by_key(|call| call.event.origin.ts_ns);
    calls
}
