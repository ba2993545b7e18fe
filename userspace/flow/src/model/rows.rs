//! Makes rows of the model's records.

use foldhash::HashMap;

use super::{
    api::ApiRecord,
    api_returns::OtherCall,
    flow::{FlowCommunicator, FlowRecord, PeerFlow},
    message::{Measured, waits},
    message_sums::KnownSums,
    transfers::{Layout, Transfer},
};
use crate::{
    decode::{ApiLineEvent, Connector, ProxyRank, ReductionOp, StepMoment},
    schema::{
        ApiCall, ApiCallRow, HostInfo, MessageRow, MessageSums, Observed, Op, OpRow, OtherCallRow, PeerRow,
        Pointer, RankKey, StackId, comm_hash_name,
    },
};
use nccl_library::nccl::{Name, datatype_bytes};

/// Rows of messages that are handed on together.
const MESSAGES_AT_ONCE: usize = 64;

/// Communicators whose name is kept. A target that makes more wants to fill our memory.
const MAX_NAMES: usize = 4096;

/// Makes rows. An op's messages are laid out once, for all who take them.
#[derive(Debug, Default)]
pub struct Rows {
    /// Names of communicators, by `commHash`.
    comm_names: HashMap<Option<u64>, Name>,
    messages: Vec<MessageRow>,
    sums: KnownSums,
}

impl Rows {
    /// Makes the row of an op.
    pub fn op(&mut self, record: &FlowRecord, host: &HostInfo) -> Op {
        let origin = record.origin();
        let op = &record.op;
        let is_p2p = op.pattern.is_p2p();
        let launch = op.launch.as_deref();
        let [send, recv] = launch.map_or_else(Default::default, |launch| [launch.send, launch.recv]);
        let pointer = |address: Option<u64>| address.map(Pointer);
        let row = OpRow {
            op_count: op.op_count,
            rank: record.comm.rank,
            channel: op.channel,
            nsteps: op.nsteps,
            nbytes: op.nbytes,
            chunk_size: op.chunk_size,
            slice_steps: op.slice_steps,
            chunk_steps: op.chunk_steps,
            dtype: op.dtype.clone(),
            red_op: op.red_op.clone(),
            pattern: op.pattern,
            protocol: op.protocol,
            ring_prev: record.ring.prev,
            ring_next: record.ring.next,
            algorithm: op.algorithm,
            coll: record.coll().cloned(),
            coll_api: record.coll_api().cloned(),
            root: op.root,
            n_ranks: record.comm.n_ranks,
            comm_hash: self.comm_name(record.comm.hash),
            seq: record.seq,
            posted: record.posted_at.is_some(),
            needed: record.needed,
            planned: record.planned_at.is_some(),
            ts_ns: origin.map_or(0, |origin| origin.ts_ns),
            post_ts_ns: record.posted_at.map(|origin| origin.ts_ns),
            pid: host.pid,
            tid: origin.map_or(0, |origin| origin.tid),
            host: host.host.clone(),
            count: record.count,
            bytes: match &op.launch {
                Some(launch) => launch.bytes,
                None => record.task.as_ref().and_then(|task| task.p2p_bytes),
            },
            channel_size: op.channel_size.filter(|_| !is_p2p),
            loop_offset: op.loop_offset.filter(|_| !is_p2p),
            registered: op.registered,
            ring_index: record.ring.index,
            tree_up: record.tree.up,
            tree_down: record.tree.down,
            captured_seq: record.captured_seq,
            graph_launch: record.launched_at.map(|(_, number)| number),
            incomplete: record.incomplete,
            derived: record.derived,
            measured: record.outcome,
            seq_local: None,
            api_call: record.api_call,
            stack: record.stack.map(|(id, _)| id),
            stack_of: record.stack.map(|(_, of)| of),
            launch: launch.map(|launch| launch.kind),
            kernel: launch.and_then(|launch| launch.kernel.clone()),
            calls: launch.map_or(Observed::Absent, |launch| Observed::looked_for(launch.calls)),
            bytes_at_most: launch.and_then(|launch| launch.bytes_at_most),
            send_buffer: pointer(send.address),
            recv_buffer: pointer(recv.address),
            send_window: pointer(send.window),
            send_offset: send.offset,
            recv_window: pointer(recv.window),
            recv_offset: recv.offset,
            peers: record.peers.iter().map(|peer| peer_row(record, peer)).collect(),
        };
        Op { rank: rank_key(&record.comm, host), row, call_bytes: record.call_bytes() }
    }

    /// Calls `each` with the rows of the op's messages, several at a time, in the order of peers and steps.
    pub fn messages(&mut self, record: &FlowRecord, op: &Op, mut each: impl FnMut(&[MessageRow])) {
        for (peer, peer_row) in record.peers.iter().zip(&op.row.peers) {
            let layout = Layout::new(record, peer);
            let known = peer.measured.as_ref().map_or(&[][..], |measured| &measured.layout);
            for index in 0..layout.len() {
                let at = usize::try_from(index).unwrap_or(usize::MAX);
                let transfer = known.get(at).copied().unwrap_or_else(|| layout.message(index));
                self.messages.push(message_row(&op.row, peer_row, &transfer, peer, at));
                if self.messages.len() == MESSAGES_AT_ONCE {
                    each(&self.messages);
                    self.messages.clear();
                }
            }
        }
        if !self.messages.is_empty() {
            each(&self.messages);
            self.messages.clear();
        }
    }

    /// Returns the sums of the op's messages as they were planned, by peer.
    pub fn message_sums(&mut self, record: &FlowRecord, op: &Op) -> Vec<MessageSums> {
        self.sums.of(record, op)
    }

    /// Makes the row of a call that communicates.
    pub fn call(&mut self, record: &ApiRecord, host: &HostInfo) -> ApiCall {
        let event = &record.event;
        let arguments = Arguments::of(event);
        let reduction_op = arguments.reduces.then_some(&event.reduction_op);
        let row = ApiCallRow {
            op_count: event.op_count,
            rank: record.comm.map(|comm| comm.rank),
            function: event.name.clone(),
            count: event.count,
            bytes: (event.datatype.as_deref())
                .and_then(datatype_bytes)
                .and_then(|size| size.checked_mul(event.count)),
            datatype: event.datatype.clone(),
            redop: match reduction_op {
                Some(ReductionOp::BuiltIn(op)) => Some(op.clone()),
                Some(ReductionOp::User(_)) => Some("user".into()),
                Some(ReductionOp::Unknown) | None => None,
            },
            redop_handle: match reduction_op {
                Some(ReductionOp::User(number)) => Some(*number),
                _ => None,
            },
            root: arguments.has_root.then_some(event.root),
            peer: arguments.has_peer.then_some(event.root),
            sendbuff: arguments.send_buffer.map(Pointer),
            recvbuff: arguments.recv_buffer.map(Pointer),
            stream: Pointer(event.stream),
            comm: Pointer(event.comm_pointer),
            comm_hash: record.comm.map(|comm| self.comm_name(comm.hash)),
            n_ranks: record.comm.map(|comm| comm.n_ranks),
            call: record.comm.map(|_| record.number),
            launched: event.comm.and_then(|comm| comm.launched),
            ts_ns: event.origin.ts_ns,
            pid: host.pid,
            tid: event.origin.tid,
            host: host.host.clone(),
            called: record.returned.map(|returned| returned.function.name().into()),
            host_ns: record.returned.map(|returned| returned.host_ns),
            result: record.returned.map(|returned| returned.result.clone()),
            seq: record.seq,
            seq_local: None,
            by_arguments: event.by_arguments.then_some(true),
            stack: event.origin.stack.map(StackId),
        };
        ApiCall { rank: record.comm.map(|comm| rank_key(&comm, host)), row }
    }

    fn comm_name(&mut self, hash: Option<u64>) -> Name {
        if self.comm_names.len() >= MAX_NAMES && !self.comm_names.contains_key(&hash) {
            self.comm_names.clear();
        }
        self.comm_names.entry(hash).or_insert_with(|| comm_hash_name(hash).as_str().into()).clone()
    }
}

/// Makes the row of a call that belongs to no rank.
pub fn other_call_row(call: &OtherCall, host: &HostInfo) -> OtherCallRow {
    OtherCallRow {
        function: call.function.name().into(),
        ts_ns: call.origin.ts_ns,
        pid: host.pid,
        tid: call.origin.tid,
        host: host.host.clone(),
        host_ns: call.host_ns,
        result: call.result.clone(),
    }
}

fn rank_key(comm: &FlowCommunicator, host: &HostInfo) -> RankKey {
    RankKey { hash: comm.hash, instance: comm.instance, rank: comm.rank, pid: host.pid }
}

fn peer_row(record: &FlowRecord, peer: &PeerFlow) -> PeerRow {
    let Connector { direction, peer: to, connection_index, has_proxy, transport, .. } = peer.connector;
    let elsewhere = peer.connector.elsewhere();
    let totals = peer.measured.as_ref().map(Measured::totals);
    PeerRow {
        op: direction,
        peer: to,
        pseudo: to >= record.comm.n_ranks,
        nsteps: peer.nsteps,
        messages_left_out: Layout::new(record, peer).left_out(),
        transport,
        proxy: has_proxy,
        proxy_rank: match elsewhere {
            Some(ProxyRank::Rank(rank)) => Observed::Known(rank),
            Some(ProxyRank::TopRank(_)) => Observed::Unknown,
            None => Observed::Absent,
        },
        proxy_pid: elsewhere.map_or(Observed::Absent, |_| Observed::looked_for(peer.proxy_pid)),
        conn_index: connection_index,
        messages_measured: totals.map(|(messages, _)| messages),
        bytes_measured: totals.map(|(_, bytes)| bytes),
    }
}

/// Makes the row of a message. `index`: its place among the peer's messages.
fn message_row(
    op: &OpRow,
    peer_row: &PeerRow,
    transfer: &Transfer,
    peer: &PeerFlow,
    index: usize,
) -> MessageRow {
    let measured = peer.measured.as_ref();
    let message = measured.and_then(|measured| measured.message(index));
    let slot_free = measured.and_then(|measured| measured.slot_free(index));
    let observed = |value| message.map_or(Observed::Absent, |_| Observed::looked_for(value));
    let at = |moment| observed(message.and_then(|message| message.at(moment)));
    let mut row = MessageRow {
        op_count: op.op_count,
        rank: op.rank,
        channel: op.channel,
        step: transfer.step,
        op: peer_row.op,
        peer: peer_row.peer,
        bytes: transfer.bytes,
        pattern: op.pattern,
        protocol: op.protocol,
        stage: transfer.stage,
        slots: transfer.slots,
        bytes_kind: transfer.bytes_kind,
        loop_index: transfer.loop_index,
        ring_step: transfer.ring_step,
        slice: transfer.slice,
        chunk: transfer.chunk,
        transport: peer_row.transport,
        seq: op.seq,
        comm_hash: op.comm_hash.clone(),
        // The post pass does nothing for a peer without a proxy.
        posted: op.posted && peer_row.proxy,
        seq_local: None,
        t_start_ns: at(StepMoment::Start),
        t_posted_ns: at(StepMoment::Posted),
        t_ready_ns: at(StepMoment::Ready),
        t_sent_ns: at(StepMoment::Sent),
        t_arrived_ns: at(StepMoment::Arrived),
        t_handed_ns: at(StepMoment::Handed),
        t_end_ns: at(StepMoment::Stop),
        bytes_measured: observed(message.and_then(|message| message.bytes)),
        proxy_pid: message.and(peer.proxy_pid),
        t_slot_free_ns: observed(slot_free),
        wait_gpu_ready_ns: Observed::Absent,
        wait_peer_buffer_ns: Observed::Absent,
        wait_gpu_ready_or_peer_buffer_ns: Observed::Absent,
        wait_network_ns: Observed::Absent,
        wait_flush_ns: Observed::Absent,
        wait_gpu_consume_ns: Observed::Absent,
        wait_flush_or_gpu_consume_ns: Observed::Absent,
    };
    if let Some(message) = message {
        row.set_waits(&waits(row.op, &message, slot_free));
    }
    row
}

/// Meaning of the fields of `ncclInfo` for a function. NCCL fills fields that a function has no use for with
/// `ncclSum` and 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arguments {
    reduces: bool,
    has_root: bool,
    has_peer: bool,
    send_buffer: Option<u64>,
    recv_buffer: Option<u64>,
}

impl Arguments {
    /// Returns the arguments by the call's name, as in src/collectives.cc up to 2.30. `Reduce`, and a
    /// function that came later, has operator, root and both buffers.
    fn of(event: &ApiLineEvent) -> Self {
        let function: &str = &event.name;
        let (reduces, has_root, has_peer) = match function {
            "AllReduce" | "ReduceScatter" => (true, false, false),
            "Broadcast" | "Gather" | "Scatter" => (false, true, false),
            "AllGather" | "AlltoAll" | "WaitSignal" => (false, false, false),
            "Send" | "Recv" | "PutSignal" | "Signal" => (false, false, true),
            _ => (true, true, false),
        };
        let (send, recv) = (event.send_buffer, event.recv_buffer);
        let (send_buffer, recv_buffer) = match function {
            // Send and Recv have one buffer, and NCCL keeps both in recvbuff.
            "Send" if send == 0 => (Some(recv), None),
            "Recv" => (None, Some(recv)),
            "PutSignal" => (Some(send), None),
            "Signal" | "WaitSignal" => (None, None),
            _ => (Some(send), Some(recv)),
        };
        Self { reduces, has_root, has_peer, send_buffer, recv_buffer }
    }
}
