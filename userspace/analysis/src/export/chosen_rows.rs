//! Leaves out the rows that are not asked for, puts each rank's rows in its place, and marks values that were
//! counted from another moment than the recording's beginning.

use std::{
    collections::HashSet,
    ops::AddAssign,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use flow::schema::{
    ApiCall, GpuRow, LaunchThreadRow, MessageRow, MessageSums, Observed, Op, OtherCallRow, Outcome, RankKey,
    StackRow,
};
use serde::Serialize;

use super::{
    choice::SourceChoice,
    ranks::Ranks,
    view::{Row, View, Wanted},
};
use recording::sinks::Sink;

/// Numbers of rows that went to the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
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

impl AddAssign for RowCounts {
    fn add_assign(&mut self, more: Self) {
        let Self { ops, messages, planned_messages, calls, numbered_locally, left_out } = more;
        self.ops += ops;
        self.messages += messages;
        self.planned_messages += planned_messages;
        self.calls += calls;
        self.numbered_locally += numbered_locally;
        self.left_out += left_out;
    }
}

/// View, ranks and counts, which go from source to source.
#[derive(Debug)]
pub(super) struct Exporting {
    pub(super) view: Box<dyn View>,
    /// The view's error, after which it gets no rows.
    pub(super) failed: Option<anyhow::Error>,
    pub(super) ranks: Ranks,
    pub(super) counts: RowCounts,
}

impl Exporting {
    pub(super) fn new(view: Box<dyn View>) -> Self {
        Self { view, failed: None, ranks: Ranks::default(), counts: RowCounts::default() }
    }

    fn give(&mut self, row: Row<'_>) {
        if self.failed.is_none() {
            self.failed = self.view.row(row).err();
        }
    }
}

/// Filter of rows before a view.
#[derive(Debug)]
pub(super) struct ChosenRows {
    choice: SourceChoice,
    pub(super) to: Exporting,
    /// Set if the part that was read has ended and the recording has not.
    goes_on: Arc<AtomicBool>,
    /// The last op as it is handed on; `None` if it is not asked for, or is handed on unchanged.
    changed: Option<Op>,
    is_taken: bool,
    /// Ranks that replay CUDA graphs: we count their collectives, NCCL does not.
    replaying: HashSet<RankKey>,
}

impl ChosenRows {
    pub(super) fn new(choice: SourceChoice, to: Exporting, goes_on: &Arc<AtomicBool>) -> Self {
        Self {
            choice,
            to,
            goes_on: Arc::clone(goes_on),
            changed: None,
            is_taken: false,
            replaying: HashSet::new(),
        }
    }

    /// Tells whether the view wants the messages of the last op in this form.
    fn is_wanted(&self, op: &Op, form: Wanted) -> bool {
        self.is_taken && self.to.view.wanted(self.changed.as_ref().unwrap_or(op)) == form
    }
}

impl Sink for ChosenRows {
    fn op(&mut self, op: &Op) {
        (self.changed, self.is_taken) = (None, false);
        if op.row.captured_seq.is_some() {
            self.replaying.insert(op.rank);
        }
        let Exporting { ranks, counts, .. } = &mut self.to;
        if !self.choice.takes(Some(&op.rank), op.row.pid, op.row.ts_ns) {
            counts.left_out += 1;
            return;
        }
        self.is_taken = true;
        counts.ops += 1;
        let place = ranks.place(op.rank);
        let (is_p2p, mut seq_shift) = (op.row.pattern.is_numbered_apart(), 0);
        if is_p2p {
            seq_shift = place.p2p_shift << 1;
            ranks.note_p2p(op.rank, place.instance, (op.row.seq >> 1).saturating_add(place.p2p_shift));
        }
        // Calls have no numbers there, and sends and receives begin anew.
        let is_uncounted = self.choice.is_from_middle || place.is_continued;
        let is_local =
            (is_p2p && is_uncounted) || (self.choice.is_from_middle && self.replaying.contains(&op.rank));
        // If the model still waited for messages, it is not known how they went on.
        let outcome = match op.row.measured {
            Some(Outcome::SessionEnded) if self.goes_on.load(Ordering::Relaxed) => {
                Some(Outcome::SelectionEnded)
            }
            outcome => outcome,
        };
        let api_call = match op.row.api_call {
            Observed::Known(_) if is_uncounted => Observed::Unknown,
            other => other,
        };
        let is_same =
            place.instance == op.rank.instance && outcome == op.row.measured && api_call == op.row.api_call;
        if is_local || !is_same {
            self.to.counts.numbered_locally += u64::from(is_local);
            let mut changed = op.clone();
            changed.rank.instance = place.instance;
            (changed.row.measured, changed.row.api_call) = (outcome, api_call);
            changed.row.seq = changed.row.seq.saturating_add(seq_shift);
            changed.row.captured_seq =
                changed.row.captured_seq.map(|captured| captured.saturating_add(seq_shift));
            changed.row.seq_local = is_local.then_some(true);
            self.changed = Some(changed);
        }
        self.to.give(Row::Op(self.changed.as_ref().unwrap_or(op)));
    }

    fn wants_messages(&self, op: &Op) -> bool {
        self.is_wanted(op, Wanted::Messages)
    }

    fn wants_message_sums(&self, op: &Op) -> bool {
        self.is_wanted(op, Wanted::Sums)
    }

    fn message_sums(&mut self, op: &Op, sums: &[MessageSums]) {
        let planned = &mut self.to.counts.planned_messages;
        *planned = sums.iter().map(|sums| sums.messages).fold(*planned, u64::saturating_add);
        self.to.give(Row::MessageSums(self.changed.as_ref().unwrap_or(op), sums));
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        self.to.counts.messages += messages.len() as u64;
        match &self.changed {
            None => self.to.give(Row::Messages(op, messages)),
            Some(changed) => {
                let change = |message: &MessageRow| MessageRow {
                    seq: changed.row.seq,
                    seq_local: changed.row.seq_local,
                    ..message.clone()
                };
                let messages: Vec<MessageRow> = messages.iter().map(change).collect();
                self.to.give(Row::Messages(changed, &messages));
            }
        }
    }

    fn call(&mut self, call: &ApiCall) {
        let Exporting { ranks, counts, .. } = &mut self.to;
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
            return self.to.give(Row::Call(call));
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
        self.to.give(Row::Call(&changed));
    }

    fn stack(&mut self, stack: &StackRow) {
        self.to.give(Row::Stack(stack));
    }

    /// Rows of GPUs are not chosen by rank: a GPU of the host that does something else matters, too.
    fn gpu(&mut self, row: &GpuRow) {
        if self.choice.takes_time(row.ts_ns) {
            self.to.give(Row::Gpu(row));
        }
    }

    fn launch_thread(&mut self, row: &LaunchThreadRow) {
        if self.choice.takes_time(row.ts_ns) {
            self.to.give(Row::LaunchThread(row));
        }
    }

    fn other_call(&mut self, row: &OtherCallRow) {
        if self.choice.takes(None, row.pid, row.ts_ns) {
            self.to.counts.calls += 1;
            self.to.give(Row::OtherCall(row));
        } else {
            self.to.counts.left_out += 1;
        }
    }

    fn close_process(&mut self, pid: u32) {
        self.to.give(Row::ProcessEnded(pid));
    }
}
