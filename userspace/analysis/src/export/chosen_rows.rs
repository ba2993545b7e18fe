//! Leaves out the rows that are not asked for, puts each rank's rows in its place, and marks values that were
//! counted from another moment than the recording's beginning.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use flow::schema::{
    ApiCall, GpuRow, MessageRow, MessageSums, Observed, Op, OtherCallRow, Outcome, RankKey, StackRow,
};
use serde::Serialize;

use super::{choice::SourceChoice, format::View, ranks::Ranks};
use recording::sinks::{Sink, Written};

/// Numbers of rows that went to the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowCounts {
    /// Number of ops, each on a channel.
    pub ops: u64,
    pub messages: u64,
    /// Number of messages that were only planned, of which the view has sums and no rows.
    pub planned_messages: u64,
    /// Number of API calls.
    pub calls: u64,
    /// Number of sends and receives whose `seq` is counted from the beginning of the part, and of API calls
    /// without their number.
    pub numbered_locally: u64,
    /// Number of ops and calls that came with the blocks that were read, and are not asked for.
    pub left_out: u64,
}

/// View, ranks and counts that all sources share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) view: Box<dyn View>,
    pub(super) ranks: Ranks,
    pub(super) counts: RowCounts,
}

/// Filter of rows before a view.
#[derive(Debug)]
pub(super) struct ChosenRows {
    choice: SourceChoice,
    shared: Arc<Mutex<Shared>>,
    /// Set if the part that was read has ended and the recording has not.
    goes_on: Arc<AtomicBool>,
    /// The last op as it is handed on; `None` if it is not asked for, or is handed on unchanged.
    changed: Option<Op>,
    is_taken: bool,
    /// Number to add to the numbers of the last op.
    seq_shift: u64,
    /// Set if an earlier window had the last op's rank.
    is_continued: bool,
    /// Ranks that replay CUDA graphs: we count their collectives, NCCL does not.
    replaying: HashSet<RankKey>,
}

/// Locks the shared values. A panic elsewhere ends the export anyway.
pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ChosenRows {
    pub(super) fn new(choice: SourceChoice, shared: &Arc<Mutex<Shared>>, goes_on: &Arc<AtomicBool>) -> Self {
        Self {
            choice,
            shared: Arc::clone(shared),
            goes_on: Arc::clone(goes_on),
            changed: None,
            is_taken: false,
            seq_shift: 0,
            is_continued: false,
            replaying: HashSet::new(),
        }
    }

    /// Tells whether the op's number differs from the one in the whole.
    fn is_numbered_locally(&self, op: &Op) -> bool {
        let is_p2p = op.row.pattern.is_p2p();
        (is_p2p && self.is_continued)
            || (self.choice.is_from_middle && (is_p2p || self.replaying.contains(&op.rank)))
    }
}

impl Sink for ChosenRows {
    fn op(&mut self, op: &Op) {
        (self.changed, self.is_taken, self.seq_shift) = (None, false, 0);
        if op.row.captured_seq.is_some() {
            self.replaying.insert(op.rank);
        }
        let mut shared = lock(&self.shared);
        let Shared { view, ranks, counts } = &mut *shared;
        if !self.choice.takes(Some(&op.rank), op.row.pid, op.row.ts_ns) {
            counts.left_out += 1;
            return;
        }
        self.is_taken = true;
        counts.ops += 1;
        let place = ranks.place(op.rank);
        if op.row.pattern.is_p2p() {
            self.seq_shift = place.p2p_shift << 1;
            ranks.note_p2p(op.rank, place.instance, (op.row.seq >> 1).saturating_add(place.p2p_shift));
        }
        self.is_continued = place.is_continued;
        let is_local = self.is_numbered_locally(op);
        // If the model still waited for messages, it is not known how they went on.
        let outcome = match op.row.measured {
            Some(Outcome::SessionEnded) if self.goes_on.load(Ordering::Relaxed) => {
                Some(Outcome::SelectionEnded)
            }
            outcome => outcome,
        };
        // Calls have no numbers there.
        let is_uncounted = self.choice.is_from_middle || place.is_continued;
        let api_call = match op.row.api_call {
            Observed::Known(_) if is_uncounted => Observed::Unknown,
            other => other,
        };
        let is_same =
            place.instance == op.rank.instance && outcome == op.row.measured && api_call == op.row.api_call;
        if is_local || !is_same {
            counts.numbered_locally += u64::from(is_local);
            let mut changed = op.clone();
            changed.rank.instance = place.instance;
            (changed.row.measured, changed.row.api_call) = (outcome, api_call);
            changed.row.seq = changed.row.seq.saturating_add(self.seq_shift);
            changed.row.captured_seq =
                changed.row.captured_seq.map(|captured| captured.saturating_add(self.seq_shift));
            changed.row.seq_local = is_local.then_some(true);
            self.changed = Some(changed);
        }
        view.op(self.changed.as_ref().unwrap_or(op));
    }

    fn wants_messages(&self, op: &Op) -> bool {
        self.is_taken && lock(&self.shared).view.wants_messages(self.changed.as_ref().unwrap_or(op))
    }

    fn wants_message_sums(&self, op: &Op) -> bool {
        self.is_taken && lock(&self.shared).view.wants_message_sums(self.changed.as_ref().unwrap_or(op))
    }

    fn message_sums(&mut self, op: &Op, sums: &[MessageSums]) {
        let mut shared = lock(&self.shared);
        let Shared { view, counts, .. } = &mut *shared;
        let messages = sums.iter().map(|sums| sums.messages);
        counts.planned_messages = messages.fold(counts.planned_messages, u64::saturating_add);
        view.message_sums(self.changed.as_ref().unwrap_or(op), sums);
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        if !self.is_taken {
            return;
        }
        let mut shared = lock(&self.shared);
        let Shared { view, counts, .. } = &mut *shared;
        counts.messages += messages.len() as u64;
        match &self.changed {
            None => view.messages(op, messages),
            Some(changed) => {
                let change = |message: &MessageRow| MessageRow {
                    seq: changed.row.seq,
                    seq_local: changed.row.seq_local,
                    ..message.clone()
                };
                let messages: Vec<MessageRow> = messages.iter().map(change).collect();
                view.messages(changed, &messages);
            }
        }
    }

    fn call(&mut self, call: &ApiCall) {
        let mut shared = lock(&self.shared);
        let Shared { view, ranks, counts } = &mut *shared;
        if !self.choice.takes(call.rank.as_ref(), call.row.pid, call.row.ts_ns) {
            counts.left_out += 1;
            return;
        }
        counts.calls += 1;
        let place = call.rank.map(|rank| ranks.place(rank));
        let is_anew = self.choice.is_from_middle || place.is_some_and(|place| place.is_continued);
        let is_uncounted = is_anew && call.row.call.is_some();
        let instance = place.map(|place| place.instance);
        if instance == call.rank.map(|rank| rank.instance) && !is_uncounted {
            return view.call(call);
        }
        counts.numbered_locally += u64::from(is_uncounted);
        let mut changed = call.clone();
        if let (Some(rank), Some(instance)) = (&mut changed.rank, instance) {
            rank.instance = instance;
        }
        if is_uncounted {
            changed.row.call = None;
        }
        if let (Observed::Known(seq), Some(rank)) = (changed.row.seq, call.rank) {
            let is_p2p = seq & 1 == 1;
            let shift = place.filter(|_| is_p2p).map_or(0, |place| place.p2p_shift << 1);
            changed.row.seq = Observed::Known(seq.saturating_add(shift));
            let is_local = is_anew && (is_p2p || self.replaying.contains(&rank));
            changed.row.seq_local = is_local.then_some(true);
        }
        view.call(&changed);
    }

    fn stack(&mut self, stack: &StackRow) {
        lock(&self.shared).view.stack(stack);
    }

    /// Rows of GPUs are not chosen by rank: a GPU of the host that does something else matters, too.
    fn gpu(&mut self, row: &GpuRow) {
        if self.choice.takes_time(row.ts_ns) {
            lock(&self.shared).view.gpu(row);
        }
    }

    fn other_call(&mut self, row: &OtherCallRow) {
        let mut shared = lock(&self.shared);
        if self.choice.takes(None, row.pid, row.ts_ns) {
            shared.counts.calls += 1;
            shared.view.other_call(row);
        } else {
            shared.counts.left_out += 1;
        }
    }

    fn flush(&mut self) {
        lock(&self.shared).view.flush();
    }

    fn close_process(&mut self, pid: u32) {
        lock(&self.shared).view.close_process(pid);
    }

    fn take_errors(&mut self) -> Vec<String> {
        lock(&self.shared).view.take_errors()
    }

    fn written(&self) -> Written {
        lock(&self.shared).view.written()
    }
}
