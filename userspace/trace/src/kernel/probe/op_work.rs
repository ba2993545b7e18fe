//! The device work that an op was made for, copied where NCCL asks about the op.
//!
//! Up to 2.23 an op does not say what its channel carries. The device work does, and NCCL has just written it
//! when it comes to `ncclProxySaveOp` in the plan pass. In 2.20 and 2.21 it is the last of its channel in the
//! plan that is being made, the last of the communicator's plans; in 2.22 and 2.23, of a collective, the
//! first that waits (src/enqueue.cc: addCBDCollToPlan, addTunedCollToPlan, addP2pToPlan;
//! scheduleCollTasksToPlan).

use super::{
    error::PlanError,
    lookup::{len, offset_of, place_of, signed},
    plan_builder::{PlanBuilder, Slot},
};
use flow::wire::{OpWorkSpans, Span};
use nccl_library::{
    fields::{comm, dev_work_coll, kernel_plan, ops_say_their_share, proxy_op, work_elem, work_list},
    layouts::Layouts,
};

/// Arguments of `ncclProxySaveOp`.
#[derive(Clone, Copy)]
pub(super) struct Passed {
    pub(super) comm: Slot,
    pub(super) op: Slot,
    /// Argument that is not 0 in the plan pass.
    pub(super) just_inquire: Slot,
}

/// Copies the device work. Gives `None` in versions whose ops need no such help, and in those whose work does
/// not give it (before 2.20).
pub(super) fn op_work(
    plan: &mut PlanBuilder,
    layouts: &Layouts,
    passed: Passed,
) -> Result<Option<OpWorkSpans>, PlanError> {
    if ops_say_their_share(layouts) {
        Ok(None)
    } else if work_elem::WORK_COUNT.exists(layouts) && comm::PLAN_QUEUE_TAIL.exists(layouts) {
        elements(plan, layouts, passed).map(Some)
    } else if dev_work_coll::COUNT_LO.exists(layouts) && comm::WAITING_WORK.exists(layouts) {
        node(plan, layouts, passed).map(Some)
    } else {
        Ok(None)
    }
}

fn elements(plan: &mut PlanBuilder, layouts: &Layouts, passed: Passed) -> Result<OpWorkSpans, PlanError> {
    let channel_size = signed(kernel_plan::CHANNELS.array(layouts)?.elem_size)?;
    let plan_at = offset_of(layouts, comm::PLAN_QUEUE_TAIL)?;
    let id = place_of(layouts, proxy_op::CHANNEL_ID)?;
    let list_at = offset_of(layouts, kernel_plan::CHANNEL_LAST_WORK)?;
    let counts_at = place_of(layouts, kernel_plan::CHANNEL_LAST_ELEMENTS)?;
    let work = place_of(layouts, work_list::WORK)?;

    let mut found = Found::new(plan, passed.comm);
    let counts = plan.constant(0);
    plan.unless_zero(passed.just_inquire, |plan| {
        let current = plan.load(passed.comm, plan_at, 8);
        plan.unless_zero(current, |plan| {
            let id = plan.load(passed.op, id.0, id.1);
            let channel = plan.scale(current, id, channel_size);
            let both = plan.load(channel, counts_at.0, counts_at.1);
            plan.set(counts, both);
            let list = plan.load(channel, list_at, 8);
            found.take(plan, list);
        });
    });
    let (address, work) = found.copy(plan, work.0, work.1);
    Ok(OpWorkSpans::Elements { address, work, counts: plan.emit(counts) })
}

fn node(plan: &mut PlanBuilder, layouts: &Layouts, passed: Passed) -> Result<OpWorkSpans, PlanError> {
    let bytes = len(work_list::STRUCT.size(layouts)? + dev_work_coll::STRUCT.size(layouts)?)?;
    let waiting_at = offset_of(layouts, comm::WAITING_WORK)?;
    let mut found = Found::new(plan, passed.comm);
    plan.unless_zero(passed.just_inquire, |plan| {
        let waiting = plan.load(passed.comm, waiting_at, 8);
        found.take(plan, waiting);
    });
    let (address, bytes) = found.copy(plan, 0, bytes);
    Ok(OpWorkSpans::Node { address, bytes })
}

/// An address that is looked for by steps that may be left out.
struct Found {
    /// Address; 0 until it is found.
    address: Slot,
    /// An address that can be read in any case, so that no hit counts as one with something unread.
    base: Slot,
}

impl Found {
    fn new(plan: &mut PlanBuilder, readable: Slot) -> Self {
        let address = plan.constant(0);
        Self { address, base: plan.variable(readable) }
    }

    /// Takes this address as found, unless it is 0.
    fn take(&mut self, plan: &mut PlanBuilder, address: Slot) {
        plan.unless_zero(address, |plan| {
            plan.set(self.address, address);
            plan.set(self.base, address);
        });
    }

    /// Puts the address, and the bytes there, into the record.
    fn copy(self, plan: &mut PlanBuilder, offset: i64, len: u16) -> (Span, Span) {
        (plan.emit(self.address), plan.copy(self.base, offset, len))
    }
}
