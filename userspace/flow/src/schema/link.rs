//! Traffic of each link of a rank, and the times of its ops: `links` and `times` of `flow_rank`, and
//! `ncclflow summary`.

use std::collections::BTreeMap;

use nccl_library::nccl::{Direction, Transport};
use serde::{Deserialize, Serialize};

use super::message::Wait;

row! {
    /// Identity of a link as this rank sees it.
    #[derive(Copy, Eq, PartialOrd, Ord)]
    pub struct LinkKey {
    /// Direction: this rank sends (`SEND`), or receives (`RECV`).
        "op": Identity, op: Direction;
    /// Peer of this rank on the link.
        "peer": Identity, peer: i32;
        /// NCCL channel.
        "channel": Identity, channel: u32;
    }
}

row! {
    /// Statistics of one kind of wait, over all messages of a link.
    #[derive(Copy)]
    pub struct WaitRow {
        /// Messages of which both moments are known.
        "messages": Derived, messages: u64;
        /// Sum of the waits.
        "total_ns": Derived "ns", total_ns: u64;
        /// Median, to within 3 %.
        "p50_ns": Derived "ns", p50_ns: u64;
        /// 99th percentile, to within 3 %.
        "p99_ns": Derived "ns", p99_ns: u64;
        /// Longest wait.
        "max_ns": Derived "ns", max_ns: u64;
    }
}

row! {
    /// Traffic of a link.
    pub struct LinkRow {
    /// Direction: this rank sends (`SEND`), or receives (`RECV`).
        "op": Identity, op: Direction;
    /// Peer of this rank on the link.
        "peer": Identity, peer: i32;
    /// NCCL channel.
        "channel": Identity, channel: u32;
    /// Transport of the link: `NET` `P2P` `SHM` `COL` …
        "transport": Identity, transport: Transport;
    /// Messages, measured or only planned.
        "messages": Derived, messages: u64;
    /// Messages that were measured to their end.
        "messagesMeasured": Measured, messages_measured: u64;
    /// Bytes of the messages: the measured size where there is one, or else the planned size.
        "bytes": Measured "bytes", bytes: u64;
        /// Time in which ops had messages under way, one op after the other.
        "busy_ns": Derived "ns", busy_ns: u64;
        /// `bytes` of measured messages over `busy_ns`.
        "bandwidth": Derived "bytes/s", bandwidth: Option<u64>;
        /// Time from when a message could begin to its end: an object with the keys of a wait.
        "message": Derived, message: Option<WaitRow>;
        /// Waits by kind, without `wait_` and `_ns`: objects with the keys of a wait.
        "waits": Derived, waits: BTreeMap<Wait, WaitRow>;
    }
}

row! {
    /// The times of an op of a rank.
    #[derive(Eq)]
    pub struct OpTimes {
        /// When the op's first message could begin, CLOCK_MONOTONIC.
        "first_start_ns": Derived "ns", first_start_ns: u64;
        /// When the op's last message ended, CLOCK_MONOTONIC.
        "last_end_ns": Measured "ns", last_end_ns: u64;
        /// Messages that did not end.
        "unended": Measured, unended: u64;
        /// Link, of those that the op sends over (or receives over, if it sends nothing), whose messages were
        /// in the network longest, all together: `op` `peer` `channel`.
        "slowest_link": Derived, slowest_link: LinkKey;
        /// Time that the messages of that link were in the network, all together.
        "slowest_link_network_ns": Derived "ns", slowest_link_network_ns: u64;
    }
}

/// The times of an op, by its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpTimesRow {
    pub seq: u64,
    #[serde(flatten)]
    pub times: OpTimes,
}
