//! Takes all rows, once, and sums them up for the page.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use flow::schema::{ApiCall, MessageRow, MessageSums, Op};
use nccl_library::nccl::Direction;

use super::{
    Section,
    code::Code,
    communicators::{Comm, Communicators},
    data::{CommData, Data, DelayData, JobData, RankData, SourceData},
    iterations,
    kinds::{KindKey, Kinds},
    links::Links,
    open_ops::{OpTotals, OpenOps, WAITS},
    rates::{Counted, Rates},
    shapes::Shapes,
    timeline::Timeline,
    verdict::{Seen, verdict},
};
use crate::{
    check::{CheckReport, CommunicatorCheck, RunningCheck},
    export::{Exported, Row, Source, View, Wanted},
    iterations::Iterations,
    not_recorded::why_empty,
};

/// Format of the data. A page has its own scripts, so this is for others who read the data.
const FORMAT: u32 = 1;

#[derive(Debug, Default)]
pub(super) struct Collector {
    handed: Arc<Mutex<Option<Data>>>,
    open: Option<Section>,
    /// Ranges of time from which rows are taken, one for each source.
    ranges: std::vec::IntoIter<(u64, u64)>,
    check: RunningCheck,
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
    /// Communicator of the last op, whose messages come next; `None`: it is left out.
    last: Option<usize>,
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

impl Collector {
    /// `handed` gets the data when all rows have come.
    pub(super) fn new(
        handed: Arc<Mutex<Option<Data>>>,
        ranges: Vec<(u64, u64)>,
        open: Option<Section>,
    ) -> Self {
        Self { handed, open, ranges: ranges.into_iter(), ..Self::default() }
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
        let report = self.check.finish();
        let (t0_ns, end_ns) = self.timeline.span_ns().or(exported.span_unix_ns).unwrap_or_default();
        let (code, codes) = self.code.data();
        for (source, read) in self.sources.iter_mut().zip(&exported.sources) {
            source.records = read.records;
            source.notes.extend(read.read.notes());
        }
        let seen = self.seen(exported);
        let comm = |name: &str| self.comms.find(name);
        let verdict = verdict(&report, &seen, &comm, t0_ns);
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
            jobs: report.parts().map(|part| JobData::of(&part, &comm, t0_ns)).collect(),
            hosts: self.comms.hosts.clone(),
            comms: self.comm_data(&report),
            wait_names: WAITS.to_vec(),
            kinds: self.kinds.data(),
            longest: self.timeline.longest(t0_ns, &codes),
            timeline: self.timeline.data(t0_ns, &codes),
            rates: self.rates.data(t0_ns),
            iterations: iterations::data(&mut self.iterations, t0_ns),
            code: if self.code.stacks.len() > 0 { code } else { Vec::new() },
            summed_up: self.summed_up(),
            not_seen: self.not_seen(exported, &seen),
            sources: std::mem::take(&mut self.sources),
            rows: exported.rows,
        }
    }

    fn seen(&self, exported: &Exported) -> Seen {
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
            why_empty: exported.sources.first().map(|of| why_empty(self.has_calls_only, &of.read)),
            has_losses: self.sources.iter().any(|source| source.loss.iter().any(is_lost)),
        }
    }

    fn comm_data(&self, report: &CheckReport) -> Vec<CommData> {
        let data = |(number, (name, comm)): (usize, &(String, Comm))| {
            // Each window is checked by itself.
            let checks: Vec<&CommunicatorCheck> =
                report.communicators.iter().filter(|check| check.communicator == *name).collect();
            // By rank and peer: waits for data and for a slot, and time in the network.
            let mut delays: BTreeMap<(i32, i32), [u64; 3]> = BTreeMap::new();
            let mut own: BTreeMap<i32, u64> = BTreeMap::new();
            let mut measured: BTreeMap<String, u64> = BTreeMap::new();
            for check in &checks {
                for (outcome, ops) in &check.measured {
                    *measured.entry(outcome.name().to_owned()).or_default() += ops;
                }
                for waits in &check.verdict.ranks {
                    let rank = waits.rank;
                    *own.entry(rank).or_default() += waits.own_gpu_ns;
                    let by_peer = [&waits.for_data_ns, &waits.for_slot_ns, &waits.in_network_ns];
                    for (kind, peers) in by_peer.into_iter().enumerate() {
                        for (peer, ns) in peers {
                            let sum = &mut delays.entry((rank, *peer)).or_default()[kind];
                            *sum = sum.saturating_add(*ns);
                        }
                    }
                }
            }
            let delay = |((rank, peer), [data_ns, slot_ns, network_ns]): (_, [u64; 3])| DelayData {
                rank,
                peer,
                data_ns,
                slot_ns,
                network_ns,
            };
            let is_judged = checks.iter().any(|check| check.verdict.messages > 0);
            let with_own = |(rank, known): (&i32, &RankData)| {
                let own_gpu_ns = own.get(rank).copied().filter(|_| is_judged);
                RankData { own_gpu_ns, ..known.clone() }
            };
            let sum = |value: fn(&CommunicatorCheck) -> u64| checks.iter().map(|check| value(check)).sum();
            CommData {
                name: name.clone(),
                comm_name: comm.name.clone(),
                n_ranks: comm.n_ranks,
                collectives: sum(|check| check.collectives),
                ranks: comm.ranks.iter().map(with_own).collect(),
                rings: self.shapes.rings(number),
                trees: self.shapes.trees(number),
                links: self.links.data(number),
                delays: delays.into_iter().map(delay).collect(),
                messages_judged: sum(|check| check.verdict.messages),
                messages_not_judged: sum(|check| check.verdict.messages_not_judged),
                measured,
            }
        };
        self.comms.iter().enumerate().map(data).collect()
    }

    fn summed_up(&self) -> Vec<String> {
        let merge = self.timeline.merge();
        said([
            (
                merge > 1,
                format!(
                    "The timeline has more operations than a page can show: a bar is up to {merge} \
                     consecutive operations of a rank, the same ones on all ranks. The slowest {} are listed \
                     one by one.",
                    super::timeline::MAX_LONGEST
                ),
            ),
            (
                self.kinds.has_rounded(),
                "There are more than 1,024 different operations and sizes: further sizes are rounded up to powers of two.".to_owned(),
            ),
            (
                self.links.0.left_out > 0,
                format!(
                    "There are more pairs of ranks than a page can show: {} messages and sums of messages of further pairs are not in the traffic.",
                    self.links.0.left_out
                ),
            ),
            (
                self.comms.left_out > 0,
                format!(
                    "There are more communicators or ranks than a page can show: {} operations and calls of further ones are left out.",
                    self.comms.left_out
                ),
            ),
            (
                self.shapes.is_full(),
                "Rings and trees of further ranks and channels are not drawn: there are too many.".to_owned(),
            ),
            (self.iterations.others > 0, "Iterations are shown of 32 processes only.".to_owned()),
            (
                self.code.stacks.left_out > 0,
                format!(
                    "{} operations and calls have call stacks beyond the first 16,384, which are not shown.",
                    self.code.stacks.left_out
                ),
            ),
        ])
    }

    fn not_seen(&self, exported: &Exported, seen: &Seen) -> Vec<String> {
        let Totals { ops, planned_only, incomplete, without_clock, calls_without_rank, .. } = self.totals;
        let twice = exported.twice.iter().take(20).map(|twice| {
            let text = format!(
                "Rank {} of {} was recorded twice: that of process {} on {} is called {}.",
                twice.rank, twice.communicator, twice.pid, twice.host, twice.instead
            );
            (true, text)
        });
        let clocks = "Times of different hosts agree as well as their clocks do: milliseconds, or microseconds with PTP.";
        let notes = [
            (
                seen.recorded < seen.ranks,
                format!(
                    "{} of {} ranks were not recorded: nothing of them is on this page but what others sent to them.",
                    seen.ranks.saturating_sub(seen.recorded),
                    seen.ranks
                ),
            ),
            (
                planned_only > 0,
                format!(
                    "{planned_only} of {ops} operations were planned, and not measured: they have a moment (of their launch) and no length. `record --level steps` measures those that go over the network; what goes over NVLink cannot be measured from outside."
                ),
            ),
            (
                incomplete > 0,
                format!("Of {incomplete} operations something is missing, as records were lost."),
            ),
            (
                exported.rows.numbered_locally > 0,
                format!(
                    "{} operations and calls have numbers that count from the beginning of what was read.",
                    exported.rows.numbered_locally
                ),
            ),
            (
                without_clock > 0,
                format!(
                    "{without_clock} recordings do not say how their clock relates to Unix time: their times \
                     cannot be compared with those of the others."
                ),
            ),
            (
                calls_without_rank > 0,
                format!(
                    "{calls_without_rank} calls belong to no known communicator, and are not on the timeline."
                ),
            ),
        ];
        said(notes.into_iter().chain(twice).chain([(self.sources.len() > 1, clocks.to_owned())]))
    }
}

/// Returns the sentences that are so.
fn said(notes: impl IntoIterator<Item = (bool, String)>) -> Vec<String> {
    notes.into_iter().filter(|(is_so, _)| *is_so).map(|(_, text)| text).collect()
}

impl View for Collector {
    fn look_at(&mut self, sources: &[Source]) -> Result<()> {
        self.check = RunningCheck::new(sources)?;
        Ok(())
    }

    fn begin(&mut self, source: &Source) -> Result<()> {
        self.close_all();
        self.offset_ns = source.offset_ns();
        self.totals.without_clock += u64::from(self.offset_ns == 0);
        self.has_calls_only = source.is_of_calls();
        self.comms.begin(source.host(), source.session().communicators.clone());
        self.code.begin();
        self.sources.push(SourceData::of(source));
        let (from_ns, until_ns) = self.ranges.next().unwrap_or((0, u64::MAX));
        // Times outside of the chosen range are not shown.
        let mut clock = source.session().clock.clone();
        clock.started_monotonic_ns = clock.started_monotonic_ns.max(from_ns);
        let ended = clock.ended_monotonic_ns.unwrap_or(u64::MAX).min(until_ns);
        clock.ended_monotonic_ns = (ended < u64::MAX).then_some(ended);
        self.check.begin(source, clock);
        Ok(())
    }

    /// Takes the messages of measured ops only: for others the sums say the same.
    fn wanted(&self, op: &Op) -> Wanted {
        Wanted::of_measured(op)
    }

    fn row(&mut self, row: Row<'_>) -> Result<()> {
        match row {
            Row::Op(op) => self.op(op),
            Row::Messages(op, messages) => self.messages(op, messages),
            Row::MessageSums(op, sums) => self.message_sums(op, sums),
            Row::Call(call) => self.call(call),
            Row::Stack(stack) => {
                self.code.stack(stack);
                if let Some(rows) = self.check.rows() {
                    rows.stack(stack);
                }
            }
            Row::Gpu(row) => {
                if let Some(rows) = self.check.rows() {
                    rows.gpu(row);
                }
            }
            Row::LaunchThread(row) => {
                if let Some(rows) = self.check.rows() {
                    rows.launch_thread(row);
                }
            }
            Row::OtherCall(_) | Row::ProcessEnded(_) => {}
        }
        Ok(())
    }

    fn finish(&mut self, exported: &Exported) -> Result<Vec<String>> {
        self.close_all();
        let data = self.data(exported);
        *self.handed.lock().unwrap_or_else(PoisonError::into_inner) = Some(data);
        Ok(Vec::new())
    }
}

impl Collector {
    fn op(&mut self, op: &Op) {
        self.last = None;
        if let Some(rows) = self.check.rows() {
            rows.op(op);
        }
        let Some(comm) = self.comms.number(op.rank, op.row.n_ranks) else { return };
        self.shapes.note(comm, &op.row);
        self.iterations.add(self.comms.host, comm, op.rank, op, self.offset_ns);
        let code = op.row.stack.and_then(|stack| self.code.number(op.row.pid, stack));
        let (rank, seq, offset_ns) = (op.rank.rank, op.row.seq, self.offset_ns);
        let new = || OpTotals::new(comm, op, offset_ns, code);
        if op.row.graph_launch.is_some() {
            // It is whole, and has the number of the captured op.
            self.closed.push(new());
            self.count_closed();
            return;
        }
        if let Some(totals) = self.ops.get((comm, rank), seq, &mut self.closed, new) {
            totals.add_channel(op, offset_ns, code);
        }
        self.last = Some(comm);
        self.count_closed();
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        if let Some(rows) = self.check.rows() {
            rows.messages(op, messages);
        }
        let Some(comm) = self.last else { return };
        let offset_ns = self.offset_ns;
        let wall = |at: u64| at.saturating_add(offset_ns);
        for message in messages {
            self.links.add(comm, message);
            if let Some(totals) = self.ops.known((comm, op.rank.rank), op.row.seq) {
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
        let Some(comm) = self.last else { return };
        let at_ns = op.row.ts_ns.saturating_add(self.offset_ns);
        for sums in sums {
            self.links.add_sums(comm, op.rank.rank, sums);
            if sums.op == Direction::Send {
                let bytes = sums.bytes_exact.saturating_add(sums.bytes_capacity);
                self.rates.add(Counted::Planned, at_ns, bytes);
            }
        }
    }

    fn call(&mut self, call: &ApiCall) {
        self.totals.calls += 1;
        self.code.add_call(call);
        if let Some(rows) = self.check.rows() {
            rows.call(call);
        }
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
}
