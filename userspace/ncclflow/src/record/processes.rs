//! The processes that records come from. Each has a model of its own.

use std::collections::HashMap;

use super::output::Output;
use flow::{
    model::{ApiSession, ModelCounters, Node, Sampling, Session},
    schema::HostInfo,
};

/// What is traced, which the model has to know.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traced {
    /// Messages, with `--level steps`.
    pub(super) steps: bool,
    /// Returns of the API's functions.
    pub(super) returns: bool,
    /// Of which ops messages are measured.
    pub(super) sampling: Sampling,
}

/// A process that records came from.
#[derive(Debug)]
pub(super) struct TracedProcess {
    /// Not known before the first record of a probe.
    pub(super) host: Option<HostInfo>,
    /// Of its records, those that the kernel lost until now.
    pub(super) lost: u64,
    /// Those that were dropped after that, as marks say.
    pub(super) marked: u64,
    pub(super) session: Session,
    pub(super) api: ApiSession,
}

impl TracedProcess {
    pub(super) fn new(traced: Traced) -> Self {
        Self {
            host: None,
            lost: 0,
            marked: 0,
            session: Session::new(traced.steps).sampling(traced.sampling),
            api: ApiSession::new(traced.returns),
        }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.host.as_ref().map(|host| host.pid)
    }

    pub(super) fn lost_in_all(&self) -> u64 {
        self.lost.saturating_add(self.marked)
    }

    /// No more records of it come: what is still open goes out as it is.
    pub(super) fn finish(&mut self, node: &mut Node, output: &mut Output) {
        let lost = self.lost_in_all();
        let Self { host, session, api, .. } = self;
        session.finish(|_| lost, node, &mut |record| output.push(host.as_ref(), &record));
        api.finish(&mut |call| output.push_api(host.as_ref(), &call));
        if let (Some(live), Some(host)) = (&output.live, host) {
            live.lock().lost(host, lost);
        }
    }

    pub(super) fn counters(&self) -> ModelCounters {
        let mut counters = self.session.counters();
        counters += &self.api.counters();
        counters
    }
}

/// Processes that have ended. Records of them may still be on their way.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// By process id as records carry it: when it was seen to have ended, by the records' clock.
    at_ns: HashMap<u32, u64>,
}

impl Ended {
    pub(super) fn note(&mut self, tgid: u32, at_ns: u64) {
        self.at_ns.insert(tgid, at_ns);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at_ns.is_empty()
    }

    /// Whether a record is of a later process than the one that had this process id and ended.
    pub(super) fn is_another(&mut self, tgid: u32, ts_ns: u64) -> bool {
        let is_another = !self.at_ns.is_empty() && self.at_ns.get(&tgid).is_some_and(|ended| ts_ns > *ended);
        if is_another {
            self.at_ns.remove(&tgid);
        }
        is_another
    }

    /// Takes out those that ended before this moment.
    pub(super) fn take_before(&mut self, ts_ns: u64) -> Vec<u32> {
        self.at_ns.extract_if(|_, ended| *ended < ts_ns).map(|(tgid, _)| tgid).collect()
    }
}
