//! Flow records as the model gives them out, made by hand.

use super::calls;
use crate::{
    decode::{ApiCallEvent, CommunicatorId, Event, Origin, ProxyOp, Ring, StepMoment, Tree},
    model::{FlowCommunicator, FlowRecord, Measured, Message, PeerFlow, Rows},
    schema::{HostInfo, Observed},
    statistics::Tally,
};
use nccl_library::nccl::{Algorithm, Direction, Pattern};

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

/// Makes receives that waited for the network for `waits`, nanoseconds.
pub fn messages(waits: &[u64]) -> Option<Measured> {
    use StepMoment::{Arrived, Posted, Start, Stop};
    let receive = |wait: &u64| {
        let moments = [(Start, 1_000), (Posted, 1_000), (Arrived, 1_000 + wait), (Stop, 2_000 + wait)];
        message(&moments, Some(100))
    };
    Some(Measured { messages: waits.iter().map(receive).collect(), ..Measured::default() })
}

/// Makes a message of which these moments were seen.
pub fn message(moments: &[(StepMoment, u64)], bytes: Option<u64>) -> Message {
    let mut message = Message { bytes, ..Message::default() };
    for (moment, ns) in moments {
        message.moments[*moment as usize] = Some(*ns);
    }
    message
}

impl Op {
    pub fn record(self) -> FlowRecord {
        let made = calls::call(Pattern::RingTwice, self.channel, self.seq, 0).event;
        let origin = Some(Origin { ts_ns: 1_000, tgid: 1, tid: 1, lost: 0, stack: None });
        let (prev, next) = ((self.rank + 3) % 4, (self.rank + 1) % 4);
        let peer = |direction, peer| PeerFlow {
            connector: calls::connector(direction, peer),
            nsteps: Some(24),
            proxy_pid: None,
            measured: None,
        };
        FlowRecord {
            comm: FlowCommunicator { hash: Some(7), rank: self.rank, n_ranks: 4, instance: 0 },
            seq: self.seq,
            op: ProxyOp { algorithm: Some(Algorithm::Ring), channel_size: Some(2048), ..made.op },
            ring: Ring { prev, next, index: self.rank },
            tree: Tree { up: -1, down: [-1; 3] },
            task: None,
            peers: vec![peer(Direction::Recv, prev), peer(Direction::Send, next)],
            needed: true,
            planned_at: origin,
            posted_at: origin,
            captured_seq: None,
            launched_at: None,
            p2p_part: None,
            incomplete: false,
            outcome: None,
            derived: false,
            api_name: None,
            count: Some(1024),
            api_call: Observed::Absent,
            stack: None,
        }
    }
}

/// Makes a call of the API by a rank that has launched `launched` collectives.
pub fn launch(rank: i32, launched: u64) -> Event {
    let comm = CommunicatorId { pointer: 0x1000, hash: Some(7), rank, n_ranks: 4, launched: Some(launched) };
    Event::ApiCall(ApiCallEvent {
        origin: Origin { ts_ns: 1_000, tgid: 1, tid: 1, lost: 0, stack: None },
        comm,
        name: "AllReduce".into(),
        function: Some("AllReduce".into()),
        count: 1024,
        root: 0,
    })
}

impl Tally {
    /// Counts an op on a channel, with its messages.
    pub fn flow(&mut self, record: &FlowRecord, host: &HostInfo) {
        let mut rows = Rows::default();
        let op = rows.op(record, host);
        self.op(&op);
        rows.messages(record, &op, |messages| self.messages(&op, messages));
    }
}
