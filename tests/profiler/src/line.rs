//! The lines of a truth file. `kind` says which one it is; times are CLOCK_MONOTONIC nanoseconds.
//!
//! Each event has a line when it starts, one for each state that it reaches, and one when it stops. Each line
//! is written at once, so that the file shows how far an event came that hangs or whose process was killed.

use serde::Serialize;

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
        #[serde(skip_serializing_if = "Option::is_none")]
        send_buff: Option<usize>,
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
        t: u64,
    },
    /// A step's state is what its message waits for. A proxy op's states have running sums up to v3; from v4
    /// on the only one is that the proxy took up the op.
    State {
        id: u64,
        state: i32,
        #[serde(skip_serializing_if = "Option::is_none")]
        trans_size: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        steps: Option<i32>,
        t: u64,
    },
    Stop {
        id: u64,
        t: u64,
    },
    Finalize {
        t: u64,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn hexadecimal<S: serde::Serializer>(hash: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{hash:#x}"))
}
