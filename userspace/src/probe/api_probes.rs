//! What is copied where the program calls NCCL's API (`--level api`).
//!
//! Every collective, p2p and one-sided call goes through `ncclEnqueueCheck(ncclInfo*)`, whatever its exported name is. The
//! first 72 bytes of `ncclInfo` have not moved from 2.16 to 2.32, but they are taken from the library's own layout all the
//! same.

use super::{
    lookup::{Compiled, communicator, field, len, offset, parameter},
    op_probes::API_NAME_BYTES,
    plan_builder::PlanBuilder,
    spans::{ApiEntrySpans, ApiLineSpans, ApiReturnSpans, ProbeKind},
};
use crate::{
    elf::Machine,
    nccl::ApiFunction,
    symbols::{Function, Resolution},
};

/// `ncclEnqueueCheck`.
pub(super) fn api_line(resolution: &Resolution, function: &Function) -> Compiled {
    let layouts = &resolution.layouts;
    let mut plan = PlanBuilder::new(resolution.machine);
    let info = plan.parameter(parameter(function, "info")?);
    let comm_at = field(layouts, "ncclInfo", "comm")?;
    let comm = plan.load(info, offset(&comm_at)?, 8);
    let comm_spans = communicator(&mut plan, layouts, comm)?;
    let op_count = match layouts.field("ncclComm", "opCount") {
        Some(at) => Some(plan.copy(comm, offset(&at)?, len(at.size)?)),
        None => None,
    };
    let name_at = field(layouts, "ncclInfo", "opName")?;
    let name = plan.load(info, offset(&name_at)?, 8);
    let name = plan.copy(name, 0, API_NAME_BYTES);
    // All in one read: a probe's price is its reads as much as its trap.
    let [coll, send, recv, count, datatype, op, root, stream] =
        ["coll", "sendbuff", "recvbuff", "count", "datatype", "op", "root", "stream"]
            .map(|path| field(layouts, "ncclInfo", path));
    let fields = [coll?, send?, recv?, count?, datatype?, op?, root?, stream?];
    let end = fields.iter().map(|field| field.offset.saturating_add(field.size)).max().unwrap_or(0);
    let whole = plan.copy(info, 0, len(end)?);
    let mut spans = [whole; 8];
    for (span, field) in spans.iter_mut().zip(&fields) {
        *span = whole.part(len(field.offset)?, len(field.size)?);
    }
    let [function, send_buffer, recv_buffer, count, datatype, reduction_op, root, stream] = spans;
    let stack_pointer = plan.stack_pointer();
    let spans = ApiLineSpans {
        comm: comm_spans,
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
    };
    Ok((plan.finish()?, ProbeKind::ApiLine(spans)))
}

/// An exported function's entry.
pub(super) fn api_entry(machine: Machine, function: ApiFunction) -> Compiled {
    let mut plan = PlanBuilder::new(machine);
    let stack_pointer = plan.stack_pointer();
    let spans = ApiEntrySpans { function, stack_pointer: plan.emit(stack_pointer) };
    Ok((plan.finish()?, ProbeKind::ApiEntry(spans)))
}

/// An exported function's return.
pub(super) fn api_return(machine: Machine, function: ApiFunction) -> Compiled {
    let mut plan = PlanBuilder::new(machine);
    let (result, stack_pointer) = (plan.return_value(), plan.stack_pointer());
    let spans =
        ApiReturnSpans { function, result: plan.emit(result), stack_pointer: plan.emit(stack_pointer) };
    Ok((plan.finish()?, ProbeKind::ApiReturn(spans)))
}
