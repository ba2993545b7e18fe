//! Probes on calls of NCCL's API (`--level api`).
//!
//! Every collective, p2p and one-sided call goes through `ncclEnqueueCheck(ncclInfo*)`, whatever its exported
//! name is. The first 72 bytes of `ncclInfo` have not moved from 2.16 to 2.32, but they are taken from the
//! library's own layout all the same.
//!
//! Where that layout is not known, the exported functions' own arguments are taken, as nccl.h and the
//! platform's calling convention have them. They do not say who the communicator is: `ncclComm_t` is an
//! address.

use super::{
    lookup::{Compiled, no_parameter},
    op_probes::called_info,
    plan_builder::{PlanBuilder, Slot},
};
use flow::wire::{ApiArgumentsSpans, ApiEntrySpans, ApiLineSpans, ApiReturnSpans, ProbeKind};
use nccl_library::{
    fields::{comm, info},
    nccl::{ApiFunction, Argument},
    symbols::{Function, Resolution, integer_argument},
};

/// Compiles the probe on `ncclEnqueueCheck`. `with_ops`: ops are probed, too.
pub(super) fn api_line(resolution: &Resolution, function: &Function, with_ops: bool) -> Compiled {
    let mut plan = PlanBuilder::new(resolution);
    let called = called_info(&mut plan, resolution, function);
    let op_count = plan.copy_if_there(called.comm, comm::OP_COUNT);
    let name = called.copy_name(&mut plan);
    // All in one read: a probe's price is its reads as much as its trap.
    let fields = [
        info::COLL,
        info::SEND_BUFFER,
        info::RECV_BUFFER,
        info::COUNT,
        info::DATATYPE,
        info::REDUCTION_OP,
        info::ROOT,
        info::STREAM,
    ];
    let ([function, send_buffer, recv_buffer, count, datatype, reduction_op, root, stream], []) =
        plan.copy_fields((called.info, 0), fields, []);
    let spans = ApiLineSpans {
        comm: called.spans,
        op_count,
        function,
        name,
        send_buffer,
        recv_buffer,
        count,
        datatype,
        reduction_op,
        root,
        stream,
        stack_pointer: plan.emit(Slot::STACK_POINTER),
        with_ops,
    };
    plan.compiled(ProbeKind::ApiLine(spans))
}

/// Compiles the probe on the arguments of an exported function that communicates.
pub(super) fn api_arguments(resolution: &Resolution, function: ApiFunction) -> Compiled {
    let mut plan = PlanBuilder::new(resolution);
    let mut argument = |wanted: &[Argument]| {
        let number = function.arguments().iter().position(|argument| wanted.contains(argument))?;
        let value = plan.value_at(&integer_argument(resolution.machine, number));
        Some(plan.emit(value))
    };
    let spans = ApiArgumentsSpans {
        function,
        comm: argument(&[Argument::Comm]).ok_or_else(|| no_parameter("comm"))?,
        stream: argument(&[Argument::Stream]).ok_or_else(|| no_parameter("stream"))?,
        send_buffer: argument(&[Argument::SendBuffer]),
        recv_buffer: argument(&[Argument::RecvBuffer]),
        count: argument(&[Argument::Count]),
        datatype: argument(&[Argument::Datatype]),
        reduction_op: argument(&[Argument::ReductionOp]),
        root: argument(&[Argument::Root, Argument::Peer]),
        stack_pointer: plan.emit(Slot::STACK_POINTER),
    };
    plan.compiled(ProbeKind::ApiArguments(spans))
}

/// Compiles the probe on an exported function's entry.
pub(super) fn api_entry(resolution: &Resolution, function: ApiFunction) -> Compiled {
    let mut plan = PlanBuilder::new(resolution);
    let spans = ApiEntrySpans { function, stack_pointer: plan.emit(Slot::STACK_POINTER) };
    plan.compiled(ProbeKind::ApiEntry(spans))
}

/// Compiles the probe on an exported function's return.
pub(super) fn api_return(resolution: &Resolution, function: ApiFunction) -> Compiled {
    let mut plan = PlanBuilder::new(resolution);
    let (result, stack_pointer) = (plan.emit(Slot::RETURN_VALUE), plan.emit(Slot::STACK_POINTER));
    plan.compiled(ProbeKind::ApiReturn(ApiReturnSpans { function, result, stack_pointer }))
}
