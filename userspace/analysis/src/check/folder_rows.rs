//! The rows that `check` takes from one folder: what its ranks launched, and how long they waited.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map::Entry},
    path::Path,
    sync::Arc,
};

use flow::schema::{ApiCall, GpuRow, LaunchThreadRow, MessageRow, Op, RankKey, StackRow};
use nccl_library::nccl::Direction;

use super::{
    attribution::{Attribution, TimedMessage},
    call_marks::Marks,
    communicator_check::{CommunicatorRows, Place},
    memory_limit::Room,
    row_source::FolderFacts,
    twice::Twice,
};
use crate::{slow::Gathered, sources::CallNumbers};
use recording::sinks::Sink;
use torch::flight_recorder::Function;

/// Folder of each rank, by communicator.
pub(super) type Owners = BTreeMap<String, BTreeMap<i32, Arc<Path>>>;

/// Takes the rows of a folder.
#[derive(Debug)]
pub(super) struct FolderRows {
    pub(super) communicators: BTreeMap<String, CommunicatorRows>,
    /// Ranks by key; `None`: another rank of the communicator has this number already.
    ranks: HashMap<RankKey, Option<RankRows>>,
    /// Folders of the ranks in earlier ones.
    earlier: Owners,
    pub(super) twice: Twice,
    facts: FolderFacts,
    /// Jobs whose rows are taken; none: all.
    chosen: Vec<String>,
    pub(super) slow: Gathered,
    /// Hosts whose clock is not known.
    pub(super) without_clock: BTreeSet<String>,
    room: Room,
}

/// Data gathered of a rank while its folder is read.
#[derive(Debug)]
struct RankRows {
    communicator: String,
    attribution: Attribution,
    /// Messages of the latest op.
    op: Vec<TimedMessage>,
    /// Numbers of its calls, where ops were not recorded.
    numbers: CallNumbers,
    marks: Marks,
}

impl FolderRows {
    /// `earlier`: of the ranks in earlier folders. `chosen`: jobs whose rows are taken; none: all.
    pub(super) fn new(facts: FolderFacts, earlier: Owners, chosen: Vec<String>) -> Self {
        Self {
            communicators: BTreeMap::new(),
            ranks: HashMap::new(),
            earlier,
            twice: Twice::default(),
            slow: Gathered::new(&facts.session, facts.jobs.clone()),
            facts,
            chosen,
            without_clock: BTreeSet::new(),
            room: Room::default(),
        }
    }

    /// Returns the folder.
    pub(super) fn path(&self) -> &Arc<Path> {
        &self.facts.path
    }

    /// Tells whether the rank's rows are taken; adds the rank if it is new.
    fn takes(&mut self, key: RankKey) -> bool {
        if !self.ranks.contains_key(&key) {
            let rank = self.new_rank(key);
            self.ranks.insert(key, rank);
        }
        self.ranks.get(&key).is_some_and(Option::is_some)
    }

    fn new_rank(&mut self, key: RankKey) -> Option<RankRows> {
        let job = self.facts.jobs.get(&key.pid);
        if !self.chosen.is_empty() && !job.is_some_and(|job| self.chosen.contains(job)) {
            return None;
        }
        let (communicator, rank) = (self.facts.claims.name(key), key.rank);
        let rows = self.communicators.entry(communicator.clone()).or_default();
        if rows.check.job.is_none() {
            rows.check.job = job.cloned();
        }
        let own = rows.collectives.has(rank).then_some(&self.facts.path);
        let earlier = || self.earlier.get(&communicator)?.get(&rank);
        if let Some(first) = own.or_else(earlier) {
            self.twice.add(first, &communicator, rank);
            return None;
        }
        let (offset, ended) = (self.facts.offset_ns(), self.facts.ended_ns());
        let started = self.facts.clock().map(|clock| clock.started_monotonic_ns);
        rows.collectives.rank(rank, ended, offset);
        rows.p2p.rank(rank, started, ended, offset);
        Some(RankRows {
            communicator,
            attribution: Attribution::of_rank(rank),
            op: Vec::new(),
            numbers: CallNumbers::default(),
            marks: Marks::default(),
        })
    }

    /// Completes the ranks, when all rows have come.
    pub(super) fn end_ranks(&mut self) {
        self.slow.end();
        let (offset, ended) = (self.facts.offset_ns(), self.facts.ended_ns());
        for mut rank in self.ranks.drain().filter_map(|(_, rank)| rank) {
            rank.end_op(ended);
            let Some(rows) = self.communicators.get_mut(&rank.communicator) else { continue };
            let Attribution { waits, shares, messages, not_judged } = rank.attribution;
            rows.check.verdict.messages += messages;
            rows.check.verdict.messages_not_judged += not_judged;
            if !rank.numbers.are_certain() {
                rows.uncertain.insert(waits.rank);
            }
            if let Some(offset) = offset.filter(|_| rows.has_stacks) {
                rows.marks.insert(waits.rank, (offset, rank.marks));
            }
            if messages > 0 {
                self.slow.waits(&rank.communicator, &waits, shares);
            }
            rows.check.verdict.ranks.push(waits);
        }
    }
}

impl Sink for FolderRows {
    fn op(&mut self, op: &Op) {
        if !self.takes(op.rank) {
            return;
        }
        let Self { communicators, ranks, facts, slow, without_clock, room, .. } = self;
        let Some(Some(rank)) = ranks.get(&op.rank) else { return };
        let Some(rows) = communicators.get_mut(&rank.communicator) else { return };
        let row = &op.row;
        rows.has_stacks |= row.stack.is_some();
        // The rank's first op names the host.
        if let Entry::Vacant(place) = rows.check.places.entry(row.rank) {
            place.insert(Place { host: row.host.to_string(), pid: row.pid });
            if facts.clock().is_none() {
                // The times of its host cannot be compared with those of others.
                without_clock.insert(row.host.to_string());
            }
        }
        rows.collectives.add(row, room);
        rows.p2p.add(row, facts.offset_ns(), room);
        slow.op(&rank.communicator, op);
        if let Some(outcome) = row.measured {
            *rows.check.measured.entry(outcome).or_default() += 1;
        }
    }

    /// Takes messages of measured ops only: others tell nothing of waits.
    fn wants_messages(&self, op: &Op) -> bool {
        self.ranks.get(&op.rank).is_some_and(Option::is_some) && op.row.has_measured_messages()
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        let Self { ranks, facts, slow, .. } = self;
        let Some(Some(rank)) = ranks.get_mut(&op.rank) else { return };
        let ended = facts.ended_ns();
        for row in messages {
            slow.message(&rank.communicator, row);
            if let (Direction::Send, Some(wait)) = (row.op, row.wait_network_ns.get()) {
                let sum = rank.attribution.waits.in_network_ns.entry(row.peer).or_default();
                *sum = sum.saturating_add(wait);
            }
            if rank.op.first().is_some_and(|first| (first.seq, first.channel) != (row.seq, row.channel)) {
                rank.end_op(ended);
            }
            rank.op.push(TimedMessage::of(row));
        }
    }

    fn gpu(&mut self, row: &GpuRow) {
        self.slow.gpu(row);
    }

    fn stack(&mut self, row: &StackRow) {
        self.slow.stack(row);
    }

    fn launch_thread(&mut self, row: &LaunchThreadRow) {
        self.slow.launch_thread(row);
    }

    fn call(&mut self, call: &ApiCall) {
        let Some(key) = call.rank.filter(|_| self.facts.takes_calls) else { return };
        if !self.takes(key) {
            return;
        }
        let Self { communicators, ranks, facts, room, .. } = self;
        let Some(Some(rank)) = ranks.get_mut(&key) else { return };
        let Some(rows) = communicators.get_mut(&rank.communicator) else { return };
        let row = &call.row;
        let is_counted = Function::of(row.function.as_str()).is_some_and(Function::is_counted);
        if row.stack.is_some() {
            rank.marks.note((row.ts_ns, row.tid), rank.numbers);
        }
        let number = rank.numbers.number(is_counted, row.launched, facts.was_lost);
        if is_counted {
            rows.has_stacks |= row.stack.is_some();
            rows.collectives.add_call(key.rank, number, row, room);
        }
    }
}

impl RankRows {
    /// `ended`: end of the session, by the records' clock.
    fn end_op(&mut self, ended: Option<u64>) {
        self.attribution.add_op(&self.op, ended);
        self.op.clear();
    }
}
