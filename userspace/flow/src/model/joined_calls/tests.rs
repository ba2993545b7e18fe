use super::*;
use crate::{
    decode::{ApiLineEvent, ApiReturnEvent, CommunicatorId, Event, Origin, ReductionOp, TaskInfo},
    made::calls::{Call, call, p2p},
    model::{ApiOutput, ApiSession, FlowRecord, Node, Session},
};
use nccl_library::nccl::{ApiFunction, Pattern};

/// A process whose calls and ops are recorded.
#[derive(Default)]
struct Process {
    session: Session,
    api: ApiSession,
    node: Node,
    /// Calls that were made.
    made: u64,
    calls: Vec<ApiRecord>,
    ops: Vec<FlowRecord>,
}

impl Process {
    fn call(&mut self, name: &str, count: u64, buffer: u64, root: i32) {
        let id = call(Pattern::RingTwice, 0, 0, 0).event.comm;
        self.made += 1;
        let event = ApiLineEvent {
            origin: Origin { ts_ns: 10 * self.made, tgid: 10, tid: 100, lost: 0, stack: None },
            comm: Some(id),
            comm_pointer: id.pointer,
            op_count: None,
            name: name.into(),
            send_buffer: buffer,
            recv_buffer: buffer,
            count,
            datatype: Some("float32".into()),
            reduction_op: ReductionOp::Unknown,
            root,
            stream: 0,
            stack_pointer: 0,
            with_ops: true,
            by_arguments: false,
        };
        let (calls, ops) = (&mut self.calls, &mut self.ops);
        self.session.called(&event.origin, &mut self.node, &mut |op| ops.push(op));
        self.api.call(event, &mut self.node, &mut |output| keep(calls, output));
    }

    fn op(&mut self, op: Call) {
        let (calls, ops) = (&mut self.calls, &mut self.ops);
        self.session
            .apply(Event::ProxyOp(Box::new(op.on_nvlink().event)), &mut self.node, &mut |op| ops.push(op));
        self.api.take_joined(10, &mut self.node, &mut |output| keep(calls, output));
    }

    /// The call that is open on the thread returns.
    fn returned(&mut self) {
        let event = ApiReturnEvent {
            origin: Origin { ts_ns: 10 * self.made + 6, tgid: 10, tid: 100, lost: 0, stack: None },
            function: ApiFunction::try_from("ncclAllReduce".to_owned()).unwrap(),
            result: "ncclSuccess".into(),
            is_error: false,
            stack_pointer: 8,
        };
        let calls = &mut self.calls;
        self.api.returned(event, &mut self.node, &mut |output| keep(calls, output));
    }

    /// The op's call is known when the next op begins.
    fn finish(mut self) -> (Vec<Observed<u64>>, Vec<Observed<u64>>) {
        let (calls, ops) = (&mut self.calls, &mut self.ops);
        self.session.finish(|_| 0, &mut self.node, &mut |op| ops.push(op));
        self.api.finish(&mut self.node, &mut |output| keep(calls, output));
        assert!(self.calls.iter().map(|call| call.number).eq(0..self.calls.len() as u64), "in their order");
        (self.calls.iter().map(|call| call.seq).collect(), self.ops.iter().map(|op| op.api_call).collect())
    }
}

fn keep(calls: &mut Vec<ApiRecord>, output: ApiOutput) {
    if let ApiOutput::Call(call) = output {
        calls.push(*call);
    }
}

/// A collective of so many elements, as its task has it.
fn collective(place: u64, count: u64, buffer: u64) -> Call {
    let mut made = call(Pattern::RingTwice, 0, 2 * place, 0);
    made.event.task = Some(TaskInfo {
        pointer: 0xa00 + place,
        count: Some(count),
        datatype: Some("float32".into()),
        function: Some("AllReduce".into()),
        buffers: Some([buffer; 2]),
        ..TaskInfo::default()
    });
    made
}

const KNOWN: fn(u64) -> Observed<u64> = Observed::Known;

/// NCCL plans the largest first.
#[test]
fn calls_of_a_group_are_told_by_what_was_given() {
    let mut process = Process::default();
    process.call("AllReduce", 10, 0x10, 0);
    process.call("AllReduce", 20, 0x20, 0);
    process.call("AllReduce", 10, 0x30, 0);
    assert!(process.calls.is_empty(), "they wait");
    for (place, count, buffer) in [(0, 20, 0x20), (1, 10, 0x30), (2, 10, 0x10)] {
        process.op(collective(place, count, buffer));
    }
    let (calls, ops) = process.finish();
    assert_eq!(calls, [KNOWN(4), KNOWN(0), KNOWN(2)]);
    assert_eq!(ops, [KNOWN(1), KNOWN(2), KNOWN(0)]);
}

#[test]
fn of_calls_that_are_alike_nobody_says_which_is_which() {
    let mut process = Process::default();
    process.call("AllReduce", 10, 0x10, 0);
    process.call("AllReduce", 10, 0x10, 0);
    process.op(collective(0, 10, 0x10));
    process.op(collective(1, 10, 0x10));
    let (calls, ops) = process.finish();
    assert_eq!((calls, ops), (vec![Observed::Unknown; 2], vec![Observed::Unknown; 2]));
}

/// Equal calls that follow one another can be told apart: the first is over when the second comes.
#[test]
fn a_call_waits_no_longer_than_its_group() {
    let mut process = Process::default();
    for place in 0..3 {
        process.call("AllReduce", 10, 0x10, 0);
        // Nothing to send: NCCL makes no op of it, or none that fits.
        process.call("Broadcast", 0, 0x10, 0);
        process.op(collective(place, 10, 0x10));
    }
    assert_eq!(process.calls.len(), 4, "but for the last two");
    let (calls, ops) = process.finish();
    assert_eq!(
        calls,
        [KNOWN(0), Observed::Unknown, KNOWN(2), Observed::Unknown, KNOWN(4), Observed::Unknown]
    );
    assert_eq!(ops, [0, 2, 4].map(KNOWN));
}

#[test]
fn sends_and_receives_are_told_by_peer_and_calls_of_several_ops_name_none() {
    let mut process = Process::default();
    process.call("Send", 1, 0x10, 2);
    process.call("Recv", 1, 0x20, 3);
    process.op(p2p(Pattern::Recv, 3, 0));
    process.op(p2p(Pattern::Send, 2, 0));
    process.call("AlltoAll", 1, 0x10, 0);
    for (pattern, peer) in [(Pattern::Send, 2), (Pattern::Recv, 2), (Pattern::Send, 3)] {
        let mut op = p2p(pattern, peer, 0);
        op.event.op.coll_api = Some("AlltoAll".into());
        process.op(op);
    }
    let (calls, ops) = process.finish();
    assert_eq!(calls, [KNOWN(3), KNOWN(1), Observed::Unknown]);
    assert_eq!(ops, [1, 0, 2, 2, 2].map(KNOWN));
}

#[test]
fn a_communicator_of_one_rank_has_no_ops_to_wait_for_and_too_many_calls_do_not_wait() {
    let mut process = Process::default();
    for _ in 0..MAX_IN_BATCH + 10 {
        process.call("AllReduce", 10, 0x10, 0);
    }
    assert_eq!(process.calls.len(), 10);
    let alone = CommunicatorId { n_ranks: 1, rank: 0, ..process.calls[0].event.comm.unwrap() };
    let event = ApiLineEvent { comm: Some(alone), ..process.calls[0].event.clone() };
    let mut calls = Vec::new();
    process.api.call(event, &mut process.node, &mut |output| keep(&mut calls, output));
    assert_eq!(calls.len(), 1);
}

/// The older levels' lines are as they were.
#[test]
fn without_calls_an_op_has_no_place_for_them() {
    let mut process = Process::default();
    process.op(collective(0, 10, 0x10));
    assert_eq!(process.finish().1, [Observed::Absent]);
}

/// A call goes out when it has both, whichever comes first.
#[test]
fn calls_wait_for_their_returns_and_their_ops() {
    let process = || Process { api: ApiSession::new(true), ..Process::default() };
    let returned = |process: &Process| -> Vec<Option<u64>> {
        let host_ns = |call: &ApiRecord| match &call.returned {
            Observed::Known(returned) => Some(returned.host_ns),
            _ => None,
        };
        process.calls.iter().map(host_ns).collect()
    };
    // In a group all calls return before the first op.
    let mut group = process();
    for count in [10, 20] {
        group.call("AllReduce", count, 0x10, 0);
        group.returned();
    }
    assert!(group.calls.is_empty(), "they wait for their ops");
    for (place, count) in [(0, 20), (1, 10)] {
        group.op(collective(place, count, 0x10));
    }
    // The second op's call is known when it is over.
    group.call("AllReduce", 30, 0x10, 0);
    assert_eq!(returned(&group), [Some(6), Some(6)]);
    // Outside of one the op comes first.
    let mut alone = process();
    alone.call("AllReduce", 10, 0x10, 0);
    alone.op(collective(0, 10, 0x10));
    alone.call("AllReduce", 20, 0x10, 0);
    alone.returned();
    alone.op(collective(1, 20, 0x10));
    assert_eq!(returned(&alone), [None], "the first one's return was lost");
    assert_eq!(alone.finish().0, [KNOWN(0), KNOWN(2)]);
    let mut late = process();
    late.call("AllReduce", 10, 0x10, 0);
    late.op(collective(0, 10, 0x10));
    late.op(collective(1, 10, 0x20));
    assert!(late.calls.is_empty(), "it has not returned");
    late.returned();
    assert_eq!(returned(&late), [Some(6)]);
}
