//! Calls of `ncclProxySaveOp` as NCCL makes them (src/proxy.cc, src/enqueue.cc of 2.27 and 2.21).

use nccl_library::nccl::{Direction, Pattern, Protocol};

use crate::decode::{CommunicatorId, Connector, Origin, ProxyOp, ProxyOpEvent, Ring, Tree};

pub const APPLICATION: u32 = 100;
pub const CALLBACK: u32 = 200;

/// An `ncclProxySaveOp` and its `SaveProxy` calls, to be varied.
#[derive(Clone, Debug)]
pub struct Call {
    pub event: ProxyOpEvent,
    pub peers: Vec<Connector>,
}

pub fn call(pattern: Pattern, channel: u32, op_count: u64, launched: u64) -> Call {
    let event = ProxyOpEvent {
        origin: Origin { ts_ns: 1, tgid: 10, tid: APPLICATION, lost: 0, stack: None },
        comm: CommunicatorId {
            pointer: 0x1000,
            hash: Some(7),
            rank: 1,
            n_ranks: 4,
            launched: Some(launched),
        },
        op_pointer: 0xaa,
        plan_pass: true,
        op: ProxyOp {
            op_count,
            channel,
            nsteps: 24,
            nbytes: 1 << 20,
            chunk_size: 2 << 20,
            slice_steps: 2,
            chunk_steps: 4,
            root: 0,
            dtype: Some("float32".into()),
            red_op: Some("sum".into()),
            pattern,
            protocol: Protocol::Simple,
            coll: Some("AllReduce".into()),
            p2p_nbytes_is_size: true,
            channel_size: Some(512 << 10),
            loop_offset: Some(0),
            ..ProxyOp::default()
        },
        ring: Ring { prev: 0, next: 2, index: 1 },
        tree: Tree { up: -1, down: [2, 3, -1] },
        task: None,
    };
    Call { event, peers: vec![connector(Direction::Recv, 0), connector(Direction::Send, 2)] }
}

/// Makes a connector over the network, served by this process's proxy.
pub fn connector(direction: Direction, peer: i32) -> Connector {
    Connector { has_proxy: true, transport: "NET".into(), ..Connector::unknown(direction, peer, 0) }
}

pub fn p2p(pattern: Pattern, peer: i32, channel: u32) -> Call {
    let mut call = call(pattern, channel, 3, 0);
    call.event.op.root = peer;
    call.event.op.nsteps = 1;
    call.event.op.slice_steps = 1;
    call.event.op.chunk_steps = 1;
    let direction = if pattern == Pattern::Send { Direction::Send } else { Direction::Recv };
    call.peers = vec![connector(direction, peer)];
    call
}

impl Call {
    #[must_use]
    pub fn on_nvlink(mut self) -> Self {
        self.peers.iter_mut().for_each(|peer| peer.has_proxy = false);
        self
    }

    /// Makes the call that posts the op: from NCCL's own copy, with the final number.
    #[must_use]
    pub fn posted(mut self, op_count: u64, tid: u32) -> Self {
        self.event.plan_pass = false;
        self.event.op_pointer = 0xbb00 + u64::from(self.event.op.channel);
        self.event.op.op_count = op_count;
        self.event.origin.tid = tid;
        self
    }
}
