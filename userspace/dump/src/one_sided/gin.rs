//! The proxy of GIN: queues of descriptors that GPUs write into memory of the host
//! (src/gin/gin_host_proxy.cc).
//!
//! The GPU counts what it writes in its own memory. What is written and not taken is seen by the mark of each
//! descriptor. The proxy clears a descriptor when it takes it, and keeps of it only what kind of operation it
//! is.

use std::collections::BTreeSet;

use super::{
    Found, MAX_CONTEXTS, OneSidedKind, OneSidedOp, OneSidedProxy, OneSidedQueue, counters, is_queue_size,
};
use crate::{
    RankReport,
    budget::Budget,
    places::{self, Places, Wanted},
};
use inspect::memory::{Memory, ReadError};
use nccl_library::{
    elf::RuntimeAddr,
    fields::{
        ArrayField, GIN_BY_PROXY, IntField, gin_context, gin_descriptor_state, gin_dev_comm, gin_queues,
        shared_resources, unsigned,
    },
    layouts::Layouts,
};

/// Bytes of a descriptor, the same in all versions: code on the GPU was built with them
/// (src/include/nccl_device/gin/proxy/gin_proxy_device_host_common.h).
const DESCRIPTOR: u64 = 128;
/// Bytes of it with all that is read: its first word has its mark, which is 1 when it is written, and behind
/// seven bits the bytes of the operation; its eighth word the kind, behind eight bits.
const READ: usize = 64;
/// Maximum number of descriptors of all queues that are looked at to count those that are written.
const MAX_COUNTED: u32 = 1 << 16;
/// Queues whose first descriptors are read at once.
const AT_ONCE: usize = 1024;

/// Bits of `ncclGinProxyOp_t`, likewise the same in all versions.
const WITH_SIGNAL: u64 = 1 << 3 | 1 << 4;
const SIGNAL_ONLY: u64 = 1 << 5;
const GET: u64 = 1 << 6;
const FLUSH: u64 = 1 << 7;

const CONTEXT: [Wanted; 4] = [
    (gin_context::N_RANKS, true),
    (gin_context::HANDLE, true),
    (gin_context::QUEUES, true),
    (gin_context::N_CONTEXTS, true),
];
const QUEUES: [Wanted; 5] = [
    (gin_queues::SIZE, true),
    (gin_queues::DESCRIPTORS, true),
    (gin_queues::DONE, true),
    (gin_queues::TAKEN, true),
    (gin_queues::STATES, true),
];

#[derive(Debug)]
pub(super) struct GinLayout {
    /// In the shared resources: the first device communicator, the owner, the type before 2.31.
    shared: Places<3>,
    /// The ways from 2.31 on, and the type of the first.
    backends: Option<(ArrayField, IntField)>,
    /// Of a device communicator: the next, and the number of its way.
    dev_comm: Places<2>,
    contexts: ArrayField,
    handles: ArrayField,
    context: Places<4>,
    queues: Places<5>,
    queues_size: u64,
    state_size: u64,
    op: IntField,
}

/// Queues of one context.
#[derive(Clone, Copy, Debug)]
struct Queues {
    connection: u32,
    context: u32,
    n_ranks: u32,
    size: u64,
    descriptors: u64,
    done: u64,
    taken: u64,
    states: u64,
}

impl GinLayout {
    pub(super) fn new(layouts: &Layouts) -> Option<Self> {
        let shared = [
            (shared_resources::GIN_DEV_COMMS, true),
            (shared_resources::OWNER, true),
            (shared_resources::GIN_TYPE, false),
        ];
        let dev_comm = [(gin_dev_comm::NEXT, true), (gin_dev_comm::BACKEND, false)];
        let backends = shared_resources::GIN_BACKENDS.array(layouts).ok();
        Some(Self {
            shared: places::find(shared, layouts).ok()?,
            backends: backends.zip(shared_resources::GIN_BACKEND_TYPE.find_int(layouts)),
            dev_comm: places::find(dev_comm, layouts).ok()?,
            contexts: gin_dev_comm::CONTEXTS.array(layouts).ok().filter(|array| array.elem_size == 8)?,
            handles: gin_dev_comm::HANDLES.array(layouts).ok().filter(|array| array.elem_size == 8)?,
            context: places::find(CONTEXT, layouts).ok()?,
            queues: places::find(QUEUES, layouts).ok()?,
            queues_size: gin_queues::STRUCT.size(layouts).ok()?,
            state_size: gin_descriptor_state::STRUCT.size(layouts).ok()?,
            op: gin_descriptor_state::OP.find_int(layouts)?,
        })
    }

    pub(super) fn read(
        &self,
        memory: Memory<'_>,
        comm: &RankReport,
        shared_res: u64,
        budget: &mut Budget,
        found: &mut Found,
    ) -> Result<(), ReadError> {
        if shared_res == 0 {
            return Ok(());
        }
        let [first, owner, one_type] = places::read(memory, shared_res, self.shared)?;
        // Targets are ranks of the communicator that made the resources.
        if owner != Some(comm.address) {
            return Ok(());
        }
        let (mut at, mut seen) = (first.unwrap_or(0), BTreeSet::new());
        while at != 0 {
            if !seen.insert(at) || seen.len() as u64 > MAX_CONTEXTS || !budget.has_time() {
                found.is_cut = true;
                break;
            }
            let [next, backend] = places::read(memory, at, self.dev_comm)?;
            let is_proxy = match (self.backends, backend) {
                (Some(backends), Some(backend)) => way_of(memory, shared_res, backends, backend),
                _ => one_type,
            };
            if is_proxy == Some(GIN_BY_PROXY) {
                let base = (u32::try_from(seen.len()).unwrap_or(u32::MAX) - 1).saturating_mul(4);
                self.dev_comm(memory, comm, at, base, budget, found)?;
            }
            at = next.unwrap_or(0);
        }
        Ok(())
    }

    /// Reads the connections of a device communicator; the first has the number `base`.
    fn dev_comm(
        &self,
        memory: Memory<'_>,
        comm: &RankReport,
        at: u64,
        base: u32,
        budget: &mut Budget,
        found: &mut Found,
    ) -> Result<(), ReadError> {
        let count = self.contexts.count.min(self.handles.count).min(16);
        let words = |array: ArrayField| memory.words(RuntimeAddr(at.saturating_add(array.offset)), count);
        let connections = words(self.contexts)?.into_iter().zip(words(self.handles)?);
        for (connection, (context, handle)) in (base..).zip(connections) {
            if context == 0 {
                continue;
            }
            let [n_ranks, own_handle, queues, n_contexts] = places::read(memory, context, self.context)?;
            let n_ranks = n_ranks.and_then(|count| u32::try_from(count).ok());
            // Both point to the same handle, which no other way of GIN has there.
            let n_ranks =
                n_ranks.filter(|count| (1..=comm.n_ranks).contains(count) && own_handle == Some(handle));
            let (Some(n_ranks), Some(queues)) = (n_ranks, queues.filter(|_| handle != 0)) else {
                found.is_cut = true;
                continue;
            };
            for context in 0..u32::try_from(n_contexts.unwrap_or(0)).unwrap_or(u32::MAX) {
                if !found.may_read(n_ranks, budget) {
                    return Ok(());
                }
                let at = queues.saturating_add(u64::from(context).saturating_mul(self.queues_size));
                let [size, descriptors, done, taken, states] =
                    places::read(memory, at, self.queues)?.map(Option::unwrap_or_default);
                if !is_queue_size(size) {
                    found.is_cut = true;
                    continue;
                }
                let queues = Queues { connection, context, n_ranks, size, descriptors, done, taken, states };
                self.context(memory, comm, &queues, found)?;
            }
        }
        Ok(())
    }

    fn context(
        &self,
        memory: Memory<'_>,
        comm: &RankReport,
        queues: &Queues,
        found: &mut Found,
    ) -> Result<(), ReadError> {
        // In this order, so that nothing seems to be done that was not taken.
        let done = counters(memory, queues.done, queues.n_ranks)?;
        let taken = counters(memory, queues.taken, queues.n_ranks)?;
        let counts: Vec<(u32, u32, u32)> =
            (0..).zip(done).zip(taken).map(|((target, done), taken)| (target, done, taken)).collect();
        for some in counts.chunks(AT_ONCE) {
            let next = some.iter().map(|(target, _, taken)| (queues.descriptor(*target, *taken), READ));
            let next = memory.copies(&next.collect::<Vec<_>>())?;
            let in_flight = some.iter().filter(|(_, done, taken)| done != taken);
            let oldest: Vec<_> = in_flight
                .map(|(target, done, _)| (self.state(queues, *target, *done), self.op.size()))
                .collect();
            let mut oldest = memory.copies(&oldest)?.into_iter();
            for ((target, done, taken), next) in some.iter().zip(next) {
                let oldest = if done == taken { None } else { oldest.next().flatten() };
                let in_flight = u64::from(taken.wrapping_sub(*done));
                if in_flight > queues.size {
                    // It went on meanwhile, or it is no queue.
                    found.is_cut = true;
                    continue;
                }
                let next = next.as_deref().and_then(written);
                let room = queues.size - in_flight;
                let written =
                    next.map_or(0, |_| queues.count(memory, *target, *taken, room, &mut found.counted));
                found.add(OneSidedQueue {
                    proxy: Some(OneSidedProxy::Gin),
                    connection: queues.connection,
                    context: queues.context,
                    slot: *target,
                    target: (queues.n_ranks == comm.n_ranks).then_some(*target),
                    called: taken.wrapping_add(written),
                    taken: *taken,
                    done: *done,
                    size: queues.size,
                    oldest: oldest.as_deref().and_then(unsigned).map(|bits| op_of(bits, None)),
                    next,
                    still_seconds: 0.0,
                });
            }
        }
        Ok(())
    }

    /// Address of what is kept of the kind of an operation.
    fn state(&self, queues: &Queues, target: u32, number: u32) -> RuntimeAddr {
        let offset = queues.place(target, number).saturating_mul(self.state_size);
        RuntimeAddr(queues.states.saturating_add(offset).saturating_add(self.op.offset()))
    }
}

impl Queues {
    /// Returns the place of an operation among those of all queues, by its number.
    fn place(&self, target: u32, number: u32) -> u64 {
        u64::from(target) * self.size + (u64::from(number) & (self.size - 1))
    }

    fn descriptor(&self, target: u32, number: u32) -> RuntimeAddr {
        RuntimeAddr(self.descriptors.saturating_add(self.place(target, number) * DESCRIPTOR))
    }

    /// Counts the descriptors that are written, of which the first is known to be. There is room for `room`;
    /// `counted` are those that were looked at for all queues.
    fn count(&self, memory: Memory<'_>, target: u32, first: u32, room: u64, counted: &mut u32) -> u32 {
        let most = u32::try_from(room).unwrap_or(u32::MAX).min(MAX_COUNTED.saturating_sub(*counted));
        *counted = counted.saturating_add(most);
        let marks: Vec<_> =
            (1..most).map(|next| (self.descriptor(target, first.wrapping_add(next)), 1)).collect();
        let marks = memory.copies(&marks).unwrap_or_default();
        let is_written = |mark: &Option<Vec<u8>>| matches!(mark.as_deref(), Some([mark]) if mark & 1 == 1);
        1 + u32::try_from(marks.into_iter().take_while(is_written).count()).unwrap_or(0)
    }
}

/// Returns the type of a device communicator's way.
fn way_of(
    memory: Memory<'_>,
    shared_res: u64,
    (backends, kind): (ArrayField, IntField),
    number: u64,
) -> Option<u64> {
    let offset = number.checked_mul(backends.elem_size).filter(|_| number < backends.count)?;
    places::read_one(memory, shared_res.checked_add(offset)?, Some(kind))
}

/// Returns the operation of a descriptor; `None` if it is not written.
fn written(descriptor: &[u8]) -> Option<OneSidedOp> {
    let word = |at: usize| unsigned(descriptor.get(8 * at..8 * at + 8)?);
    let (header, kind) = (word(0)?, word(7)?);
    (header & 1 == 1).then(|| op_of(kind >> 8 & 0xffff, Some(header >> 7)))
}

fn op_of(bits: u64, bytes: Option<u64>) -> OneSidedOp {
    let kind = match bits {
        _ if bits & SIGNAL_ONLY != 0 => OneSidedKind::Signal,
        _ if bits & GET != 0 => OneSidedKind::Get,
        _ if bits & FLUSH != 0 => OneSidedKind::Flush,
        _ => OneSidedKind::Put,
    };
    let has_data = matches!(kind, OneSidedKind::Put | OneSidedKind::Get);
    OneSidedOp {
        kind: Some(kind),
        bytes: bytes.filter(|_| has_data),
        with_signal: kind == OneSidedKind::Put && bits & WITH_SIGNAL != 0,
        is_ready: None,
    }
}
