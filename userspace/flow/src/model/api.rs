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

/// A call that communicates: a line of `api`.
#[derive(Clone, Debug)]
pub struct ApiRecord {
    /// `None`: the program gave a communicator that cannot be read.
    pub comm: Option<FlowCommunicator>,
    /// Calls of this rank on this communicator that were seen before.
    pub number: u64,
    pub event: ApiLineEvent,
    /// Return of the call; [`Observed::Absent`] where returns are not traced.
    pub returned: Observed<Returned>,
    /// `seq` of the op that the call became; [`Observed::Absent`] where ops are not recorded.
    pub seq: Observed<u64>,
}

/// Output of the API's side of a session.
#[derive(Clone, Debug)]
pub enum ApiOutput {
    Call(Box<ApiRecord>),
    /// A call of an exported function that does not communicate.
    Other(OtherCall),
}

/// The API's side of a session: the calls, without their ops.
#[derive(Debug, Default)]
pub struct ApiSession {
    /// Communicators, with the number of their calls.
    communicators: HashMap<CommKey, (FlowCommunicator, u64)>,
    /// Calls on communicators beyond the number that is kept apart.
    refused: u64,
    traces_returns: bool,
    /// Open calls, if returns are traced.
    returns: Returns,
}

impl ApiSession {
    /// Makes a session in which the returns of the exported functions are traced, or not.
    pub fn new(traces_returns: bool) -> Self {
        Self { traces_returns, ..Self::default() }
    }

    /// Returns about how many bytes of memory the session takes.
    pub fn held_bytes(&self) -> usize {
        self.communicators.len() * size_of::<(CommKey, FlowCommunicator, u64)>() + self.returns.held_bytes()
    }

    /// Takes a call; `out` gets what it completes. Where ops are recorded, too, the call waits in
    /// [`Node::calls`]. `node`: the state that sessions of all processes share.
    pub fn call(&mut self, event: ApiLineEvent, node: &mut Node, out: &mut impl FnMut(ApiOutput)) {
        let tgid = event.origin.tgid;
        let Some((key, mut record)) = self.record(event, node) else { return };
        if self.traces_returns {
            record.returned = Observed::Unknown;
            self.returns.call(&record, key, out);
        }
        if record.event.with_ops {
            record.seq = Observed::Unknown;
            node.calls.hold(key, Box::new(record));
            self.take_joined(tgid, node, out);
        } else {
            self.joined(Box::new(record), out);
        }
    }

    /// Gives out the calls that no longer wait for their ops. Must be called after each record of the process
    /// `tgid`.
    pub fn take_joined(&mut self, tgid: u32, node: &mut Node, out: &mut impl FnMut(ApiOutput)) {
        for record in node.calls.take_ready(tgid) {
            self.joined(record, out);
        }
    }

    /// Gives out a call whose op is no longer looked for; or lets it wait for its return, if that is traced
    /// and has not come.
    fn joined(&mut self, record: Box<ApiRecord>, out: &mut impl FnMut(ApiOutput)) {
        match record.returned {
            Observed::Unknown => self.returns.joined(record, out),
            _ => out(ApiOutput::Call(record)),
        }
    }

    /// Notes that the program enters an exported function that does not communicate.
    pub fn entry(&mut self, event: ApiEntryEvent, out: &mut impl FnMut(ApiOutput)) {
        if self.traces_returns {
            self.returns.entry(event, out);
        }
    }

    /// Notes that an exported function returns.
    pub fn returned(&mut self, event: ApiReturnEvent, node: &mut Node, out: &mut impl FnMut(ApiOutput)) {
        if self.traces_returns {
            self.returns.returned(event, &mut node.calls, out);
        }
    }

    /// Ends the session: calls that have not returned, or have no op, go out as they are.
    pub fn finish(&mut self, node: &mut Node, out: &mut impl FnMut(ApiOutput)) {
        for key in self.communicators.keys() {
            node.instances.forget(key);
            node.calls.release(key);
        }
        if let Some(tgid) = self.communicators.keys().next().map(|key| key.tgid) {
            self.take_joined(tgid, node, out);
        }
        self.returns.finish(out);
    }

    pub fn counters(&self) -> ModelCounters {
        ModelCounters {
            refused: self.refused,
            unreturned_calls: self.returns.unreturned,
            uncalled_returns: self.returns.uncalled,
            ..ModelCounters::default()
        }
    }

    /// Makes the record of a call, with its communicator if there is one; `None` if there are too many
    /// communicators.
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
        let (comm, calls) = self.communicators.entry(key).or_insert_with(|| {
            let instance =
                if event.with_ops { instances.of(key) } else { instances.next(key.hash, key.rank) };
            (FlowCommunicator { hash: id.hash, rank: id.rank, n_ranks: id.n_ranks, instance }, 0)
        });
        *calls += 1;
        let comm = FlowCommunicator { n_ranks: id.n_ranks, ..*comm };
        Some((Some(key), ApiRecord { comm: Some(comm), number: *calls - 1, event, returned, seq }))
    }
}
