//! The plugin's lines, declared a second time: reader and writer share no code.

use serde::Deserialize;

use super::{CallId, Coll, P2p, ProxyOp, Step};
use crate::communicator::CommHash;
use crate::direction::Direction;

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub(super) enum Line {
    Context(ContextLine),
    Coll(CollLine),
    P2p(P2pLine),
    ProxyOp(ProxyOpLine),
    ProxyStep(StepLine),
    State(StateLine),
    Stop(StopLine),
    Finalize {},
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContextLine {
    pub(super) api: u32,
    pub(super) pid: u32,
    pub(super) comm_hash: CommHash,
    pub(super) rank: i32,
    pub(super) n_ranks: Option<i32>,
    #[serde(default)]
    pub(super) foreign: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CollLine {
    id: u64,
    group: Option<u64>,
    seq_number: u64,
    #[serde(default)]
    send_buff: Option<u64>,
    func: String,
    count: u64,
    datatype: String,
    root: i32,
    algo: String,
    proto: String,
    n_channels: Option<u8>,
    n_max_channels: Option<u8>,
    t: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct P2pLine {
    id: u64,
    group: Option<u64>,
    func: String,
    count: u64,
    datatype: String,
    peer: i32,
    n_channels: Option<u8>,
    t: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProxyOpLine {
    pub(super) id: u64,
    parent: Option<u64>,
    parent_pid: i32,
    channel_id: u32,
    peer: i32,
    n_steps: i32,
    chunk_size: i32,
    is_send: bool,
    t: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct StepLine {
    pub(super) id: u64,
    pub(super) op: u64,
    step: i32,
    t: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct StateLine {
    pub(super) id: u64,
    #[serde(flatten)]
    pub(super) state: State,
}

#[derive(Debug, Deserialize)]
pub(super) struct StopLine {
    pub(super) id: u64,
    pub(super) t: u64,
}

/// A state of `ncclProfilerEventState_t`, and when it was reached.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    pub state: i32,
    pub t: u64,
    pub trans_size: Option<u64>,
    pub steps: Option<i32>,
}

impl CollLine {
    pub(super) fn with_pid(self, pid: u32) -> Coll {
        Coll {
            call: CallId { pid, id: self.id },
            group: self.group,
            seq_number: self.seq_number,
            send_buff: self.send_buff,
            func: self.func,
            count: self.count,
            datatype: self.datatype,
            root: self.root,
            algo: self.algo,
            proto: self.proto,
            n_channels: self.n_channels,
            n_max_channels: self.n_max_channels,
            start: self.t,
            stop: None,
        }
    }
}

impl P2pLine {
    pub(super) fn with_pid(self, pid: u32) -> P2p {
        P2p {
            call: CallId { pid, id: self.id },
            group: self.group,
            func: self.func,
            count: self.count,
            datatype: self.datatype,
            peer: self.peer,
            n_channels: self.n_channels,
            start: self.t,
            stop: None,
        }
    }
}

impl ProxyOpLine {
    pub(super) fn with_api(self, api: u32) -> ProxyOp {
        let pid = self.parent_pid.cast_unsigned();
        ProxyOp {
            api,
            id: self.id,
            call: self.parent.map(|id| CallId { pid, id }),
            channel: self.channel_id,
            peer: self.peer,
            direction: if self.is_send { Direction::Send } else { Direction::Recv },
            n_steps: self.n_steps,
            chunk_size: self.chunk_size,
            start: self.t,
            stop: None,
            states: Vec::new(),
            steps: Vec::new(),
        }
    }
}

impl From<StepLine> for Step {
    fn from(line: StepLine) -> Self {
        Self { number: line.step, start: line.t, stop: None, states: Vec::new() }
    }
}
