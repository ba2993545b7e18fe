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
    error::PlanError,
    lookup::{Compiled, place, place_of},
    op_probes::called_info,
    plan_builder::PlanBuilder,
};
use flow::wire::{ApiArgumentsSpans, ApiEntrySpans, ApiLineSpans, ApiReturnSpans, ProbeKind};
use nccl_library::{
    elf::Machine,
    fields::{comm, info},
    nccl::{ApiFunction, Argument},
    symbols::{Function, Resolution, integer_argument},
};

/// Compiles the probe on `ncclEnqueueCheck`. `with_ops`: ops are probed, too.
pub(super) fn api_line(resolution: &Resolution, function: &Function, with_ops: bool) -> Compiled {
    let layouts = &resolution.layouts;
    let mut plan = PlanBuilder::new(resolution.machine);
    let called = called_info(&mut plan, resolution, function)?;
    let op_count = comm::OP_COUNT.find(layouts).map(|at| place(&at)).transpose()?;
    let op_count = op_count.map(|(offset, len)| plan.copy(called.comm, offset, len));
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
    let places = fields.map(|field| place_of(layouts, field)).into_iter().collect::<Result<Vec<_>, _>>()?;
    let spans = plan.copy_together(called.info, &places);
    let &[function, send_buffer, recv_buffer, count, datatype, reduction_op, root, stream] = spans.as_slice()
    else {
        return Err(info::STRUCT.missing().into());
    };
    let stack_pointer = plan.stack_pointer();
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
        stack_pointer: plan.emit(stack_pointer),
        with_ops,
    };
    Ok((plan.finish()?, ProbeKind::ApiLine(spans), None))
}

/// Compiles the probe on the arguments of an exported function that communicates.
pub(super) fn api_arguments(machine: Machine, function: ApiFunction) -> Compiled {
    let mut plan = PlanBuilder::new(machine);
    let mut argument = |wanted: &[Argument]| {
        let number = function.arguments().iter().position(|argument| wanted.contains(argument))?;
        let value = plan.parameter(&integer_argument(machine, number));
        Some(plan.emit(value))
    };
    let spans = ApiArgumentsSpans {
        function,
        comm: argument(&[Argument::Comm]).ok_or(PlanError::NoParameter("comm"))?,
        stream: argument(&[Argument::Stream]).ok_or(PlanError::NoParameter("stream"))?,
        send_buffer: argument(&[Argument::SendBuffer]),
        recv_buffer: argument(&[Argument::RecvBuffer]),
        count: argument(&[Argument::Count]),
        datatype: argument(&[Argument::Datatype]),
        reduction_op: argument(&[Argument::ReductionOp]),
        root: argument(&[Argument::Root, Argument::Peer]),
        stack_pointer: {
            let stack_pointer = plan.stack_pointer();
            plan.emit(stack_pointer)
        },
    };
    Ok((plan.finish()?, ProbeKind::ApiArguments(spans), None))
}

/// Compiles the probe on an exported function's entry.
pub(super) fn api_entry(machine: Machine, function: ApiFunction) -> Compiled {
    let mut plan = PlanBuilder::new(machine);
    let stack_pointer = plan.stack_pointer();
    let spans = ApiEntrySpans { function, stack_pointer: plan.emit(stack_pointer) };
    Ok((plan.finish()?, ProbeKind::ApiEntry(spans), None))
}

/// Compiles the probe on an exported function's return.
pub(super) fn api_return(machine: Machine, function: ApiFunction) -> Compiled {
    let mut plan = PlanBuilder::new(machine);
    let (result, stack_pointer) = (plan.return_value(), plan.stack_pointer());
    let spans =
        ApiReturnSpans { function, result: plan.emit(result), stack_pointer: plan.emit(stack_pointer) };
    Ok((plan.finish()?, ProbeKind::ApiReturn(spans), None))
}
