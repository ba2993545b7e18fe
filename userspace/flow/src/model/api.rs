//! Numbers API calls per communicator, and joins them with their returns.

use foldhash::HashMap;

use super::{
    api_returns::{OtherCall, Returned, Returns},
    communicator::CommKey,
    counters::ModelCounters,
    flow::FlowCommunicator,
    node::Node,
    session::MAX_COMMUNICATORS,
};
use crate::{
    decode::{ApiEntryEvent, ApiLineEvent, ApiReturnEvent},
    schema::Observed,
};

/// One call: a line of `api`.
#[derive(Clone, Debug)]
pub struct ApiRecord {
    /// `None`: the program gave a communicator that cannot be read.
    pub comm: Option<FlowCommunicator>,
    /// Calls of this rank on this communicator that were seen before.
    pub number: u64,
    pub event: ApiLineEvent,
    /// [`Observed::Absent`] where returns are not traced.
    pub returned: Observed<Returned>,
}

/// What the API's side of a session gives out.
#[derive(Clone, Debug)]
pub enum ApiOutput {
    Call(Box<ApiRecord>),
    /// A call of an exported function that is no communication.
    Other(OtherCall),
}

#[derive(Debug)]
struct ApiCommunicator {
    instance: u32,
    calls: u64,
}

/// The API's side of a session.
#[derive(Debug, Default)]
pub struct ApiSession {
    communicators: HashMap<CommKey, ApiCommunicator>,
    /// Calls on communicators beyond the number that is kept apart.
    refused: u64,
    /// If returns are traced.
    returns: Option<Returns>,
}

impl ApiSession {
    /// A session in which the returns of the exported functions are traced, or not.
    pub fn new(traces_returns: bool) -> Self {
        Self { returns: traces_returns.then(Returns::default), ..Self::default() }
    }

    /// Takes a call; `out` gets what it completes. `node`: what the session shares with those of other
    /// processes.
    pub fn call(&mut self, event: ApiLineEvent, node: &mut Node, out: &mut impl FnMut(ApiOutput)) {
        let Some(record) = self.record(event, node) else { return };
        match &mut self.returns {
            None => out(ApiOutput::Call(Box::new(record))),
            Some(returns) => returns.call(record, out),
        }
    }

    /// The program enters an exported function that does not communicate.
    pub fn entry(&mut self, event: ApiEntryEvent, out: &mut impl FnMut(ApiOutput)) {
        if let Some(returns) = &mut self.returns {
            returns.entry(event, out);
        }
    }

    /// An exported function returns.
    pub fn returned(&mut self, event: ApiReturnEvent, out: &mut impl FnMut(ApiOutput)) {
        if let Some(returns) = &mut self.returns {
            returns.returned(event, out);
        }
    }

    /// The session ends: calls that have not returned go out as they are.
    pub fn finish(&mut self, out: &mut impl FnMut(ApiOutput)) {
        if let Some(returns) = &mut self.returns {
            returns.finish(out);
        }
    }

    pub fn counters(&self) -> ModelCounters {
        let returns = self.returns.as_ref();
        let (unreturned_calls, uncalled_returns) =
            returns.map_or((0, 0), |returns| (returns.unreturned, returns.uncalled));
        ModelCounters {
            refused: self.refused,
            unreturned_calls,
            uncalled_returns,
            ..ModelCounters::default()
        }
    }

    fn record(&mut self, event: ApiLineEvent, node: &mut Node) -> Option<ApiRecord> {
        let Some(id) = event.comm else {
            return Some(ApiRecord { comm: None, number: 0, event, returned: Observed::Absent });
        };
        let key = CommKey::new(event.origin.tgid, &id);
        if self.communicators.len() >= MAX_COMMUNICATORS && !self.communicators.contains_key(&key) {
            self.refused += 1;
            return None;
        }
        let instances = &mut node.instances;
        let communicator = self
            .communicators
            .entry(key)
            .or_insert_with(|| ApiCommunicator { instance: instances.next(key.hash, key.rank), calls: 0 });
        let number = communicator.calls;
        communicator.calls += 1;
        let comm = FlowCommunicator {
            hash: id.hash,
            rank: id.rank,
            n_ranks: id.n_ranks,
            instance: communicator.instance,
        };
        Some(ApiRecord { comm: Some(comm), number, event, returned: Observed::Absent })
    }
}
