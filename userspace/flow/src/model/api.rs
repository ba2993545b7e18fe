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
    /// The op that it became; [`Observed::Absent`] where ops are not recorded.
    pub seq: Observed<u64>,
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

    /// Bytes of memory that it holds, about.
    pub fn held_bytes(&self) -> usize {
        self.communicators.len() * size_of::<(CommKey, ApiCommunicator)>()
            + self.returns.as_ref().map_or(0, Returns::held_bytes)
    }

    /// Takes a call; `out` gets what it completes. Where ops are recorded, too, it waits in [`Node::calls`].
    /// `node`: what the session shares with those of other processes.
    pub fn call(&mut self, event: ApiLineEvent, node: &mut Node, out: &mut impl FnMut(ApiOutput)) {
        let tgid = event.origin.tgid;
        let Some((key, mut record)) = self.record(event, node) else { return };
        if let Some(returns) = &mut self.returns {
            record.returned = Observed::Unknown;
            returns.call(&record, key, out);
        }
        if record.event.with_ops {
            record.seq = Observed::Unknown;
            node.calls.hold(key, Box::new(record));
            self.take_joined(tgid, node, out);
        } else {
            self.joined(Box::new(record), out);
        }
    }

    /// Gives out the calls that no longer wait for their ops. To be called after each record of the process,
    /// which is `tgid`.
    pub fn take_joined(&mut self, tgid: u32, node: &mut Node, out: &mut impl FnMut(ApiOutput)) {
        for record in node.calls.take_ready(tgid) {
            self.joined(record, out);
        }
    }

    /// Nothing more is looked for but the return, if it is traced and has not come.
    fn joined(&mut self, record: Box<ApiRecord>, out: &mut impl FnMut(ApiOutput)) {
        match &mut self.returns {
            Some(returns) if record.returned == Observed::Unknown => returns.joined(record, out),
            _ => out(ApiOutput::Call(record)),
        }
    }

    /// The program enters an exported function that does not communicate.
    pub fn entry(&mut self, event: ApiEntryEvent, out: &mut impl FnMut(ApiOutput)) {
        if let Some(returns) = &mut self.returns {
            returns.entry(event, out);
        }
    }

    /// An exported function returns.
    pub fn returned(&mut self, event: ApiReturnEvent, node: &mut Node, out: &mut impl FnMut(ApiOutput)) {
        if let Some(returns) = &mut self.returns {
            returns.returned(event, &mut node.calls, out);
        }
    }

    /// The session ends: calls that have not returned, or have no op, go out as they are.
    pub fn finish(&mut self, node: &mut Node, out: &mut impl FnMut(ApiOutput)) {
        for key in self.communicators.keys() {
            node.instances.forget(key);
            node.calls.release(key);
        }
        if let Some(tgid) = self.communicators.keys().next().map(|key| key.tgid) {
            self.take_joined(tgid, node, out);
        }
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

    /// The communicator, if there is one, and the record.
    fn record(&mut self, event: ApiLineEvent, node: &mut Node) -> Option<(Option<CommKey>, ApiRecord)> {
        let (returned, seq) = (Observed::Absent, Observed::Absent);
        let Some(id) = event.comm else {
            return Some((None, ApiRecord { comm: None, number: 0, event, returned, seq }));
        };
        let key = CommKey::new(event.origin.tgid, &id);
        if self.communicators.len() >= MAX_COMMUNICATORS && !self.communicators.contains_key(&key) {
            self.refused += 1;
            return None;
        }
        let instances = &mut node.instances;
        let communicator = self.communicators.entry(key).or_insert_with(|| {
            let instance =
                if event.with_ops { instances.of(key) } else { instances.next(key.hash, key.rank) };
            ApiCommunicator { instance, calls: 0 }
        });
        let number = communicator.calls;
        communicator.calls += 1;
        let comm = FlowCommunicator {
            hash: id.hash,
            rank: id.rank,
            n_ranks: id.n_ranks,
            instance: communicator.instance,
        };
        Some((Some(key), ApiRecord { comm: Some(comm), number, event, returned, seq }))
    }
}
