//! Statistics that a session fills while others read them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flow::{
    schema::{ApiCall, MessageRow, MessageSums, Op},
    statistics::{Statistics, Tally},
};

use super::sink::Sink;

/// Statistics of a session, shared by several threads.
#[derive(Clone, Debug, Default)]
pub struct LiveStatistics(Arc<Mutex<Tally>>);

impl LiveStatistics {
    /// Locks the statistics, to add to them or to read them.
    pub fn lock(&self) -> MutexGuard<'_, Tally> {
        // Counters have no state in between that would be wrong to see.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current statistics. Nothing is copied while the lock is held.
    pub fn read(&self) -> Arc<Statistics> {
        self.lock().snapshot()
    }
}

impl Sink for LiveStatistics {
    fn op(&mut self, op: &Op) {
        self.lock().op(op);
    }

    fn wants_messages(&self, op: &Op) -> bool {
        op.row.has_measured_messages()
    }

    fn wants_message_sums(&self, op: &Op) -> bool {
        !op.row.has_measured_messages()
    }

    fn message_sums(&mut self, op: &Op, sums: &[MessageSums]) {
        self.lock().message_sums(op, sums);
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        self.lock().messages(op, messages);
    }

    fn call(&mut self, call: &ApiCall) {
        self.lock().call(call);
    }
}
