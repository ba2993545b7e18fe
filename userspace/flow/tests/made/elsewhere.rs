//! An op whose sends another rank's process executes (PXN): an op of rank 1 in process 10, executed by rank
//! 3.

use nccl_library::nccl::{Direction, Pattern};

use super::calls::{APPLICATION, Call, call, connector};
use crate::decode::{
    Connector, Event, Origin, ProxyOwner, ProxyPeerEvent, ProxyRank, ProxyStepEvent, StepMoment,
};

/// Process that posts the op; after it the process that executes the op, and the executor's rank.
pub const POSTER: u32 = 10;
pub const EXECUTOR: u32 = 11;
pub const EXECUTORS_RANK: i32 = 3;

/// Address of the connection in the executor's process.
const CONNECTION: u64 = 0x52;

/// Makes the poster's events: an op of two messages that is sent to rank 2, planned and posted as number 40.
pub fn posted() -> Vec<Event> {
    let mut plan = call(Pattern::RingTwice, 0, 0, 0);
    plan.event.op.nsteps = 4;
    let mut events = Vec::new();
    for Call { event, .. } in [plan.clone(), plan.posted(40, APPLICATION)] {
        let peer = ProxyPeerEvent {
            origin: event.origin,
            op_pointer: event.op_pointer,
            plan_pass: event.plan_pass,
            nsteps: Some(4),
            connector: Connector {
                owner: Some(ProxyOwner { same_process: false, rank: ProxyRank::Rank(EXECUTORS_RANK) }),
                connection: CONNECTION,
                ..connector(Direction::Send, 2)
            },
        };
        events.extend([Event::ProxyOp(Box::new(event)), Event::ProxyPeer(peer)]);
    }
    events
}

/// Makes events in which process `tgid` tells that it has the rank that executes the op.
pub fn tells_its_rank(tgid: u32) -> Vec<Event> {
    let mut plan = call(Pattern::RingTwice, 0, 0, 0).on_nvlink();
    plan.event.comm.rank = EXECUTORS_RANK;
    plan.event.origin.tgid = tgid;
    let mut next = plan.clone();
    next.event.comm.launched = Some(1);
    [plan, next].into_iter().map(|call| Event::ProxyOp(Box::new(call.event))).collect()
}

/// Makes all steps of the op's messages in process `tgid`.
pub fn steps(tgid: u32) -> Vec<ProxyStepEvent> {
    let moments =
        [(0, StepMoment::Sent), (0, StepMoment::Stop), (2, StepMoment::Sent), (2, StepMoment::Stop)];
    let step = |(time, (step, moment))| ProxyStepEvent {
        origin: Origin { ts_ns: time, tgid, tid: 300, lost: 0, stack: None },
        moment,
        connection: CONNECTION,
        op_count: 40,
        direction: Direction::Send,
        step,
        n_subs: 1,
        is_foreign: (moment == StepMoment::Stop).then_some(true),
        is_per_fifo_step: false,
        bytes: Some(100 + step),
        bytes_before: None,
        bytes_sum: None,
    };
    (100..).zip(moments).map(step).collect()
}
