//! One-sided operations in words.

use super::{OneSidedKind, OneSidedOp, OneSidedProxy, OneSidedQueue, SignalWait};
use crate::RankReport;
use flow::text::counted;

/// Maximum number of queues, and of waits, that are shown of one rank; all are in the JSON.
const MAX_SHOWN: usize = 12;

/// Describes the queues of a rank that are not done, and its waits. `with_done`: also the others.
pub(crate) fn lines(rank: &RankReport, with_done: bool) -> Vec<String> {
    let Some(one_sided) = &rank.one_sided else { return Vec::new() };
    let queues = one_sided.queues.iter().filter(|queue| with_done || !queue.is_done());
    let mut lines: Vec<String> = queues.take(MAX_SHOWN).map(OneSidedQueue::describe).collect();
    let waits = one_sided.waits.iter().filter(|wait| with_done || wait.has_begun);
    lines.extend(waits.take(MAX_SHOWN).map(SignalWait::describe));
    if one_sided.is_cut {
        lines.push("not all one-sided operations of its proxies were read".to_owned());
    }
    lines
}

impl OneSidedQueue {
    /// Names the queue: `GIN's proxy (connection 0, context 1)`.
    pub(crate) fn place(&self) -> String {
        match self.proxy {
            Some(OneSidedProxy::Gin) => {
                format!("GIN's proxy (connection {}, context {})", self.connection, self.context)
            }
            Some(OneSidedProxy::Rma) => format!("the RMA proxy (context {})", self.context),
            Some(OneSidedProxy::RmaGraph) => format!("the RMA proxy (context {}, CUDA graphs)", self.context),
            None => "a proxy".to_owned(),
        }
    }

    /// Describes what is in flight: `3 in flight, the oldest a put with a signal`.
    pub(crate) fn in_flight_words(&self) -> String {
        let oldest = self.oldest.map(|op| format!(", the oldest {}", op.describe())).unwrap_or_default();
        format!("{} in flight{oldest}", self.in_flight())
    }

    fn describe(&self) -> String {
        let target =
            self.target.map_or_else(|| format!("number {}", self.slot), |target| format!("rank {target}"));
        let in_flight = match self.in_flight() {
            0 => String::new(),
            _ => format!("; {}, still for {:.1} s", self.in_flight_words(), self.still_seconds),
        };
        let queued = match (self.queued(), self.next) {
            (0, _) => String::new(),
            (queued, None) => format!("; {queued} not taken"),
            (queued, Some(next)) => format!("; {queued} not taken, the first {}", next.describe()),
        };
        let (called, done) = (self.called, self.done);
        format!("{} to {target}: {called} called, {done} done{in_flight}{queued}", self.place())
    }
}

impl OneSidedOp {
    /// Describes the operation: `a put of 4096 bytes with a signal`.
    pub(crate) fn describe(&self) -> String {
        let what = match self.kind {
            Some(OneSidedKind::Put) => "a put",
            Some(OneSidedKind::Signal) => return format!("a signal{}", self.readiness()),
            Some(OneSidedKind::Get) => "a get",
            Some(OneSidedKind::Flush) => return "a flush".to_owned(),
            Some(OneSidedKind::PutGroup) => "a put of several that were called together",
            None => "an operation",
        };
        let bytes = self.bytes.map(|bytes| format!(" of {bytes} bytes")).unwrap_or_default();
        let signal = if self.with_signal { " with a signal" } else { "" };
        format!("{what}{bytes}{signal}{}", self.readiness())
    }

    fn readiness(&self) -> &'static str {
        match self.is_ready {
            Some(false) => ", to which its stream has not come",
            Some(true) | None => "",
        }
    }
}

impl SignalWait {
    /// Describes the wait: `waits for 9 signals of rank 2 (RMA context 0); 4 signals came`.
    pub(crate) fn describe(&self) -> String {
        let Self { context, peer, signal, expected, arrived, has_begun } = self;
        let waits = if *has_begun { "waits" } else { "has called a wait" };
        let came = match arrived {
            Some(came) => format!("; {} came", counted(*came, "signal")),
            None => "; how many came is in its GPU's memory".to_owned(),
        };
        let number = if *signal == 0 { String::new() } else { format!(", signal number {signal}") };
        format!(
            "{waits} for {} of rank {peer} (RMA context {context}{number}){came}",
            counted(*expected, "signal")
        )
    }
}
