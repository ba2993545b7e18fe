//! Joins calls of the API with the ops that they become, where both are recorded.
//!
//! A call is held until its op is planned. Outside of a group that is at once. In a group all calls come
//! first, and NCCL sorts collectives by size, so their order says nothing. From 2.23 on a plan's tasks have
//! what the program gave: function, buffers, bytes, root or peer. Before, an op has function and count. An op
//! is joined with a waiting call if it fits that call and no other of the group. Several calls that are alike
//! cannot be told apart, and none of them is joined.
//!
//! NCCL launches all of a group before the communicator is called again. So once something was launched, the
//! next call ends the wait of all before it: calls that have no op by then get none.

use std::collections::VecDeque;

use foldhash::HashMap;

use super::{api::ApiRecord, api_returns::Returned, communicator::CommKey};
use crate::{
    decode::{ApiLineEvent, ProxyOpEvent},
    quota::{Limits, Shares},
    schema::Observed,
};
use nccl_library::nccl::datatype_bytes;

/// Calls of a communicator that can wait at a time; the oldest calls of a larger group go out without their
/// ops.
const MAX_IN_BATCH: usize = 4096;

/// Calls that can wait, over all communicators, and over those of one process.
const HELD: Limits = Limits { all: 65_536, of_one: 65_536 / 4 };

/// Calls that wait for their ops, of all communicators of all processes.
#[derive(Debug, Default)]
pub struct JoinedCalls {
    batches: HashMap<CommKey, Batch>,
    /// Calls that wait, by process.
    held: Shares,
    /// Batches in which something changed.
    changed: Vec<CommKey>,
    #[expect(clippy::vec_box, reason = "they come in boxes, and go on in them")]
    ready: Vec<Box<ApiRecord>>,
    /// A call has come, so calls are recorded.
    is_on: bool,
}

/// Calls of a group on one communicator, or a single call.
#[derive(Debug, Default)]
struct Batch {
    calls: VecDeque<Held>,
    /// Something was launched since the calls came.
    has_launched: bool,
}

#[derive(Debug)]
struct Held {
    record: Box<ApiRecord>,
    ops: Ops,
}

/// Ops that a call became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ops {
    None,
    /// The op with this `seq`.
    One(u64),
    /// Several ops, one for each peer and direction: of a call such as `AlltoAll`.
    Several,
}

/// The call of an op, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JoinedCall {
    pub(super) number: Observed<u64>,
    /// Call stack behind the call.
    pub(super) stack: Option<u64>,
}

impl JoinedCalls {
    /// Takes a call, which waits for its op. `key`: its communicator, if that could be read.
    pub(super) fn hold(&mut self, key: Option<CommKey>, record: Box<ApiRecord>) {
        self.is_on = true;
        let is_alone = record.comm.is_none_or(|comm| comm.n_ranks == 1);
        let has_room = |key: &CommKey| HELD.have_room(self.held.all(), self.held.of(key.tgid));
        let Some(key) = key.filter(|key| !is_alone && has_room(key)) else {
            self.ready.push(record);
            return;
        };
        if self.batches.get(&key).is_some_and(|batch| batch.has_launched) {
            self.release(&key);
        }
        let batch = self.batches.entry(key).or_default();
        batch.calls.push_back(Held { record, ops: Ops::None });
        self.held.take(key.tgid, 1);
        if batch.calls.len() > MAX_IN_BATCH
            && let Some(oldest) = batch.calls.pop_front()
        {
            self.ready.push(oldest.record());
            self.held.give_back(key.tgid, 1);
        }
    }

    /// Notes that a kernel of the communicator was launched.
    pub(super) fn launched(&mut self, key: &CommKey) {
        let Some(batch) = self.batches.get_mut(key) else { return };
        batch.has_launched = true;
        if self.changed.last() != Some(key) {
            self.changed.push(*key);
        }
    }

    /// Finds the call of an op that was planned, and that is numbered `seq`.
    pub(super) fn join(&mut self, key: &CommKey, op: &ProxyOpEvent, seq: u64) -> JoinedCall {
        self.launched(key);
        let unknown = JoinedCall { number: self.unknown(), stack: None };
        let Some(batch) = self.batches.get_mut(key) else { return unknown };
        let mut fitting = batch.calls.iter_mut().filter_map(|held| match fit(&held.record.event, op) {
            Fit::No => None,
            Fit::One if held.ops != Ops::None => None,
            fit => Some((held, fit)),
        });
        let (Some((held, fit)), None) = (fitting.next(), fitting.next()) else { return unknown };
        held.ops = if fit == Fit::One { Ops::One(seq) } else { Ops::Several };
        JoinedCall { number: Observed::Known(held.record.number), stack: held.record.event.origin.stack }
    }

    /// Returns the number of a call that is not known.
    pub(super) fn unknown(&self) -> Observed<u64> {
        if self.is_on { Observed::Unknown } else { Observed::Absent }
    }

    /// Ends the wait of the communicator's calls.
    pub(super) fn release(&mut self, key: &CommKey) {
        let Some(batch) = self.batches.remove(key) else { return };
        self.held.give_back(key.tgid, batch.calls.len());
        self.ready.extend(batch.calls.into_iter().map(Held::record));
    }

    /// Notes the return of the communicator's call with this number, if the call waits for its op.
    pub(super) fn returned(&mut self, key: &CommKey, number: u64, returned: Returned) {
        let Some(batch) = self.batches.get_mut(key) else { return };
        // The call came last, but for calls on other threads.
        let held = batch.calls.iter_mut().rev().find(|held| held.record.number == number);
        if let Some(held) = held {
            held.record.returned = Observed::Known(returned);
        }
    }

    /// Takes out the calls of a process that wait no longer.
    #[expect(clippy::vec_box, reason = "they go on in their boxes")]
    pub(super) fn take_ready(&mut self, tgid: u32) -> Vec<Box<ApiRecord>> {
        let is_done = |held: &Held| matches!(held.ops, Ops::One(_));
        for key in self.changed.extract_if(.., |key| key.tgid == tgid).collect::<Vec<_>>() {
            if self.batches.get(&key).is_some_and(|batch| batch.calls.iter().all(is_done)) {
                self.release(&key);
            }
        }
        self.ready.extract_if(.., |record| record.event.origin.tgid == tgid).collect()
    }
}

impl Held {
    fn record(self) -> Box<ApiRecord> {
        let mut record = self.record;
        if let Ops::One(seq) = self.ops {
            record.seq = Observed::Known(seq);
        }
        record
    }
}

/// Relation of an op to a call: it cannot come from it, is all of it, or is a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    No,
    One,
    OneOfSeveral,
}

/// Compares an op with a call: all that both say has to agree.
fn fit(call: &ApiLineEvent, op: &ProxyOpEvent) -> Fit {
    let (task, op) = (op.task.as_ref(), &op.op);
    let call_bytes = call.datatype.as_deref().and_then(datatype_bytes);
    let call_bytes = call_bytes.and_then(|size| size.checked_mul(call.count));
    let agree = |one: Option<u64>, other: Option<u64>| one.zip(other).is_none_or(|(one, other)| one == other);
    let fits = |is_so: bool| if is_so { Fit::One } else { Fit::No };
    let buffers = task.and_then(|task| task.buffers);
    if op.pattern.is_p2p() {
        let called = task.and_then(|task| task.called.as_ref()).or(op.coll_api.as_ref());
        let direction = if op.pattern == nccl_library::nccl::Pattern::Send { "Send" } else { "Recv" };
        if let Some(called) = called.filter(|called| !matches!(called.as_str(), "Send" | "Recv")) {
            return if call.name == *called { Fit::OneOfSeveral } else { Fit::No };
        }
        let is_buffer =
            buffers.is_none_or(|[buffer, _]| [call.send_buffer, call.recv_buffer].contains(&buffer));
        let bytes = task.and_then(|task| task.p2p_bytes);
        return fits(
            *call.name == *direction && call.root == op.root && is_buffer && agree(call_bytes, bytes),
        );
    }
    let function = op.coll.as_deref().or_else(|| task.and_then(|task| task.function.as_deref()));
    let task_bytes = task.and_then(|task| {
        let size = datatype_bytes(task.datatype.as_deref()?)?;
        task.count?.checked_mul(size)
    });
    let has_root =
        matches!(function, Some("Broadcast" | "Reduce" | "Gather" | "Scatter" | "PutSignal" | "Signal"));
    let is_buffers = buffers.is_none_or(|buffers| buffers == [call.send_buffer, call.recv_buffer]);
    let is_function =
        function.map_or(!matches!(&*call.name, "Send" | "Recv"), |function| *call.name == *function);
    fits(is_function && is_buffers && (!has_root || call.root == op.root) && agree(call_bytes, task_bytes))
}

#[cfg(test)]
mod tests;
