//! Tasks that a communicator has been asked for and has not launched: those in its planner
//! (`ncclKernelPlanner`, src/include/comm.h; `ncclTasks` up to 2.21).
//!
//! While a call waits for other ranks to connect, its tasks still stand there. So they tell which
//! communicator, and of sends and receives which peer, a thread that does not come back is busy with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::places::{self, Places, Wanted};
use inspect::memory::Memory;
use nccl_library::{
    elf::RuntimeAddr,
    fields::{ArrayField, IntField, comm, task_p2p},
    layouts::Layouts,
};

/// Maximum number of tasks of one queue that are counted.
const MAX_TASKS: u64 = 64;
/// Maximum number of tasks of all queues of a communicator that are counted: a process can make up as many as
/// it likes.
const MAX_ALL_TASKS: u64 = 1024;
/// Maximum number of peers that are looked at.
const MAX_PEERS: u32 = 1 << 14;
/// Maximum number of plans that are counted.
const MAX_PLANS: u64 = 64;

/// Operations that were asked for and not launched yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pending {
    /// Collectives that are not part of a plan yet.
    pub collectives: u64,
    /// Sends and receives that are not part of a plan yet.
    pub p2p: u64,
    /// Sends by their peer, at most 64 of each counted; null where the lists did not fit their number.
    pub sends: Option<BTreeMap<u32, u64>>,
    pub receives: Option<BTreeMap<u32, u64>>,
    /// Plans that were made and not launched.
    pub plans: u64,
    /// The communicator is part of a group that a thread has begun and not ended: between `ncclGroupStart`
    /// and the return of `ncclGroupEnd`, or within a call outside a group.
    pub in_group: Option<bool>,
    /// A call of the communicator goes on in a thread of NCCL's.
    pub in_job: Option<bool>,
}

impl Pending {
    /// Tells whether nothing was asked for that is not launched.
    pub fn is_empty(&self) -> bool {
        (self.collectives, self.p2p, self.plans) == (0, 0, 0)
    }
}

const COMM: [Wanted; 5] = [
    (comm::WAITING_COLLECTIVES, false),
    (comm::WAITING_P2P, false),
    (comm::WAITING_PEERS, false),
    (comm::UNLAUNCHED_PLANS, false),
    (comm::GROUP_JOB, false),
];

#[derive(Debug)]
pub(super) struct PendingLayout {
    comm: Places<5>,
    group_next: Option<(u64, u64)>,
    /// Offsets of the queues of sends and of receives in the struct of a peer, and its size.
    peer: Option<PeerLayout>,
    task_next: Option<IntField>,
    plan_next: Option<IntField>,
}

#[derive(Clone, Copy, Debug)]
struct PeerLayout {
    queue: u64,
    size: u64,
}

impl PeerLayout {
    /// Offset of the queues, which follow two `bool`. The shipped layouts have none of this struct.
    const QUEUES: u64 = 8;

    fn new(layouts: &Layouts) -> Option<Self> {
        let queue = comm::PLAN_QUEUE.find(layouts)?.size;
        let queues = if comm::WAITING_BROADCASTS.exists(layouts) { 3 } else { 2 };
        (queue >= 8 && queue.is_multiple_of(8) && queue <= 64)
            .then_some(Self { queue, size: Self::QUEUES + queues * queue })
    }
}

impl PendingLayout {
    pub(super) fn new(layouts: &Layouts) -> Self {
        let group_next = comm::GROUP_NEXT.find(layouts).map(|field| {
            let words = match comm::GROUP_NEXT.array(layouts) {
                Ok(ArrayField { count, elem_size: 8, .. }) => count.min(16),
                _ => 1,
            };
            (field.offset, words)
        });
        Self {
            // None of the fields is needed, so nothing can be missing.
            comm: places::find(COMM, layouts).unwrap_or_default(),
            group_next,
            peer: PeerLayout::new(layouts),
            task_next: task_p2p::NEXT.find_int(layouts),
            plan_next: nccl_library::fields::kernel_plan::NEXT.find_int(layouts),
        }
    }

    /// Reads what the communicator at `base` has pending; `None` where this version's planner is not known.
    pub(super) fn read(&self, memory: Memory<'_>, base: u64, n_ranks: u32) -> Option<Pending> {
        let [collectives, p2p, peers, plans, job] = places::read(memory, base, self.comm).ok()?;
        let mut pending = Pending {
            collectives: collectives?,
            p2p: p2p?,
            plans: chain(memory, plans.unwrap_or(0), self.plan_next, MAX_PLANS),
            in_job: job.map(|job| job != 0),
            ..Pending::default()
        };
        if let Some((offset, words)) = self.group_next
            && let Ok(words) = memory.words(RuntimeAddr(base.saturating_add(offset)), words)
        {
            pending.in_group = Some(words.iter().any(|next| *next != 1));
        }
        // A number that no program reaches is none.
        if pending.collectives > 1 << 24 || pending.p2p > 1 << 24 {
            return None;
        }
        let queues = match pending.p2p {
            0 => Some(Default::default()),
            count => peers.and_then(|peers| self.queues(memory, peers, n_ranks, count)),
        };
        (pending.sends, pending.receives) = queues.unzip();
        Some(pending)
    }

    /// Returns sends and receives by peer, if they are as many as NCCL counts.
    fn queues(
        &self,
        memory: Memory<'_>,
        peers: u64,
        n_ranks: u32,
        expected: u64,
    ) -> Option<(BTreeMap<u32, u64>, BTreeMap<u32, u64>)> {
        let PeerLayout { queue, size } = self.peer?;
        let n_ranks = n_ranks.min(MAX_PEERS);
        let words = memory.words(RuntimeAddr(peers), u64::from(n_ranks) * size / 8).ok()?;
        let mut found = [BTreeMap::new(), BTreeMap::new()];
        let (mut total, mut is_cut) = (0, false);
        for peer in 0..n_ranks {
            for (direction, queues) in (0u64..).zip(&mut found) {
                let at = u64::from(peer) * size + PeerLayout::QUEUES + direction * queue;
                let head = words.get(usize::try_from(at / 8).ok()?)?;
                let count = chain(memory, *head, self.task_next, MAX_TASKS);
                if count > 0 {
                    queues.insert(peer, count);
                    is_cut |= count == MAX_TASKS;
                    total += count;
                    if total > MAX_ALL_TASKS.min(expected) {
                        return None;
                    }
                }
            }
        }
        let [sends, receives] = found;
        // The lists prove the layout that was assumed for a peer's struct.
        (total == expected || (is_cut && total < expected)).then_some((sends, receives))
    }
}

/// Returns the length of a list, at most `most`.
fn chain(memory: Memory<'_>, head: u64, next: Option<IntField>, most: u64) -> u64 {
    let (mut at, mut count) = (head, 0);
    while at != 0 && count < most {
        count += 1;
        at = places::read_one(memory, at, next).unwrap_or(0);
    }
    count
}
