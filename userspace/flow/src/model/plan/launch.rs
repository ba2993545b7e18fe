//! Makes an op of a launch that has no proxy ops: one for the whole launch, and one for each one-sided call.
//!
//! Such an op has no channels, steps or messages. NCCL does not count it, so it is numbered like a send or
//! receive: on each rank by itself.

use super::{Parts, PlanAssembler};
use crate::{
    decode::{
        Connector, Launch, LaunchedCall, LaunchedOp, OneSidedCall, PlanEvent, ProxyOp, ProxyOpEvent,
        ProxyPeerEvent, Ring, TaskInfo, Tree, Work, WorkKind,
    },
    model::call::ProxyCall,
    schema::LaunchKind,
};
use nccl_library::nccl::{Direction, Pattern, Protocol};

impl PlanAssembler {
    /// Returns the op of a launch without proxy ops; none if its calls are seen by another probe.
    pub(super) fn launched(&mut self, plan: &PlanEvent, launch: &Launch) -> Option<ProxyCall> {
        let (counter, pattern) = match launch.kind {
            LaunchKind::Symmetric => (&mut self.counters.symmetric, Pattern::Symmetric),
            LaunchKind::CopyEngine => (&mut self.counters.copy_engine, Pattern::CopyEngine),
            LaunchKind::Grouped
            | LaunchKind::OneSided
            | LaunchKind::OneSidedByProxy
            | LaunchKind::OneSidedByCopy => (&mut self.counters.one_sided, Pattern::OneSided),
        };
        *counter += 1;
        if launch.elsewhere {
            return None;
        }
        let call = &launch.call;
        self.counters.untold += u64::from(call.function.is_none() && call.bytes.is_none());
        // In 2.27 this is the size of the arguments.
        let rounded = (pattern == Pattern::Symmetric && launch.calls.is_some_and(|calls| calls > 1))
            .then_some(plan.work_bytes);
        let op = LaunchedOp {
            kernel: launch.kernel.clone(),
            bytes_at_most: rounded,
            ..launched_op(launch.kind, launch.calls, call)
        };
        Some(made(plan, pattern, op, call))
    }

    /// Returns the ops of a plan's one-sided calls.
    pub(super) fn one_sided(plan: &PlanEvent, parts: &Parts) -> Vec<ProxyCall> {
        let op_of = |OneSidedCall { by_proxy, call }: &OneSidedCall| {
            let kind = if *by_proxy { LaunchKind::OneSidedByProxy } else { LaunchKind::OneSidedByCopy };
            made(plan, Pattern::OneSided, launched_op(kind, Some(1), call), call)
        };
        parts.one_sided.iter().map(op_of).collect()
    }
}

/// Returns the op of broadcasts that were planned together (`ncclScheduleBcastTasksToPlan`,
/// src/scheduler/allgatherv_sched.cc, 2.29 and later), where none of their channels has a proxy. Each channel
/// has a work for each broadcast, in the order of their depths in its ring; `None` where that does not fit
/// the channels.
pub(super) fn grouped(plan: &PlanEvent, parts: &Parts) -> Option<ProxyCall> {
    let is_grouped = |work: &&Work| matches!(work.what, WorkKind::Broadcast(_));
    if !parts.works.iter().any(|work| is_grouped(&work))
        || parts.queued.iter().any(|queued| queued.op.slices.is_some())
    {
        return None;
    }
    let (mut channels, mut calls, mut in_channel, mut bytes) = (0u32, 0u64, 0u64, 0u64);
    let mut before = i32::MAX;
    for work in parts.works.iter().filter(is_grouped) {
        let WorkKind::Broadcast(Some(work)) = &work.what else { return None };
        if work.ring_depth <= before {
            (channels, in_channel) = (channels.saturating_add(1), 0);
        }
        before = work.ring_depth;
        in_channel += 1;
        calls = calls.max(in_channel);
        bytes = bytes.checked_add(work.bytes)?;
    }
    if channels != plan.channel_mask.count_ones() {
        return None;
    }
    let call = LaunchedCall {
        function: Some("AllGatherV".into()),
        datatype: Some("int8".into()),
        count: Some(bytes),
        bytes: Some(bytes),
        root: -1,
        ..LaunchedCall::default()
    };
    let op = launched_op(LaunchKind::Grouped, Some(calls), &call);
    Some(made(plan, Pattern::Grouped, op, &call))
}

/// Returns what a launch says beyond other ops, by its call.
fn launched_op(kind: LaunchKind, calls: Option<u64>, call: &LaunchedCall) -> LaunchedOp {
    let LaunchedCall { bytes, send, recv, .. } = *call;
    LaunchedOp { kind, kernel: None, calls, bytes, bytes_at_most: None, send, recv }
}

fn made(plan: &PlanEvent, pattern: Pattern, launch: LaunchedOp, call: &LaunchedCall) -> ProxyCall {
    let origin = plan.origin;
    let peers = match call.function.as_deref() {
        Some("PutSignal" | "Signal") => vec![(Direction::Send, call.root)],
        Some("WaitSignal") => call.waits_for.iter().map(|rank| (Direction::Recv, *rank)).collect(),
        _ => Vec::new(),
    };
    let peers = peers.into_iter().map(|(direction, peer)| ProxyPeerEvent {
        origin,
        op_pointer: 0,
        plan_pass: true,
        nsteps: None,
        connector: Connector::unknown(direction, peer, 0),
    });
    let buffers = launch.send.address.zip(launch.recv.address).map(|(send, recv)| [send, recv]);
    let task = TaskInfo {
        count: call.count,
        datatype: call.datatype.clone(),
        function: call.function.clone(),
        buffers,
        ..TaskInfo::default()
    };
    let op = ProxyOp {
        pattern,
        protocol: Protocol::None,
        root: call.root,
        dtype: call.datatype.clone(),
        red_op: call.red_op.clone(),
        coll: call.function.clone(),
        coll_api: call.function.clone(),
        launch: Some(Box::new(launch)),
        ..ProxyOp::default()
    };
    let none = -1;
    let event = ProxyOpEvent {
        origin,
        comm: plan.comm,
        op_pointer: 0,
        plan_pass: true,
        op,
        ring: Ring { prev: none, next: none, index: none },
        tree: Tree { up: none, down: [none; 3] },
        task: Some(task),
    };
    ProxyCall { event, peers: peers.collect(), incomplete: false, derived: false, queued: false }
}
