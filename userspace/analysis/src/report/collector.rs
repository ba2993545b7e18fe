//! Takes all rows, once, and sums them up for the page.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use flow::schema::{ApiCall, MessageRow, MessageSums, Op, StackRow};
use nccl_library::nccl::Direction;

use super::{
    Section,
    code::Code,
    communicators::{Comm, Communicators},
    data::{CommData, Data, DelayData, SourceData, VerdictData},
    iterations::Iterations,
    kinds::{KindKey, Kinds},
    links::Links,
    open_ops::{OpTotals, OpenOps, WAITS},
    rates::{Counted, Rates},
    sessions::SessionFacts,
    shapes::Shapes,
    timeline::Timeline,
    verdict::{Seen, verdict},
};
use crate::{
    check::{CheckReport, CommunicatorCheck, RunningCheck},
    export::{Exported, Source, View},
};
use recording::sinks::Sink;

/// Format of the data. A page has its own scripts, so this is for others who read the data.
const FORMAT: u32 = 1;

/// The last op, whose messages come next.
#[derive(Debug)]
struct Last {
    comm: usize,
    rank: i32,
    seq: u64,
}

#[derive(Debug, Default)]
pub(super) struct Collector {
    handed: Arc<Mutex<Option<Data>>>,
    open: Option<Section>,
    /// Ranges of time from which rows are taken, one for each source.
    ranges: std::vec::IntoIter<(u64, u64)>,
    check: Option<RunningCheck>,
    sources: Vec<SourceData>,
    offset_ns: u64,
    has_calls_only: bool,
    comms: Communicators,
    shapes: Shapes,
    links: Links,
    kinds: Kinds,
    timeline: Timeline,
    rates: Rates,
    iterations: Iterations,
    code: Code,
    ops: OpenOps,
    closed: Vec<OpTotals>,
    last: Option<Last>,
    totals: Totals,
}

#[derive(Debug, Default)]
struct Totals {
    ops: u64,
    calls: u64,
    planned_only: u64,
    incomplete: u64,
    /// Number of recordings that do not say how their clock stands to Unix time.
    without_clock: u64,
    calls_without_rank: u64,
}

/// Data that the collector hands over when all rows have come.
pub(super) struct Handed(Arc<Mutex<Option<Data>>>);

impl Handed {
    pub(super) fn take(self) -> Result<Data> {
        let data = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        data.context("the report was not finished")
    }
}

impl Collector {
    pub(super) fn new(ranges: Vec<(u64, u64)>, open: Option<Section>) -> (Self, Handed) {
        let handed = Arc::new(Mutex::new(None));
        let (handed_over, ranges) = (Arc::clone(&handed), ranges.into_iter());
        let collector = Self { handed: handed_over, open, ranges, ..Self::default() };
        (collector, Handed(handed))
    }

    /// Counts ops of which all channels have come.
    fn count_closed(&mut self) {
        for op in self.closed.drain(..) {
            let kind = self.kinds.add(&op);
            self.timeline.add(&op, kind, op.code);
            self.links.add_op(&op);
            self.code.add_op(&op);
            self.totals.ops += 1;
            self.totals.planned_only += u64::from(op.span_ns.is_none());
            self.totals.incomplete += u64::from(op.is_incomplete);
            if let Some(rank) = self.comms.rank(op.comm, op.rank) {
                let count = if op.is_p2p { &mut rank.p2p } else { &mut rank.collectives };
                *count += 1;
                rank.incomplete += u64::from(op.is_incomplete);
            }
        }
    }

    fn close_all(&mut self) {
        self.ops.close(&mut self.closed);
        self.count_closed();
        self.last = None;
    }

    fn data(&mut self, exported: &Exported) -> Data {
        let report = self.check.take().map(|mut check| check.finish());
        let report = report.unwrap_or_else(|| CheckReport::new(Vec::new(), Vec::new(), Vec::new()));
        let (t0_ns, end_ns) = self.timeline.span_ns().or(exported.span_unix_ns).unwrap_or_default();
        let (code, codes) = self.code.data();
        for (source, read) in self.sources.iter_mut().zip(&exported.sources) {
            source.records = read.records;
            source.notes.extend(read.read.notes());
        }
        let seen = self.seen();
        let numbers: BTreeMap<String, usize> =
            self.comms.iter().enumerate().map(|(number, (name, _))| (name.clone(), number)).collect();
        let verdict: VerdictData = verdict(&report, seen, &|name| numbers.get(name).copied());
        Data {
            format: FORMAT,
            made_by: format!("ncclflow {}", env!("CARGO_PKG_VERSION")),
            made_unix_ms: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX)),
            open: self.open,
            t0: t0_ns.to_string(),
            span_us: end_ns.saturating_sub(t0_ns) / 1000,
            verdict,
            hosts: self.comms.hosts(),
            comms: self.comm_data(&report),
            wait_names: WAITS.to_vec(),
            kinds: self.kinds.data(),
            longest: self.timeline.longest(t0_ns, &codes),
            timeline: self.timeline.data(t0_ns, &codes),
            rates: self.rates.data(t0_ns),
            iterations: self.iterations.data(t0_ns),
            code: if self.has_stacks() { code } else { Vec::new() },
            summed_up: self.summed_up(),
            not_seen: self.not_seen(exported, seen),
            sources: std::mem::take(&mut self.sources),
            rows: exported.rows,
        }
    }

    fn has_stacks(&self) -> bool {
        self.code.count() > 0
    }

    fn seen(&self) -> Seen {
        let of = |(_, comm): &(String, Comm)| (comm.n_ranks.max(0).unsigned_abs(), comm.ranks.len() as u64);
        let ranks = self.comms.iter().map(of);
        let (all, recorded) = ranks
            .fold((0, 0), |(all, recorded), (n_ranks, ranks)| (all + u64::from(n_ranks), recorded + ranks));
        let is_lost = |(key, records): &(String, u64)| key.starts_with("records_") && *records > 0;
        Seen {
            ranks: all,
            recorded,
            ops: self.totals.ops,
            calls: self.totals.calls,
            has_losses: self.sources.iter().any(|source| source.loss.iter().any(is_lost)),
        }
    }

    fn comm_data(&self, report: &CheckReport) -> Vec<CommData> {
        let data = |(number, (name, comm)): (usize, &(String, Comm))| {
            // Each window is checked by itself.
            let checks: Vec<&CommunicatorCheck> =
                report.communicators.iter().filter(|check| check.communicator == *name).collect();
            let mut delays: BTreeMap<(i32, i32), DelayData> = BTreeMap::new();
            let mut own: BTreeMap<i32, u64> = BTreeMap::new();
            let mut measured: BTreeMap<String, u64> = BTreeMap::new();
            for check in &checks {
                for (outcome, ops) in &check.measured {
                    *measured.entry(outcome.name().to_owned()).or_default() += ops;
                }
                for waits in &check.verdict.ranks {
                    let rank = waits.rank;
                    *own.entry(rank).or_default() += waits.own_gpu_ns;
                    let mut add = |peers: &BTreeMap<i32, u64>, of: fn(&mut DelayData) -> &mut u64| {
                        for (peer, ns) in peers {
                            let empty =
                                || DelayData { rank, peer: *peer, data_ns: 0, slot_ns: 0, network_ns: 0 };
                            let sum = of(delays.entry((rank, *peer)).or_insert_with(empty));
                            *sum = sum.saturating_add(*ns);
                        }
                    };
                    add(&waits.for_data_ns, |delay| &mut delay.data_ns);
                    add(&waits.for_slot_ns, |delay| &mut delay.slot_ns);
                    add(&waits.in_network_ns, |delay| &mut delay.network_ns);
                }
            }
            let is_judged = checks.iter().any(|check| check.verdict.messages > 0);
            let own = |rank: &i32| own.get(rank).copied().filter(|_| is_judged);
            let sum = |value: fn(&CommunicatorCheck) -> u64| checks.iter().map(|check| value(check)).sum();
            CommData {
                name: name.clone(),
                comm_name: comm.name.clone(),
                n_ranks: comm.n_ranks,
                collectives: sum(|check| check.collectives),
                ranks: comm.ranks.iter().map(|(rank, info)| info.data(*rank, own(rank))).collect(),
                rings: self.shapes.rings(number),
                trees: self.shapes.trees(number),
                links: self.links.data(number),
                delays: delays.into_values().collect(),
                messages_judged: sum(|check| check.verdict.messages),
                messages_not_judged: sum(|check| check.verdict.messages_not_judged),
                measured,
            }
        };
        self.comms.iter().enumerate().map(data).collect()
    }

    fn summed_up(&self) -> Vec<String> {
        let mut said = Vec::new();
        let merge = self.timeline.merge();
        if merge > 1 {
            said.push(format!(
                "The timeline has more operations than a page can show: a bar is up to {merge} \
                 consecutive operations of a rank, the same ones on all ranks. The slowest {} are listed \
                 one by one.",
                super::timeline::MAX_LONGEST
            ));
        }
        if self.kinds.has_rounded() {
            said.push("There are more than 1,024 different operations and sizes: further sizes are rounded up to powers of two.".to_owned());
        }
        if self.links.left_out() > 0 {
            said.push(format!(
                "There are more pairs of ranks than a page can show: {} messages and sums of messages of further pairs are not in the traffic.",
                self.links.left_out()
            ));
        }
        if self.comms.left_out > 0 {
            said.push(format!(
                "There are more communicators or ranks than a page can show: {} operations and calls of further ones are left out.",
                self.comms.left_out
            ));
        }
        if self.shapes.is_full() {
            said.push(
                "Rings and trees of further ranks and channels are not drawn: there are too many.".to_owned(),
            );
        }
        if self.iterations.has_others() {
            said.push("Iterations are shown of 32 processes only.".to_owned());
        }
        if self.code.left_out() > 0 {
            said.push(format!(
                "{} operations and calls have call stacks beyond the first 16,384, which are not shown.",
                self.code.left_out()
            ));
        }
        said
    }

    fn not_seen(&self, exported: &Exported, seen: Seen) -> Vec<String> {
        let Totals { ops, planned_only, incomplete, without_clock, calls_without_rank, .. } = self.totals;
        let mut said = Vec::new();
        let mut say = |is_so: bool, text: String| {
            if is_so {
                said.push(text);
            }
        };
        say(
            seen.recorded < seen.ranks,
            format!(
                "{} of {} ranks were not recorded: nothing of them is on this page but what others sent to them.",
                seen.ranks.saturating_sub(seen.recorded),
                seen.ranks
            ),
        );
        say(
            planned_only > 0,
            format!(
                "{planned_only} of {ops} operations were planned, and not measured: they have a moment (of their launch) and no length. `record --level steps` measures those that go over the network; what goes over NVLink cannot be measured from outside."
            ),
        );
        say(
            incomplete > 0,
            format!("Of {incomplete} operations something is missing, as records were lost."),
        );
        say(
            exported.rows.numbered_locally > 0,
            format!(
                "{} operations and calls have numbers that count from the beginning of what was read.",
                exported.rows.numbered_locally
            ),
        );
        say(
            without_clock > 0,
            format!(
                "{without_clock} recordings do not say how their clock relates to Unix time: their times \
                 cannot be compared with those of the others."
            ),
        );
        say(
            calls_without_rank > 0,
            format!(
                "{calls_without_rank} calls belong to no known communicator, and are not on the timeline."
            ),
        );
        for twice in exported.twice.iter().take(20) {
            say(
                true,
                format!(
                    "Rank {} of {} was recorded twice: that of process {} on {} is called {}.",
                    twice.rank, twice.communicator, twice.pid, twice.host, twice.instead
                ),
            );
        }
        say(self.sources.len() > 1, "Times of different hosts agree as well as their clocks do: milliseconds, or microseconds with PTP.".to_owned());
        said
    }
}

impl View for Collector {
    fn look_at(&mut self, sources: &[Source]) -> Result<()> {
        let paths: Vec<PathBuf> = sources.iter().map(|source| source.path.clone()).collect();
        self.check = Some(RunningCheck::new(paths)?);
        Ok(())
    }

    fn begin(&mut self, source: &Source) -> Result<()> {
        self.close_all();
        self.offset_ns = source.offset_ns();
        self.totals.without_clock += u64::from(self.offset_ns == 0);
        let session = SessionFacts::of(source);
        self.has_calls_only = session.has_calls_only;
        self.comms.begin(source.host(), session.ranks);
        self.code.begin();
        self.sources.push(session.data);
        let (from_ns, until_ns) = self.ranges.next().unwrap_or((0, u64::MAX));
        // Times outside of the chosen range are not shown.
        let clock = source.session().known_clock().map(|mut clock| {
            clock.started_monotonic_ns = clock.started_monotonic_ns.max(from_ns);
            let ended = clock.ended_monotonic_ns.unwrap_or(u64::MAX).min(until_ns);
            clock.ended_monotonic_ns = (ended < u64::MAX).then_some(ended);
            clock
        });
        if let Some(check) = &mut self.check {
            check.begin(&source.path, clock);
        }
        Ok(())
    }

    fn finish(&mut self, exported: &Exported) -> Result<()> {
        self.close_all();
        let data = self.data(exported);
        *self.handed.lock().unwrap_or_else(PoisonError::into_inner) = Some(data);
        Ok(())
    }
}

impl Sink for Collector {
    fn op(&mut self, op: &Op) {
        self.last = None;
        if let Some(check) = &mut self.check {
            check.op(op);
        }
        let Some(comm) = self.comms.number(op.rank, op.row.n_ranks) else { return };
        self.shapes.note(comm, &op.row);
        self.iterations.add(self.comms.host(), comm, op.rank, op, self.offset_ns);
        let code = op.row.stack.and_then(|stack| self.code.number(op.row.pid, stack));
        let (rank, seq, offset_ns) = (op.rank.rank, op.row.seq, self.offset_ns);
        let new = || OpTotals::new(comm, op, offset_ns, code);
        if let Some(totals) = self.ops.get((comm, rank), seq, &mut self.closed, new) {
            totals.add_channel(op, offset_ns, code);
        }
        self.last = Some(Last { comm, rank, seq });
        self.count_closed();
    }

    /// Takes the messages of measured ops only: for others the sums say the same.
    fn wants_messages(&self, op: &Op) -> bool {
        op.row.has_measured_messages()
    }

    fn wants_message_sums(&self, op: &Op) -> bool {
        !op.row.has_measured_messages()
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        if let Some(check) = &mut self.check {
            check.messages(op, messages);
        }
        let Some(Last { comm, rank, seq }) = self.last else { return };
        let offset_ns = self.offset_ns;
        let wall = |at: u64| at.saturating_add(offset_ns);
        for message in messages {
            self.links.add(comm, message);
            if let Some(totals) = self.ops.known((comm, rank), seq) {
                totals.add_message(message, offset_ns);
                if message.op == Direction::Send {
                    self.rates.add(Counted::Planned, totals.ts_ns, message.bytes);
                }
            }
            if let (Direction::Send, Some(end), Some(bytes)) =
                (message.op, message.t_end_ns.get(), message.bytes_measured.get())
            {
                self.rates.add(Counted::Sent, wall(end), bytes);
            }
        }
    }

    fn message_sums(&mut self, op: &Op, sums: &[MessageSums]) {
        let Some(Last { comm, rank, .. }) = self.last else { return };
        let at_ns = op.row.ts_ns.saturating_add(self.offset_ns);
        for sums in sums {
            self.links.add_sums(comm, rank, sums);
            if sums.op == Direction::Send {
                let bytes = sums.bytes_exact.saturating_add(sums.bytes_capacity);
                self.rates.add(Counted::Planned, at_ns, bytes);
            }
        }
    }

    fn call(&mut self, call: &ApiCall) {
        self.totals.calls += 1;
        self.code.add_call(call);
        let Some(key) = call.rank else {
            self.totals.calls_without_rank += 1;
            return;
        };
        let Some(comm) = self.comms.number(key, call.row.n_ranks.unwrap_or(0)) else { return };
        let Some(rank) = self.comms.rank(comm, key.rank) else { return };
        rank.calls += 1;
        let number = rank.calls;
        if !self.has_calls_only {
            return;
        }
        // Without ops, the calls are shown: each has a moment.
        let code = call.row.stack.and_then(|stack| self.code.number(call.row.pid, stack));
        let kind = KindKey::of_call(call);
        let ts_ns = call.row.ts_ns.saturating_add(self.offset_ns);
        let totals = OpTotals::of_call((comm, key.rank), number, kind, ts_ns, code);
        let kind = self.kinds.add(&totals);
        self.timeline.add(&totals, kind, code);
    }

    fn stack(&mut self, stack: &StackRow) {
        self.code.stack(stack);
    }
}
