//! What the plan of a launch without proxy ops says: kernels on symmetric memory, copies by copy engines,
//! one-sided calls.
//!
//! Such a plan has neither tasks nor work in its queues when its launch is probed: what it does stands in the
//! arguments. They are read in the launch's own record, behind all that ordinary launches send. An ordinary
//! launch pays nothing for it in the short way; in a walk one read of at most 4 bytes, and some twenty steps that
//! read nothing and send 80 bytes of zeroes.
//!
//! One-sided calls are taken out of their plan before that, by `ncclLaunchRma`, which has a probe of its own.

use super::{
    plan_builder::{PlanBuilder, Slot},
    walk_probes::Assembly,
};
use flow::wire::{LAUNCH_ARGS, LaunchSpans, PlanList, PlanNodeSpans, ProbeKind, Span};
use nccl_library::{
    fields::{FieldRef, kernel_plan, symk_dev_work_args, task_rma},
    symbols::Resolution,
};
use ncclflow_common::{NODE_BYTES_AT, NODE_GIVEN, Queue, STACK_POINTER_SLOT};

/// The function that takes one-sided calls out of their plan, and launches them.
pub(super) const ONE_SIDED: &str = "ncclLaunchRma";

/// Words that are read of the ranks that a one-sided call waits for, two ranks each.
const RANK_WORDS: usize = 4;

/// Tells whether one-sided calls can be seen before they are launched.
pub(super) fn sees_one_sided(resolution: &Resolution) -> bool {
    resolution.functions(ONE_SIDED).len() == 1
        && [kernel_plan::RMA_PROXY_TASKS, kernel_plan::RMA_COPY_TASKS, task_rma::NEXT, task_rma::PEERS]
            .iter()
            .all(|field| field.exists(&resolution.layouts))
}

/// Places of the kernel's address and of the arguments' size, which are copied with the rest of the plan.
pub(super) const COPIED: [FieldRef; 2] = [kernel_plan::KERNEL, kernel_plan::KERNEL_ARGS_SIZE];

/// Flags of the plan, and the bytes of all that a version has.
pub(super) const FLAGS: [FieldRef; 3] =
    [kernel_plan::IS_SYMMETRIC, kernel_plan::IS_COPY_ENGINE, kernel_plan::IS_RMA];

/// Adds the arguments to the plan of the launch's own record. `flags` and `copied`: where the plan's fields
/// are in it already. `None` in versions that have no such launches.
pub(super) fn args(
    last: &mut PlanBuilder<'_>,
    resolution: &Resolution,
    plan: Slot,
    flags: [Option<Span>; 3],
    copied: [Span; 2],
) -> Option<LaunchSpans> {
    let (first, bytes) = flag_bytes(resolution)?;
    let n_channels_at = symk_dev_work_args::N_CHANNELS.find(&resolution.layouts).is_some();
    let [reclaim, pointer, size, n_channels, symmetric] = [(); 5].map(|()| last.reserve());
    let loaded = last.load(plan, first, bytes);
    // Behind three flags is a byte that is none: it is shifted out.
    let any = if bytes == 4 { last.scale(pointer, loaded, 1 << 40) } else { loaded };
    last.unless_zero(any, |last| {
        for (word, field) in [
            (reclaim, kernel_plan::RECLAIM),
            (pointer, kernel_plan::KERNEL_ARGS),
            (size, kernel_plan::KERNEL_ARGS_SIZE),
            (symmetric, kernel_plan::IS_SYMMETRIC),
        ] {
            let (offset, len) = last.place_of(field);
            last.load_into(word, plan, offset, len);
        }
        last.unless_zero(symmetric, |last| {
            if n_channels_at {
                let (offset, len) = last.place_of(symk_dev_work_args::N_CHANNELS);
                last.load_into(n_channels, pointer, offset, len);
            }
            // The work of the last call is at the end.
            last.add_to(pointer, size, -i64::from(LAUNCH_ARGS));
        });
    });
    // The arguments of the function have served: their words hold what is read next.
    let words = last.free_arguments();
    last.unless_zero(any, |last| last.load_words_into(words, pointer));
    let reclaim = last.emit(reclaim);
    let n_channels = last.emit(n_channels);
    let args = words.map(|word| last.emit(word));
    let [kernel, args_size] = copied;
    let args = args.into_iter().reduce(|all, word| Span {
        len: all.len + word.len,
        rests_on: all.rests_on | word.rests_on,
        ..all
    })?;
    Some(LaunchSpans {
        flags,
        kernel,
        reclaim,
        args_size,
        n_channels: n_channels_at.then_some(n_channels),
        args,
        one_sided_elsewhere: sees_one_sided(resolution),
    })
}

/// Returns where the flags begin, and the bytes to load for all of them: `None` where there are none, or they
/// are not beside each other.
fn flag_bytes(resolution: &Resolution) -> Option<(i64, u16)> {
    let found = FLAGS.map(|flag| flag.find(&resolution.layouts));
    let first = found.first()?.as_ref()?.offset;
    let all = found.iter().flatten().zip(0..);
    let are_neighbours = all.clone().all(|(flag, at): (_, u64)| flag.size == 1 && flag.offset == first + at);
    let bytes = match all.count() {
        1 => 1,
        2 => 2,
        _ => 4,
    };
    are_neighbours.then_some((i64::try_from(first).ok()?, bytes))
}

impl Assembly<'_> {
    /// Adds the queues of one-sided calls.
    pub(super) fn one_sided(&mut self, plan: Slot) {
        let heads = [kernel_plan::RMA_PROXY_TASKS, kernel_plan::RMA_COPY_TASKS];
        let heads = self.head.load_pointers(plan, heads);
        for (list, head) in [PlanList::OneSidedByProxy, PlanList::OneSidedByCopy].into_iter().zip(heads) {
            let next_at = self.head.offset_of(task_rma::NEXT);
            let nodes = self.one_sided_calls(list);
            self.lists.push((list, Queue { next_at, head: head.number(), ..nodes }));
        }
    }

    fn one_sided_calls(&mut self, list: PlanList) -> Queue {
        let mut part = PlanBuilder::part(self.resolution, NODE_GIVEN);
        let node = part.given(0);
        let size = part.size_of(task_rma::STRUCT);
        let (address, bytes) = part.emit_and_copy(node, 0, size);
        let peers = part.load_pointer(node, task_rma::PEERS);
        let words: [Slot; RANK_WORDS] = std::array::from_fn(|_| part.reserve());
        let n_peers = part.load_field(node, task_rma::N_PEERS);
        part.unless_zero(peers, |part| {
            part.unless_zero(n_peers, |part| {
                for (at, word) in (0..).zip(words) {
                    part.load_into(word, peers, 8 * at, 8);
                }
            });
        });
        let ranks = words.map(|word| part.emit(word)).into_iter().reduce(|all, word| Span {
            len: all.len + word.len,
            rests_on: all.rests_on,
            ..all
        });
        let spans = PlanNodeSpans { list, address, bytes, task: None, ranks };
        let plan = self.add_part(list.name(), ProbeKind::PlanNode(spans), part);
        let is_there = usize::from(bytes.at) == NODE_BYTES_AT;
        Queue {
            plan,
            copied: if is_there { bytes.len } else { 0 },
            when: STACK_POINTER_SLOT,
            ..Queue::default()
        }
    }
}
