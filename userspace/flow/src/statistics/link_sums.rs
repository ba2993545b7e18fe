//! The one sum over messages of a link: what was planned, what was measured, and what was waited for.

use nccl_library::nccl::Transport;

use super::{quantiles::Quantiles, sum::Sum};
use crate::schema::{BytesKind, MessageRow, MessageSums, Wait};

/// A place that durations are added to.
pub trait Durations {
    fn note(&mut self, ns: u64);
}

impl Durations for Sum {
    fn note(&mut self, ns: u64) {
        self.count += 1;
        self.ns = self.ns.saturating_add(ns);
    }
}

impl Durations for Quantiles {
    fn note(&mut self, ns: u64) {
        self.add(ns);
    }
}

/// Sums over messages, from one rank's side. `T` takes the times of messages, `W` their waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSums<T, W = T> {
    /// Transport of the first message that names one.
    pub transport: Transport,
    /// Messages, measured or only planned.
    pub messages: u64,
    /// Planned or derived: bytes of messages whose size follows from the plan.
    pub planned_exact: u64,
    /// Planned or derived: capacities of the other messages, an upper bound.
    pub planned_capacity: u64,
    /// Measured: messages that came to their end.
    pub ended: u64,
    /// Measured: bytes of the messages whose size was seen.
    pub bytes_measured: u64,
    /// Messages whose size was seen.
    pub sized: u64,
    /// Bytes of messages: the measured size where there is one, or else the planned size.
    pub bytes: u64,
    /// The part of `bytes` of the messages in `times`.
    pub bytes_timed: u64,
    /// Times from when a message could begin to its end. Measured, with `--step-detail transitions`; else the
    /// begin is derived, as the moment from which the message's slot was free.
    pub times: T,
    /// Waits, derived from what was measured; in the order of [`Wait::ALL`].
    pub waits: [W; Wait::ALL.len()],
}

impl<T: Durations, W: Durations> LinkSums<T, W> {
    /// Adds a message that an op sends to, or receives from, a peer.
    pub fn add(&mut self, message: &MessageRow) {
        self.add_size(message);
        self.add_times(message);
    }

    /// Adds the size of a message.
    pub(super) fn add_size(&mut self, message: &MessageRow) {
        let planned = match message.bytes_kind {
            BytesKind::Exact => &mut self.planned_exact,
            BytesKind::Capacity => &mut self.planned_capacity,
        };
        *planned = planned.saturating_add(message.bytes);
        let measured = message.bytes_measured.get();
        self.note_transport(message.transport);
        self.messages += 1;
        self.sized += u64::from(measured.is_some());
        self.bytes_measured = self.bytes_measured.saturating_add(measured.unwrap_or(0));
        self.bytes = self.bytes.saturating_add(measured.unwrap_or(message.bytes));
    }

    /// Adds the moments of a message.
    pub(super) fn add_times(&mut self, message: &MessageRow) {
        for (sum, wait) in self.waits.iter_mut().zip(message.waits().all()) {
            if let Some(ns) = wait {
                sum.note(ns);
            }
        }
        let Some(end) = message.t_end_ns.get() else { return };
        self.ended += 1;
        if let Some(begin) = message.begin() {
            let bytes = message.bytes_measured.get().unwrap_or(message.bytes);
            self.bytes_timed = self.bytes_timed.saturating_add(bytes);
            self.times.note(end.saturating_sub(begin));
        }
    }

    /// Adds messages that were only planned.
    pub fn add_sums(&mut self, sums: &MessageSums) {
        self.note_transport(sums.transport);
        self.messages = self.messages.saturating_add(sums.messages);
        self.planned_exact = self.planned_exact.saturating_add(sums.bytes_exact);
        self.planned_capacity = self.planned_capacity.saturating_add(sums.bytes_capacity);
        self.bytes = self.bytes.saturating_add(sums.bytes_exact).saturating_add(sums.bytes_capacity);
    }

    fn note_transport(&mut self, transport: Transport) {
        if self.transport.is_empty() {
            self.transport = transport;
        }
    }
}
