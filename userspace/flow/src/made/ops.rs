//! Flow records as the model gives them out, made by hand.

use crate::{
    decode::{ApiCallEvent, CommunicatorId, Event, Origin, ProxyOp, Ring, Tree},
    model::{FlowCommunicator, FlowRecord, Measured, Message, PeerFlow, Rows},
    schema::HostInfo,
    statistics::Tally,
};
use nccl_library::nccl::{Algorithm, Direction, Pattern, Protocol};

/// A ring all-reduce of 1,024 floats on one of four ranks, posted, with its two peers; to be varied.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub seq: u64,
    pub channel: u32,
    pub rank: i32,
}

impl Default for Op {
    fn default() -> Self {
        Self { seq: 0, channel: 0, rank: 1 }
    }
}

pub fn host(pid: u32) -> HostInfo {
    HostInfo { host: "here".into(), pid }
}

/// Receives that waited so long for the network, nanoseconds.
pub fn messages(waits: &[u64]) -> Option<Measured> {
    let message = |wait: &u64| Message {
        start: Some(1_000),
        posted: Some(1_000),
        arrived: Some(1_000 + wait),
        end: Some(2_000 + wait),
        bytes: Some(100),
        ..Message::default()
    };
    Some(Measured { messages: waits.iter().map(message).collect(), ..Measured::default() })
}

impl Op {
    pub fn record(self) -> FlowRecord {
        let origin = Some(Origin { ts_ns: 1_000, tgid: 1, tid: 1, lost: 0 });
        let peer = |direction, peer| PeerFlow {
            direction,
            peer,
            connection_index: 0,
            nsteps: Some(24),
            has_proxy: true,
            transport: "NET".into(),
            connection: 0,
            owner: None,
            proxy_pid: None,
            measured: None,
        };
        FlowRecord {
            comm: FlowCommunicator { hash: Some(7), rank: self.rank, n_ranks: 4, instance: 0 },
            seq: self.seq,
            op: ProxyOp {
                op_count: self.seq,
                channel: self.channel,
                nsteps: 24,
                nbytes: 1 << 20,
                chunk_size: 2 << 20,
                slice_steps: 2,
                chunk_steps: 4,
                root: 0,
                dtype: Some("float32".into()),
                red_op: Some("sum".into()),
                pattern: Pattern::RingTwice,
                protocol: Protocol::Simple,
                algorithm: Some(Algorithm::Ring),
                coll: Some("AllReduce".into()),
                coll_api: None,
                registered: false,
                p2p_nbytes_is_size: true,
                channel_size: Some(2048),
                loop_offset: Some(0),
                last_chunk: None,
                part_bytes: None,
                slices: None,
            },
            ring: Ring { prev: (self.rank + 3) % 4, next: (self.rank + 1) % 4, index: self.rank },
            tree: Tree { up: -1, down: [-1; 3] },
            task: None,
            peers: vec![
                peer(Direction::Recv, (self.rank + 3) % 4),
                peer(Direction::Send, (self.rank + 1) % 4),
            ],
            posted: true,
            needed: true,
            planned: true,
            planned_at: origin,
            posted_at: origin,
            captured_seq: None,
            p2p_part: None,
            incomplete: false,
            outcome: None,
            derived: false,
            api_name: None,
            count: Some(1024),
        }
    }
}

/// The API is called, by a rank that has launched so many collectives.
pub fn launch(rank: i32, launched: u64) -> Event {
    let comm = CommunicatorId { pointer: 0x1000, hash: Some(7), rank, n_ranks: 4, launched: Some(launched) };
    Event::ApiCall(ApiCallEvent {
        origin: Origin { ts_ns: 1_000, tgid: 1, tid: 1, lost: 0 },
        comm,
        name: "AllReduce".into(),
        function: Some("AllReduce".into()),
        count: 1024,
        datatype: None,
        red_op: None,
        root: 0,
    })
}

impl Tally {
    /// An op on a channel, with its messages.
    pub fn flow(&mut self, record: &FlowRecord, host: &HostInfo) {
        let mut rows = Rows::default();
        let op = rows.op(record, host);
        self.op(&op);
        rows.messages(record, &op, |messages| self.messages(&op, messages));
    }
}
