//! Events of a trace, made from rows: names, times, values.

use flow::{
    schema::{ApiCall, BytesKind, MessageRow, Observed, Op, OtherCallRow, Outcome, Pointer, Wait},
    text::joined,
};
use nccl_library::nccl::{Algorithm, Direction};

use super::{
    ids::id_of,
    trace_file::Value,
    tracks::{Content, RankId},
};

type Values<'a> = Vec<(&'static str, Option<Value<'a>>)>;

/// An op whose messages are still coming.
#[derive(Debug)]
pub(super) struct PendingOp {
    pub(super) op: Op,
    pub(super) rank: RankId,
    pub(super) noted: Noted,
}

/// Sums of an op's messages.
#[derive(Debug, Default)]
pub(super) struct Noted {
    begin_ns: Option<u64>,
    begin_is_measured: bool,
    end_ns: Option<u64>,
    pub(super) messages: u64,
    measured: u64,
    bytes_measured: u64,
}

impl PendingOp {
    pub(super) fn new(op: Op, rank: RankId) -> Self {
        Self { op, rank, noted: Noted::default() }
    }

    pub(super) fn note(&mut self, message: &MessageRow) {
        let noted = &mut self.noted;
        noted.messages += 1;
        let (Some(begin), Some(end)) = (message.begin(), message.t_end_ns.get()) else { return };
        noted.measured += 1;
        noted.bytes_measured += message.bytes_measured.get().unwrap_or(0);
        if noted.begin_ns.is_none_or(|first| begin < first) {
            noted.begin_ns = Some(begin);
            noted.begin_is_measured = measured_begin(message).is_some();
        }
        noted.end_ns = noted.end_ns.max(Some(end));
    }

    /// Returns the time from the first measured message to the last.
    pub(super) fn span(&self) -> Option<(u64, u64)> {
        Some((self.noted.begin_ns?, self.noted.end_ns?)).filter(|(begin, end)| begin <= end)
    }

    pub(super) fn name(&self) -> &str {
        let row = &self.op.row;
        row.coll.as_deref().unwrap_or(row.pattern.name())
    }

    pub(super) fn values(&self) -> Values<'_> {
        let Self { op, noted, .. } = self;
        let row = &op.row;
        let outcome = row.measured.map(Outcome::name);
        let is_slice = self.span().is_some();
        let what = match row.graph_launch {
            _ if is_slice => "measured",
            Some(_) => "replayed",
            None => "planned",
        };
        let begin = if noted.begin_is_measured { "measured" } else { "derived: its slot was free" };
        let peers = row.peers.iter().take(32);
        let peers = peers.map(|peer| format!("{} {} {}", peer.op.name(), peer.peer, peer.transport));
        vec![
            ("what", text(what)),
            ("seq", Some(Value::Unsigned(row.seq))),
            ("channel", Some(Value::Unsigned(row.channel.into()))),
            ("opCount", Some(Value::Unsigned(row.op_count))),
            ("algorithm", row.algorithm.map(Algorithm::name).and_then(text)),
            ("protocol", text(row.protocol.name())),
            ("pattern", text(row.pattern.name())),
            ("dtype", row.dtype.as_deref().and_then(text)),
            ("redOp", row.red_op.as_deref().and_then(text)),
            ("count", row.count.map(Value::Unsigned)),
            ("call_bytes", op.call_bytes.map(Value::Unsigned)),
            ("root", Some(Value::Signed(row.root.into()))),
            ("nsteps", Some(Value::Unsigned(row.nsteps))),
            ("posted", Some(Value::Flag(row.posted))),
            ("peers", Some(Value::Text(joined(peers, ", ").into()))),
            ("messages", Some(Value::Unsigned(noted.messages))),
            ("messages_measured", outcome.is_some().then_some(Value::Unsigned(noted.measured))),
            ("bytes_measured", is_slice.then_some(Value::Unsigned(noted.bytes_measured))),
            ("begin", text(begin).filter(|_| is_slice)),
            ("outcome", outcome.and_then(text)),
            ("incomplete", row.incomplete.then_some(Value::Flag(true))),
            ("capturedSeq", row.captured_seq.map(Value::Unsigned)),
            ("graphLaunch", row.graph_launch.map(Value::Unsigned)),
        ]
    }
}

/// Returns the time at which the network or the GPU was seen to begin with a message.
fn measured_begin(message: &MessageRow) -> Option<u64> {
    match message.op {
        Direction::Send => message.t_start_ns.get(),
        Direction::Recv => message.t_posted_ns.get(),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as values are given that may not be known")]
fn text(text: &str) -> Option<Value<'_>> {
    Some(Value::Text(text.into()))
}

/// A message with a peer.
#[derive(Debug)]
pub(super) struct MessageEvent<'a> {
    message: &'a MessageRow,
    outcome: Option<Outcome>,
    pub(super) name: &'static str,
    pub(super) content: Content,
    pub(super) begin_ns: Option<u64>,
    /// End of the message, never before its begin.
    pub(super) end_ns: Option<u64>,
}

impl<'a> MessageEvent<'a> {
    pub(super) fn of(op: &Op, message: &'a MessageRow) -> Self {
        let (name, content) = match message.op {
            Direction::Send => ("send", Content::Sends(message.peer)),
            Direction::Recv => ("receive", Content::Receives(message.peer)),
        };
        let begin_ns = message.begin();
        let end_ns = message.t_end_ns.get().filter(|end| begin_ns.is_none_or(|begin| begin <= *end));
        Self { message, outcome: op.row.measured, name, content, begin_ns, end_ns }
    }

    pub(super) fn is_send(&self) -> bool {
        self.message.op == Direction::Send
    }

    /// Tells whether the message was on its way when the session ended.
    pub(super) fn is_open(&self) -> bool {
        self.outcome == Some(Outcome::SessionEnded) && self.message.t_end_ns.get().is_none()
    }

    pub(super) fn values(&self) -> Values<'_> {
        let message = self.message;
        let is_exact = message.bytes_kind == BytesKind::Exact;
        let is_measured = measured_begin(message).is_some();
        vec![
            ("seq", Some(Value::Unsigned(message.seq))),
            ("step", Some(Value::Unsigned(message.step))),
            ("peer", Some(Value::Signed(message.peer.into()))),
            (if is_exact { "bytes" } else { "bytes_at_most" }, Some(Value::Unsigned(message.bytes))),
            ("bytes_measured", message.bytes_measured.get().map(Value::Unsigned)),
            ("protocol", text(message.protocol.name())),
            ("stage", text(message.stage.name())),
            ("transport", text(message.transport.as_str())),
            ("begin", text("derived: its slot was free").filter(|_| !is_measured)),
            ("proxy_pid", message.proxy_pid.map(|pid| Value::Unsigned(pid.into()))),
        ]
    }

    /// Returns the states of a message: the time of each, in order, and its wait, or `None` where it waits
    /// for nothing. Only waits that the row has are states: where one of a wait's times was not seen, it is
    /// left out.
    pub(super) fn states(&self) -> Vec<(u64, Option<String>)> {
        let message = self.message;
        let (Some(mut at), Some(end)) = (self.begin_ns, self.end_ns) else { return Vec::new() };
        let mut states = Vec::new();
        for (wait, ns) in message.known_waits() {
            // In the order of the kinds, each wait begins where the one before it ends.
            let begin = match wait {
                Wait::PeerBuffer => message.t_ready_ns.get(),
                Wait::Network if self.is_send() => message.t_sent_ns.get(),
                Wait::Flush | Wait::FlushOrGpuConsume => message.t_arrived_ns.get(),
                Wait::GpuConsume => message.t_handed_ns.get(),
                Wait::GpuReady | Wait::GpuReadyOrPeerBuffer | Wait::Network => self.begin_ns,
            };
            let Some(begin) = begin else { continue };
            let until = begin.saturating_add(ns);
            if ns == 0 || begin < at || until > end {
                continue;
            }
            if begin > at && !states.is_empty() {
                states.push((at, None));
            }
            states.push((begin, Some(state(wait, message.peer, self.is_send()))));
            at = until;
        }
        if !states.is_empty() {
            states.push((at, None));
        }
        states
    }
}

fn state(wait: Wait, peer: i32, is_send: bool) -> String {
    match wait {
        Wait::GpuReady => "own GPU fills the slot".to_owned(),
        Wait::PeerBuffer => format!("buffer of rank {peer}"),
        Wait::GpuReadyOrPeerBuffer => format!("own GPU, or buffer of rank {peer}"),
        Wait::Network if is_send => format!("network to rank {peer}"),
        Wait::Network => format!("data of rank {peer}"),
        Wait::Flush => "flush".to_owned(),
        Wait::GpuConsume => "own GPU takes it".to_owned(),
        Wait::FlushOrGpuConsume => "flush, or own GPU takes it".to_owned(),
    }
}

/// A call of the API.
#[derive(Debug)]
pub(super) struct CallEvent<'a> {
    pub(super) name: &'a str,
    pub(super) ts_ns: u64,
    pub(super) host_ns: Option<u64>,
    /// Process and thread.
    pub(super) place: (u32, u32),
    pub(super) correlation_id: Option<u64>,
    pub(super) values: Values<'a>,
}

impl<'a> CallEvent<'a> {
    pub(super) fn of_call(call: &'a ApiCall) -> Self {
        let row = &call.row;
        let id = |rank, seq: u64| id_of(rank, seq, seq & 1 == 1, row.seq_local);
        let Pointer(stream) = row.stream;
        let result = match &row.result {
            Observed::Known(result) => text(result),
            _ => None,
        };
        let communicator = call.rank.map(|rank| Value::Text(rank.comm_name().into()));
        Self {
            name: &row.function,
            ts_ns: row.ts_ns,
            host_ns: row.host_ns.get(),
            place: (row.pid, row.tid),
            correlation_id: call.rank.zip(row.seq.get()).and_then(|(rank, seq)| id(rank, seq)),
            values: vec![
                ("result", result),
                ("communicator", communicator),
                ("rank", row.rank.map(|rank| Value::Signed(rank.into()))),
                ("call", row.call.map(Value::Unsigned)),
                ("seq", row.seq.get().map(Value::Unsigned)),
                ("count", Some(Value::Unsigned(row.count))),
                ("bytes", row.bytes.map(Value::Unsigned)),
                ("datatype", row.datatype.as_deref().and_then(text)),
                ("redop", row.redop.as_deref().and_then(text)),
                ("root", row.root.map(|root| Value::Signed(root.into()))),
                ("peer", row.peer.map(|peer| Value::Signed(peer.into()))),
                ("stream", Some(Value::Unsigned(stream))),
            ],
        }
    }

    pub(super) fn of_other(row: &'a OtherCallRow) -> Self {
        Self {
            name: &row.function,
            ts_ns: row.ts_ns,
            host_ns: row.host_ns,
            place: (row.pid, row.tid),
            correlation_id: None,
            values: vec![("result", row.result.as_deref().and_then(text))],
        }
    }
}
