//! A trace for Perfetto (<https://ui.perfetto.dev>), of all ranks of all hosts, as track events.
//!
//! Processes are those that were recorded; in them are their ranks of communicators; in these, tracks for
//! channels and for the peers of each channel. A measured op or message is a slice; one that was only planned
//! is an instant, whose values say it. Arrows lead from a send to its receive, in one file only: Perfetto
//! follows none from file to file. So the times of all hosts are Unix times, converted by each recording's
//! own offset.
//!
//! Rows are written as they come, and only the last op is kept of them. Slices of a track are in the order of
//! time; Perfetto sorts the rest.

mod counters;
mod events;
mod ids;
mod messages;
mod output;
mod trace_file;
mod tracks;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use flow::{
    schema::{MessageRow, MessageSums, Op, RankKey},
    text::counts,
};
use foldhash::HashMap;
use nccl_library::nccl::Direction;

use self::{
    counters::{Counted, Counters},
    events::{CallEvent, MessageEvent, PendingOp},
    ids::{flow_id, op_id},
    messages::{COUNTER, INSTANT, SLICE_BEGIN, SLICE_END, STATE, TrackEvent},
    trace_file::TraceFile,
    tracks::{Content, Lane, Place, RankId, Tracks},
};
use super::{
    run::Exported,
    view::{Row, View, Wanted},
};
use crate::sources::{Source, Who};

/// Most planned ops of a rank that are known to be drawn: the rows of an op's channels do not always come in
/// succession.
const MAX_DRAWN: usize = 1024;

/// Bytes from which a file loads slowly.
const LARGE: u64 = 50_000_000;

/// Context of errors.
const WRITING: &str = "writing the trace";

/// Counts for the user's notes.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    slices: u64,
    instants: u64,
    flows: u64,
    states: u64,
    /// Number of messages of which the begin or the end was not seen.
    not_measured: u64,
    /// Number of planned ops on a further channel of an op that is drawn.
    further_channels: u64,
    /// Number of events without a slice: too many at once on one track.
    without_slice: u64,
    /// Number of messages of sends and receives between ranks, which have no arrows.
    p2p_messages: u64,
    /// Number of recordings that do not say how their clock stands to Unix time.
    without_clock: u64,
}

#[derive(Debug)]
pub(super) struct Perfetto {
    file: TraceFile,
    tracks: Tracks,
    counters: Counters,
    offset_ns: u64,
    /// The last op, whose messages come.
    op: Option<PendingOp>,
    totals: Totals,
    /// Numbers of the latest planned ops that are drawn, by rank.
    drawn: HashMap<RankKey, BTreeSet<u64>>,
}

impl Perfetto {
    /// Creates the file. `beside` are traces of torch's profiler, which are laid beside ours.
    pub(super) fn create(path: &Path, beside: &[PathBuf]) -> Result<Self> {
        Ok(Self {
            file: TraceFile::create(path, beside)?,
            tracks: Tracks::default(),
            counters: Counters::default(),
            offset_ns: 0,
            op: None,
            totals: Totals::default(),
            drawn: HashMap::default(),
        })
    }

    fn wall(&self, at_ns: u64) -> u64 {
        at_ns.saturating_add(self.offset_ns)
    }

    /// Writes a slice with the values of its begin, and the flow that its end closes.
    fn slice(
        &mut self,
        (begin_ns, end_ns): (u64, Option<u64>),
        name: &str,
        begin: TrackEvent,
        terminating_flow_ids: Vec<u64>,
    ) -> io::Result<()> {
        let track_uuid = begin.track_uuid;
        self.file.event(begin_ns, Some(name), TrackEvent { kind: SLICE_BEGIN, ..begin })?;
        self.totals.slices += 1;
        let Some(end_ns) = end_ns else { return Ok(()) };
        let end = TrackEvent { kind: SLICE_END, track_uuid, terminating_flow_ids, ..TrackEvent::default() };
        self.file.event(end_ns, None, end)
    }

    fn instant(&mut self, at_ns: u64, name: &str, event: TrackEvent) -> io::Result<()> {
        self.totals.instants += 1;
        self.file.event(at_ns, Some(name), TrackEvent { kind: INSTANT, ..event })
    }

    fn begin_op(&mut self, op: &Op) -> io::Result<()> {
        self.finish_op()?;
        let rank = self.tracks.rank(op.rank, &mut self.file)?;
        self.op = Some(PendingOp::new(op.clone(), rank));
        Ok(())
    }

    fn messages(&mut self, messages: &[MessageRow]) -> io::Result<()> {
        let Some(mut pending) = self.op.take() else { return Ok(()) };
        for message in messages {
            pending.note(message);
            self.message(&pending.op, pending.rank, message)?;
        }
        self.op = Some(pending);
        Ok(())
    }

    fn message_sums(&mut self, sums: &[MessageSums]) {
        let Some(pending) = &mut self.op else { return };
        let (rank, at_ns) = (pending.rank, pending.op.row.ts_ns.saturating_add(self.offset_ns));
        for sums in sums {
            pending.noted.messages = pending.noted.messages.saturating_add(sums.messages);
            self.totals.not_measured = self.totals.not_measured.saturating_add(sums.messages);
            if sums.op == Direction::Send && sums.bytes_exact > 0 {
                self.counters.add(rank, Counted::Planned, at_ns, sums.bytes_exact);
            }
        }
    }

    /// Writes the last op, which is complete.
    fn finish_op(&mut self) -> io::Result<()> {
        let Some(pending) = self.op.take() else { return Ok(()) };
        // A replay that the launch of its graph tells has the captured op's number, and is no channel of it.
        let is_replay = pending.op.row.graph_launch.is_some();
        if pending.span().is_none() && !is_replay && !self.is_drawn(&pending.op) {
            self.totals.further_channels += 1;
            return Ok(());
        }
        let rank = pending.rank;
        let row = &pending.op.row;
        let category_iids = self.file.category("op");
        let base = TrackEvent {
            category_iids,
            debug_annotations: self.file.values(pending.values()),
            correlation_id: op_id(&pending.op),
            ..TrackEvent::default()
        };
        let place = Place::Channel(rank, row.channel, Content::Ops);
        if let Some((begin_ns, end_ns)) = pending.span() {
            let span = (self.wall(begin_ns), self.wall(end_ns));
            let Self { tracks, file, .. } = self;
            if let Some(Lane { track, .. }) = tracks.slot(place, span, file)? {
                let begin = TrackEvent { track_uuid: track, ..base };
                return self.slice((span.0, Some(span.1)), pending.name(), begin, Vec::new());
            }
            self.totals.without_slice += 1;
        }
        let at_ns = self.wall(row.ts_ns);
        let track_uuid = self.tracks.channel_track(place, &mut self.file)?;
        self.instant(at_ns, pending.name(), TrackEvent { track_uuid, ..base })
    }

    /// Tells whether an op that was only planned is drawn: once, on the first of its channels. On the others
    /// stands the same moment, and nothing else.
    fn is_drawn(&mut self, op: &Op) -> bool {
        let drawn = self.drawn.entry(op.rank).or_default();
        let is_first = drawn.insert(op.row.seq);
        if drawn.len() > MAX_DRAWN {
            drawn.pop_first();
        }
        is_first
    }

    fn message(&mut self, op: &Op, rank: RankId, message: &MessageRow) -> io::Result<()> {
        let event = MessageEvent::of(op, message);
        self.count(op, rank, message);
        // A message that was on its way when the session ended has a begin and no end.
        let end_ns = event.end_ns.or_else(|| event.is_open().then_some(u64::MAX));
        let (Some(begin_ns), Some(end_ns)) = (event.begin_ns, end_ns) else {
            self.totals.not_measured += 1;
            return Ok(());
        };
        let span = (self.wall(begin_ns), self.wall(end_ns));
        let place = Place::Channel(rank, message.channel, event.content);
        let Some(slot) = self.tracks.slot(place, span, &mut self.file)? else {
            self.totals.without_slice += 1;
            return Ok(());
        };
        let flow = flow_id(op, message);
        self.totals.p2p_messages += u64::from(op.row.pattern.is_p2p());
        self.totals.flows += u64::from(flow.is_some() && event.is_send());
        let (out, terminating): (Vec<u64>, Vec<u64>) = flow.into_iter().partition(|_| event.is_send());
        let begin = TrackEvent {
            category_iids: self.file.category("message"),
            debug_annotations: self.file.values(event.values()),
            track_uuid: slot.track,
            flow_ids: out,
            correlation_id: op_id(op),
            ..TrackEvent::default()
        };
        let end = (end_ns != u64::MAX).then_some(span.1);
        self.slice((span.0, end), event.name, begin, terminating)?;
        let Some(states) = slot.states else { return Ok(()) };
        for (at_ns, state) in event.states() {
            let state = state.unwrap_or_default();
            self.totals.states += u64::from(!state.is_empty());
            let event = TrackEvent { kind: STATE, track_uuid: states, ..TrackEvent::default() };
            self.file.event(self.wall(at_ns), Some(&state), event)?;
        }
        Ok(())
    }

    fn count(&mut self, op: &Op, rank: RankId, message: &MessageRow) {
        let is_send = message.op == Direction::Send;
        if is_send && message.bytes_kind == flow::schema::BytesKind::Exact {
            self.counters.add(rank, Counted::Planned, self.wall(op.row.ts_ns), message.bytes);
        }
        if let (Some(end_ns), Some(bytes)) = (message.t_end_ns.get(), message.bytes_measured.get()) {
            let counted = if is_send { Counted::Sent } else { Counted::Received };
            self.counters.add(rank, counted, self.wall(end_ns), bytes);
        }
    }

    fn call_event(&mut self, event: CallEvent<'_>) -> io::Result<()> {
        let begin_ns = self.wall(event.ts_ns);
        let end_ns = event.host_ns.map(|host_ns| begin_ns.saturating_add(host_ns));
        let span = (begin_ns, end_ns.unwrap_or(begin_ns));
        let place = Place::Thread(event.place.0, event.place.1);
        let Some(slot) = self.tracks.slot(place, span, &mut self.file)? else {
            self.totals.without_slice += 1;
            return Ok(());
        };
        let base = TrackEvent {
            category_iids: self.file.category("call"),
            debug_annotations: self.file.values(event.values),
            track_uuid: slot.track,
            correlation_id: event.correlation_id,
            ..TrackEvent::default()
        };
        match end_ns {
            Some(end_ns) => self.slice((begin_ns, Some(end_ns)), event.name, base, Vec::new()),
            None => self.instant(begin_ns, event.name, base),
        }
    }

    fn write_counters(&mut self) -> io::Result<()> {
        let width_ms = self.counters.width_ms();
        for (rank, counted, values) in self.counters.take() {
            let name = format!("bytes {} per {width_ms} ms", counted.name());
            let track_uuid = self.tracks.counter(rank, name, &mut self.file)?;
            for (at_ns, bytes) in values {
                let event = TrackEvent {
                    kind: COUNTER,
                    track_uuid,
                    counter_value: Some(i64::try_from(bytes).unwrap_or(i64::MAX)),
                    ..TrackEvent::default()
                };
                self.file.event(at_ns, None, event)?;
            }
        }
        Ok(())
    }
}

impl View for Perfetto {
    fn look_at(&mut self, sources: &[Source]) -> Result<()> {
        self.file.file.check_beside(sources)?;
        let first = sources.iter().filter_map(Source::wall_span_ns).map(|(first, _)| first).min();
        let first = first.unwrap_or_default();
        let is_one_host = sources.windows(2).all(|pair| pair[0].host() == pair[1].host());
        let offset_ns = sources.first().map_or(0, Source::offset_ns);
        let monotonic = first.checked_sub(offset_ns).filter(|_| is_one_host && offset_ns > 0);
        Ok(self.file.begin(first, monotonic)?)
    }

    fn begin(&mut self, source: &Source) -> Result<()> {
        self.finish_op().context(WRITING)?;
        self.offset_ns = source.offset_ns();
        self.totals.without_clock += u64::from(self.offset_ns == 0);
        self.tracks.begin(source.host(), Who::of(source.session()));
        Ok(())
    }

    fn wanted(&self, op: &Op) -> Wanted {
        Wanted::of_measured(op)
    }

    fn row(&mut self, row: Row<'_>) -> Result<()> {
        match row {
            Row::Op(op) => self.begin_op(op),
            Row::Messages(_, messages) => self.messages(messages),
            Row::MessageSums(_, sums) => {
                self.message_sums(sums);
                Ok(())
            }
            Row::Call(call) => self.call_event(CallEvent::of_call(call)),
            Row::OtherCall(row) => self.call_event(CallEvent::of_other(row)),
            Row::Stack(_) | Row::Gpu(_) | Row::LaunchThread(_) | Row::ProcessEnded(_) => Ok(()),
        }
        .context(WRITING)
    }

    fn finish(&mut self, _exported: &Exported) -> Result<Vec<String>> {
        self.finish_op().and_then(|()| self.write_counters()).context(WRITING)?;
        self.file.finish()?;
        let Totals { slices, instants, flows, states, .. } = self.totals;
        let mut notes = vec![format!(
            "{slices} slices, {instants} instants, {flows} arrows begun, {states} waits on {} tracks, {} bytes: open it in ui.perfetto.dev",
            self.tracks.last, self.file.bytes
        )];
        if self.file.file.is_archive() {
            notes.push(
                "the file is an archive with torch's traces on the same timeline (Perfetto v58 and later)"
                    .to_owned(),
            );
        }
        if self.file.bytes > LARGE && !self.file.file.is_packed() {
            notes.push(
                "a name that ends with .gz makes a file of about a tenth, which ui.perfetto.dev opens, too; \
                 --last 1s, --rank and --comm choose a part"
                    .to_owned(),
            );
        }
        notes.extend(counts([
            (
                self.totals.further_channels,
                "planned operations on further channels are left out: nothing was measured of them, and the first channel has all that was planned (`-f jsonl` has each)",
            ),
            (
                self.totals.not_measured,
                "messages were planned, and their begin or end was not measured (`record --level steps` measures those of the network): they are counted, and have no slice",
            ),
            (
                self.totals.p2p_messages,
                "messages of sends and receives have no arrow: NCCL has no number for them that both ranks know",
            ),
            (
                self.totals.without_slice,
                "events are not shown, because they overlap others on their track",
            ),
            (
                self.totals.without_clock,
                "recordings do not say how their clock relates to Unix time: their times cannot be compared with those of the others",
            ),
        ]));
        Ok(notes)
    }
}

#[cfg(test)]
mod tests;
