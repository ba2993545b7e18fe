//! Lines of NCCL Inspector. Times are Unix times in microseconds; unknown values have no key.

use anyhow::Result;
use flow::schema::{CommunicatorReport, MessageRow, Op, OpRow, Outcome};
use nccl_library::nccl::Direction;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::RankRecords;
use crate::export::InspectorVersion;

/// Maker of the records, in the place where Inspector says which interface of NCCL it used.
const MECHANISM: &str = concat!("ncclflow ", env!("CARGO_PKG_VERSION"));

/// Makes the header of a rank, as a marker has it.
pub(super) fn rank_header(op: &Op, facts: Option<&CommunicatorReport>) -> Value {
    let name = facts.and_then(|facts| facts.comm_name.as_deref()).filter(|name| !name.is_empty());
    let mut header = json!({
        "id": op.rank.hash.map_or_else(|| "unknown".to_owned(), |hash| format!("{hash:#x}")),
        "comm_name": name.unwrap_or("unknown"),
        "rank": op.row.rank,
        "n_ranks": op.row.n_ranks,
    });
    if let (Some(nodes), Some(header)) = (facts.and_then(|facts| facts.n_nodes), header.as_object_mut()) {
        header.insert("nnodes".to_owned(), nodes.into());
    }
    header
}

/// Makes the metadata of a rank at a moment.
fn metadata(rank: &RankRecords, at_us: u64) -> Value {
    let (host, pid) = &rank.process;
    let version = match rank.version {
        InspectorVersion::V4_0 => "v4.0",
        InspectorVersion::V4_3 => "v4.3",
    };
    json!({
        "inspector_output_format_version": version,
        "git_rev": "",
        "rec_mechanism": MECHANISM,
        "dump_timestamp_us": at_us,
        "hostname": host,
        "pid": pid,
    })
}

/// Makes the line before the records that wait.
pub(super) fn marker(rank: &RankRecords) -> Result<Vec<u8>> {
    let marker = json!({
        "header": rank.header,
        "metadata": metadata(rank, rank.last_us),
        "dump_stats": {
            "coll_records": rank.coll,
            "p2p_records": rank.p2p,
            "proxy_records": rank.proxy,
            "proxy_steps_enabled": 1,
        },
    });
    let mut line = serde_json::to_vec(&marker)?;
    line.push(b'\n');
    Ok(line)
}

/// Adds a record. `at_us` is the time at which its op was over.
fn push(rank: &mut RankRecords, kind: &'static str, at_us: u64, record: &impl Serialize) -> Result<()> {
    rank.last_us = rank.last_us.max(at_us);
    rank.lines.extend_from_slice(b"{\"");
    if rank.version == InspectorVersion::V4_0 {
        let metadata = metadata(rank, at_us);
        rank.lines.extend_from_slice(b"header\":");
        serde_json::to_writer(&mut rank.lines, &rank.header)?;
        rank.lines.extend_from_slice(b",\"metadata\":");
        serde_json::to_writer(&mut rank.lines, &metadata)?;
        rank.lines.extend_from_slice(b",\"");
    }
    rank.lines.extend_from_slice(kind.as_bytes());
    rank.lines.extend_from_slice(b"\":");
    serde_json::to_writer(&mut rank.lines, record)?;
    rank.lines.extend_from_slice(b"}\n");
    Ok(())
}

/// An op with all its channels.
#[derive(Debug)]
pub(super) struct OpRecord {
    row: OpRow,
    call_bytes: Option<u64>,
    begin_ns: u64,
    end_ns: u64,
    /// Set if all messages of all channels so far were measured.
    is_measured: bool,
}

impl OpRecord {
    pub(super) fn new(op: &Op) -> Self {
        let row = OpRow { peers: Vec::new(), ..op.row.clone() };
        Self { row, call_bytes: op.bytes(), begin_ns: u64::MAX, end_ns: 0, is_measured: true }
    }

    /// Adds a channel.
    pub(super) fn add(&mut self, op: &Op, steps: &[ProxyStep]) {
        self.is_measured &= op.row.measured == Some(Outcome::AsPlanned) && !op.row.incomplete;
        for step in steps {
            match step.begin_ns.zip(step.moments[3]) {
                Some((begin, end)) => {
                    self.begin_ns = self.begin_ns.min(begin);
                    self.end_ns = self.end_ns.max(end);
                }
                None => self.is_measured = false,
            }
        }
    }

    /// Tells whether the op has a place in v4.0: NVIDIA's exporter of that time fails where a bandwidth is
    /// missing.
    pub(super) fn is_complete_collective(&self) -> bool {
        !self.is_p2p() && self.bandwidths().is_some()
    }

    fn function(&self) -> &str {
        self.row.coll.as_deref().unwrap_or(self.row.pattern.name())
    }

    fn time_us(&self) -> Option<u64> {
        self.span_ns().map(|ns| ns / 1000)
    }

    fn bandwidths(&self) -> Option<(f64, f64)> {
        bandwidths(self.function(), self.call_bytes?, self.row.n_ranks, self.time_us()?)
    }

    pub(super) fn is_p2p(&self) -> bool {
        self.row.pattern.is_p2p()
    }

    /// Returns the time from the first message to the last.
    pub(super) fn span_ns(&self) -> Option<u64> {
        self.end_ns.checked_sub(self.begin_ns).filter(|_| self.is_measured)
    }
}

/// Keys of a record and their values, in their order; unknown values have no key.
struct Fields<'a>(&'a str, Vec<(&'static str, Option<Value>)>);

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let known =
            self.1.iter().filter_map(|(key, value)| Some((format!("{}{key}", self.0), value.as_ref()?)));
        serializer.collect_map(known)
    }
}

/// Returns the bandwidths of the algorithm and of the bus in GB/s, as Inspector computes them
/// (`inspectorComputeOpBw`).
#[expect(clippy::cast_precision_loss, reason = "bandwidths are floating point there, too")]
fn bandwidths(function: &str, bytes: u64, n_ranks: i32, time_us: u64) -> Option<(f64, f64)> {
    let (bytes, ranks) = (bytes as f64, f64::from(n_ranks));
    let (traffic, factor) = match function {
        "AllReduce" => (bytes, 2.0 * (ranks - 1.0) / ranks),
        "ReduceScatter" | "AllGather" => (bytes * ranks, (ranks - 1.0) / ranks),
        "Reduce" | "Broadcast" | "Send" | "Recv" => (bytes, 1.0),
        _ => return None,
    };
    let algorithm = traffic / (time_us as f64 * 1e3);
    (time_us > 0).then_some((algorithm, algorithm * factor))
}

/// Writes the record of an op.
pub(super) fn write_op(rank: &mut RankRecords, record: &OpRecord, offset_ns: u64) -> Result<()> {
    let row = &record.row;
    let (function, time_us, bandwidths) = (record.function(), record.time_us(), record.bandwidths());
    let at_ns = if time_us.is_some() { record.end_ns } else { row.ts_ns };
    let at_us = at_ns.saturating_add(offset_ns) / 1000;
    let number = ("_sn", Some(Value::from(row.seq >> 1)));
    let mut fields = vec![("", Some(function.into()))];
    let (kind, prefix) = if record.is_p2p() {
        rank.p2p += 1;
        fields.extend([number, ("_peer", Some(row.root.into()))]);
        ("p2p_perf", "p2p")
    } else {
        rank.coll += 1;
        let algorithm = row.algorithm.map(|algorithm| algorithm.name().into());
        fields.extend([("_algo", algorithm), ("_proto", Some(row.protocol.name().into())), number]);
        ("coll_perf", "coll")
    };
    fields.extend([
        ("_msg_size_bytes", record.call_bytes.map(Value::from)),
        ("_exec_time_us", time_us.map(Value::from)),
        ("_timing_source", time_us.map(|_| "proxy_cpu".into())),
        ("_algobw_gbs", bandwidths.map(|(algorithm, _)| algorithm.into())),
        ("_busbw_gbs", bandwidths.map(|(_, bus)| bus.into())),
    ]);
    push(rank, kind, at_us, &Fields(prefix, fields))
}

/// Measured values of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProxyStep {
    op: Direction,
    peer: i32,
    step: u64,
    begin_ns: Option<u64>,
    /// Times at which it entered each of the three phases, and at which it ended.
    moments: [Option<u64>; 4],
    bytes: Option<u64>,
    is_measured: bool,
}

/// Inspector's names of the phases. A message enters the first when its slot is offered to the GPU, or the
/// network is asked for it.
const SEND_PHASES: [&str; 4] =
    ["send_gpu_wait_ts", "send_peer_wait_ts", "send_wait_ts", "proxy_step_stop_ts"];
const RECEIVE_PHASES: [&str; 4] =
    ["recv_wait_ts", "recv_flush_wait_ts", "recv_gpu_wait_ts", "proxy_step_stop_ts"];

impl ProxyStep {
    pub(super) fn of(message: &MessageRow) -> Self {
        let moments = match message.op {
            Direction::Send => {
                [&message.t_start_ns, &message.t_ready_ns, &message.t_sent_ns, &message.t_end_ns]
            }
            Direction::Recv => {
                [&message.t_posted_ns, &message.t_arrived_ns, &message.t_handed_ns, &message.t_end_ns]
            }
        }
        .map(flow::schema::Observed::get);
        Self {
            op: message.op,
            peer: message.peer,
            step: message.step,
            begin_ns: message.begin(),
            moments,
            bytes: message.bytes_measured.get(),
            is_measured: moments.iter().any(Option::is_some),
        }
    }

    fn times(&self, offset_ns: u64) -> serde_json::Map<String, Value> {
        let names = if self.op == Direction::Send { SEND_PHASES } else { RECEIVE_PHASES };
        let known = names.into_iter().zip(self.moments).filter_map(|(name, at)| Some((name, at?)));
        known.map(|(name, at)| (name.to_owned(), (at.saturating_add(offset_ns) / 1000).into())).collect()
    }
}

#[derive(Default, Serialize)]
struct ProxyRecord<'a> {
    record_type: &'a str,
    record_sn: u64,
    parent_type: &'a str,
    parent_sn: u64,
    proxy_op_sn: u64,
    rank: i32,
    channel_id: u32,
    peer: i32,
    direction: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_step_sn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n_steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk_size_bytes: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n_steps_completed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trans_size_bytes: Option<u64>,
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    event_trace_ts: serde_json::Map<String, Value>,
}

/// Writes the measured values of an op on a channel: its messages, and their sum for each peer. Returns the
/// number of messages.
pub(super) fn write_proxy(
    rank: &mut RankRecords,
    op: &Op,
    steps: &[ProxyStep],
    offset_ns: u64,
) -> Result<u64> {
    let row = &op.row;
    let parent_type = if row.pattern.is_p2p() { "p2p" } else { "coll" };
    let mut written = 0;
    // Messages of a peer come in succession.
    for of_peer in steps.chunk_by(|a, b| (a.op, a.peer) == (b.op, b.peer)) {
        if !of_peer.iter().any(|step| step.is_measured) {
            continue;
        }
        rank.proxy_op_sn += 1;
        let (mut completed, mut bytes, mut knows_bytes) = (0, 0u64, false);
        let Some(first) = of_peer.first() else { continue };
        let proxy_op_sn = rank.proxy_op_sn;
        let base = |rank: &mut RankRecords, record_type| {
            rank.record_sn += 1;
            ProxyRecord {
                record_type,
                record_sn: rank.record_sn,
                parent_type,
                parent_sn: row.seq >> 1,
                proxy_op_sn,
                rank: row.rank,
                channel_id: row.channel,
                peer: first.peer,
                direction: if first.op == Direction::Send { "send" } else { "recv" },
                ..ProxyRecord::default()
            }
        };
        for (number, step) in (1..).zip(of_peer).filter(|(_, step)| step.is_measured) {
            completed += u64::from(step.moments[3].is_some());
            knows_bytes |= step.bytes.is_some();
            bytes = bytes.saturating_add(step.bytes.unwrap_or(0));
            let last = step.moments.iter().flatten().max().copied().unwrap_or(0);
            let at_us = last.saturating_add(offset_ns) / 1000;
            let record = ProxyRecord {
                proxy_step_sn: Some(number),
                step: Some(step.step),
                trans_size_bytes: step.bytes,
                event_trace_ts: step.times(offset_ns),
                ..base(rank, "proxy_step")
            };
            push(rank, "proxy_trace", at_us, &record)?;
            written += 1;
        }
        let record = ProxyRecord {
            n_steps: Some(of_peer.len() as u64),
            chunk_size_bytes: Some(row.nbytes),
            n_steps_completed: Some(completed),
            trans_size_bytes: knows_bytes.then_some(bytes),
            ..base(rank, "proxy_op")
        };
        push(rank, "proxy_trace", 0, &record)?;
        rank.proxy += 1;
    }
    rank.proxy += written;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::bandwidths;

    /// Compares with the formulas of nccl-tests' PERFORMANCE.md.
    #[test]
    fn bandwidths_are_those_of_the_bus() {
        let close = |(a, b): (f64, f64), (c, d): (f64, f64)| (a - c).abs() < 1e-9 && (b - d).abs() < 1e-9;
        // 1 GB in 1 s.
        let of = |function| bandwidths(function, 1_000_000_000, 4, 1_000_000).unwrap();
        assert!(close(of("AllReduce"), (1.0, 1.5)));
        assert!(close(of("AllGather"), (4.0, 3.0)) && close(of("ReduceScatter"), (4.0, 3.0)));
        assert!(close(of("Broadcast"), (1.0, 1.0)) && close(of("Send"), (1.0, 1.0)));
        assert!(bandwidths("AlltoAll", 1, 4, 1).is_none() && bandwidths("AllReduce", 1, 4, 0).is_none());
    }
}
