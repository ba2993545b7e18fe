//! The lines of `api`: keys, their order and their meaning (docs/OUTPUT.md).

use flow::schema::HostInfo;
use serde::{Serialize, Serializer};

use flow::{
    decode::ReductionOp,
    model::{ApiRecord, OtherCall, Returned},
};
use nccl_library::nccl::datatype_bytes;

/// An address in the target: a string, as JSON's readers lose digits of large numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointer(pub(super) u64);

impl Serialize for Pointer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

/// What the fields of `ncclInfo` mean for a function: NCCL fills those that a function has no use for with `ncclSum` and 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    reduces: bool,
    has_root: bool,
    has_peer: bool,
}

impl Shape {
    /// By the call's name, src/collectives.cc up to 2.30. Of `Reduce`, and of a function that came later, all
    /// is shown.
    fn of(name: &str) -> Self {
        let (reduces, has_root, has_peer) = match name {
            "AllReduce" | "ReduceScatter" => (true, false, false),
            "Broadcast" | "Gather" | "Scatter" => (false, true, false),
            "AllGather" | "AlltoAll" | "WaitSignal" => (false, false, false),
            "Send" | "Recv" | "PutSignal" | "Signal" => (false, false, true),
            _ => (true, true, false),
        };
        Self { reduces, has_root, has_peer }
    }
}

/// A line of `api`: one call.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiCallLine<'a> {
    op_count: Option<u64>,
    rank: Option<i32>,
    function: &'a str,
    count: u64,
    bytes: Option<u64>,
    datatype: Option<&'a str>,
    redop: Option<&'a str>,
    redop_handle: Option<i32>,
    root: Option<i32>,
    peer: Option<i32>,
    sendbuff: Option<Pointer>,
    recvbuff: Option<Pointer>,
    stream: Pointer,
    comm: Pointer,
    comm_hash: Option<&'a str>,
    n_ranks: Option<i32>,
    call: Option<u64>,
    launched: Option<u64>,
    #[serde(rename = "ts_ns")]
    ts_ns: u64,
    pid: u32,
    tid: u32,
    host: &'a str,
    #[serde(flatten)]
    returned: Option<ReturnKeys<'a>>,
}

/// What came of the call, where returns are traced; `null` where its return was not seen.
#[derive(Debug, Serialize)]
struct ReturnKeys<'a> {
    called: Option<&'static str>,
    host_ns: Option<u64>,
    result: Option<&'a str>,
}

/// A line of a process's file: a call that belongs to no rank.
#[derive(Debug, Serialize)]
pub struct OtherCallLine<'a> {
    function: &'static str,
    ts_ns: u64,
    pid: u32,
    tid: u32,
    host: &'a str,
    host_ns: Option<u64>,
    result: Option<&'a str>,
}

impl<'a> OtherCallLine<'a> {
    pub fn new(call: &'a OtherCall, host: &'a HostInfo) -> Self {
        Self {
            function: call.function.name(),
            ts_ns: call.origin.ts_ns,
            pid: host.pid,
            tid: call.origin.tid,
            host: &host.host,
            host_ns: call.host_ns,
            result: call.result.as_deref(),
        }
    }
}

impl<'a> ApiCallLine<'a> {
    pub fn new(record: &'a ApiRecord, comm_hash: Option<&'a str>, host: &'a HostInfo) -> Self {
        let event = &record.event;
        let shape = Shape::of(&event.name);
        let datatype = event.datatype.as_deref();
        let is_user = shape.reduces && event.reduction_op == ReductionOp::User;
        // Send and Recv have one buffer, and NCCL keeps both in recvbuff.
        let (send, recv) = match event.name.as_str() {
            "Send" if event.send_buffer == 0 => (Some(event.recv_buffer), None),
            "Recv" => (None, Some(event.recv_buffer)),
            "PutSignal" => (Some(event.send_buffer), None),
            "Signal" | "WaitSignal" => (None, None),
            _ => (Some(event.send_buffer), Some(event.recv_buffer)),
        };
        Self {
            op_count: event.op_count,
            rank: record.comm.map(|comm| comm.rank),
            function: &event.name,
            count: event.count,
            bytes: datatype.and_then(datatype_bytes).and_then(|size| size.checked_mul(event.count)),
            datatype,
            redop: match &event.reduction_op {
                ReductionOp::BuiltIn(name) => Some(name.as_str()),
                ReductionOp::User => Some("user"),
                ReductionOp::Unknown => None,
            }
            .filter(|_| shape.reduces),
            redop_handle: is_user.then_some(event.reduction_op_number),
            root: shape.has_root.then_some(event.root),
            peer: shape.has_peer.then_some(event.root),
            sendbuff: send.map(Pointer),
            recvbuff: recv.map(Pointer),
            stream: Pointer(event.stream),
            comm: Pointer(event.comm_pointer),
            comm_hash,
            n_ranks: record.comm.map(|comm| comm.n_ranks),
            call: record.comm.map(|_| record.number),
            launched: event.comm.and_then(|comm| comm.launched),
            ts_ns: event.origin.ts_ns,
            pid: host.pid,
            tid: event.origin.tid,
            host: &host.host,
            returned: match &record.returned {
                Returned::NotTraced => None,
                Returned::NotSeen => Some(ReturnKeys { called: None, host_ns: None, result: None }),
                Returned::Seen { function, host_ns, result } => Some(ReturnKeys {
                    called: Some(function.name()),
                    host_ns: Some(*host_ns),
                    result: Some(result),
                }),
            },
        }
    }
}
