//! The lines of a truth file. `kind` says which one it is; times are CLOCK_MONOTONIC nanoseconds.
//!
//! A call or proxy op has a line when it starts, so that one that never ends is seen too, and a `stop` line; a step
//! has one line when it ends, and one without `stop` if it is open when the communicator is finalized.

use serde::Serialize;

use crate::event::Transition;

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Line<'a> {
    /// First in the file.
    Context {
        /// Version of the descriptors, and so of the units below.
        api: u32,
        pid: u32,
        #[serde(serialize_with = "hexadecimal")]
        comm_hash: u64,
        rank: i32,
        #[serde(skip_serializing_if = "Option::is_none")]
        n_ranks: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        n_nodes: Option<i32>,
        #[serde(skip_serializing_if = "str::is_empty")]
        name: &'a str,
        /// The file holds ops that other processes asked this one to do, of any communicator.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        foreign: bool,
        t: u64,
    },
    Coll {
        id: u64,
        group: Option<u64>,
        rank: i32,
        seq_number: u64,
        func: &'a str,
        count: usize,
        datatype: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        red_op: Option<u32>,
        root: i32,
        algo: &'a str,
        proto: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        n_channels: Option<u8>,
        #[serde(skip_serializing_if = "Option::is_none")]
        n_max_channels: Option<u8>,
        n_warps: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        traffic_bytes: Option<usize>,
        t: u64,
    },
    P2p {
        id: u64,
        group: Option<u64>,
        rank: i32,
        func: &'a str,
        count: usize,
        datatype: &'a str,
        peer: i32,
        #[serde(skip_serializing_if = "Option::is_none")]
        n_channels: Option<u8>,
        t: u64,
    },
    ProxyOp {
        id: u64,
        /// The call, by its number in the process that made it.
        parent: Option<u64>,
        parent_pid: i32,
        rank: i32,
        channel_id: u8,
        peer: i32,
        n_steps: i32,
        chunk_size: i32,
        is_send: bool,
        t: u64,
    },
    ProxyStep {
        id: u64,
        op: u64,
        step: i32,
        start: u64,
        stop: Option<u64>,
        states: &'a [State],
    },
    Stop {
        id: u64,
        t: u64,
        /// Proxy ops up to v3: running sums; from v4 on the moment the proxy took the op up.
        #[serde(skip_serializing_if = "<[State]>::is_empty")]
        states: &'a [State],
    },
    Finalize {
        t: u64,
    },
}

/// A state that an event reached, and when first.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct State {
    #[serde(rename = "state")]
    pub(crate) number: i32,
    pub(crate) t: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trans_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) steps: Option<i32>,
}

impl State {
    pub(crate) fn new(transition: Transition, t: u64) -> Self {
        Self { number: transition.state, t, trans_size: transition.trans_size, steps: transition.steps }
    }

    /// NCCL says some states again and again while it waits.
    pub(crate) fn repeats(&self, earlier: &Self) -> bool {
        self.number == earlier.number && self.trans_size == earlier.trans_size && self.steps == earlier.steps
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn hexadecimal<S: serde::Serializer>(hash: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{hash:#x}"))
}
