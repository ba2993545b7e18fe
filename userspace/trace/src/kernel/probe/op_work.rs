//! The device work that an op was made for, copied where NCCL asks about the op.
//!
//! Up to 2.23 an op does not say what its channel carries. The device work does, and NCCL has just written it
//! when it comes to `ncclProxySaveOp` in the plan pass. In 2.20 and 2.21 it is the last of its channel in the
//! plan that is being made, the last of the communicator's plans; in 2.22 and 2.23, of a collective, the
//! first that waits (src/enqueue.cc: addCBDCollToPlan, addTunedCollToPlan, addP2pToPlan;
//! scheduleCollTasksToPlan).

use super::plan_builder::{PlanBuilder, Slot};
use flow::wire::{OpWorkSpans, Span};
use nccl_library::fields::{
    comm, dev_work_coll, kernel_plan, ops_say_their_share, proxy_op, work_elem, work_list,
};

/// Copies the device work. Gives `None` in versions whose ops need no such help, and in those whose work does
/// not give it (before 2.20). `just_inquire` is not 0 in the plan pass.
pub(super) fn op_work(
    plan: &mut PlanBuilder<'_>,
    comm: Slot,
    op: Slot,
    just_inquire: Slot,
) -> Option<OpWorkSpans> {
    let layouts = plan.layouts;
    if ops_say_their_share(layouts) {
        None
    } else if work_elem::WORK_COUNT.exists(layouts) && comm::PLAN_QUEUE_TAIL.exists(layouts) {
        Some(elements(plan, comm, op, just_inquire))
    } else if dev_work_coll::COUNT_LO.exists(layouts) && comm::WAITING_WORK.exists(layouts) {
        Some(node(plan, comm, just_inquire))
    } else {
        None
    }
}

fn elements(plan: &mut PlanBuilder<'_>, comm: Slot, op: Slot, just_inquire: Slot) -> OpWorkSpans {
    let channel_size = plan.element_size(kernel_plan::CHANNELS);
    let list_at = plan.offset_of(kernel_plan::CHANNEL_LAST_WORK);
    let mut found = Found::new(plan, comm);
    let counts = plan.constant(0);
    plan.unless_zero(just_inquire, |plan| {
        let current = plan.load_pointer(comm, comm::PLAN_QUEUE_TAIL);
        plan.unless_zero(current, |plan| {
            let id = plan.load_field(op, proxy_op::CHANNEL_ID);
            let channel = plan.scale(current, id, channel_size);
            let both = plan.load_field(channel, kernel_plan::CHANNEL_LAST_ELEMENTS);
            plan.set(counts, both);
            let list = plan.load(channel, list_at, 8);
            found.take(plan, list);
        });
    });
    let (offset, len) = plan.place_of(work_list::WORK);
    let (address, work) = found.copy(plan, offset, len);
    OpWorkSpans::Elements { address, work, counts: plan.emit(counts) }
}

fn node(plan: &mut PlanBuilder<'_>, comm: Slot, just_inquire: Slot) -> OpWorkSpans {
    let mut found = Found::new(plan, comm);
    plan.unless_zero(just_inquire, |plan| {
        let waiting = plan.load_pointer(comm, comm::WAITING_WORK);
        found.take(plan, waiting);
    });
    let sizes = [work_list::STRUCT, dev_work_coll::STRUCT].map(|strukt| plan.size_of::<u64>(strukt));
    let bytes = plan.number(sizes[0].saturating_add(sizes[1]));
    let (address, bytes) = found.copy(plan, 0, bytes);
    OpWorkSpans::Node { address, bytes }
}

/// An address that is looked for by steps that may be left out.
struct Found {
    /// Address; 0 until it is found.
    address: Slot,
    /// An address that can be read in any case, so that no hit counts as one with something unread.
    base: Slot,
}

impl Found {
    fn new(plan: &mut PlanBuilder<'_>, readable: Slot) -> Self {
        let address = plan.constant(0);
        // A word of its own, which can be set.
        Self { address, base: plan.offset(readable, 0) }
    }

    /// Takes this address as found, unless it is 0.
    fn take(&mut self, plan: &mut PlanBuilder<'_>, address: Slot) {
        plan.unless_zero(address, |plan| {
            plan.set(self.address, address);
            plan.set(self.base, address);
        });
    }

    /// Puts the address, and the bytes there, into the record.
    fn copy(self, plan: &mut PlanBuilder<'_>, offset: i64, len: u16) -> (Span, Span) {
        (plan.emit(self.address), plan.copy(self.base, offset, len))
    }
}
