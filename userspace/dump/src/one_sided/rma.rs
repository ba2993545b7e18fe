//! The proxy of one-sided calls: `ncclPutSignal`, `ncclSignal` and `ncclWaitSignal` to ranks whose memory the
//! GPU does not reach (src/rma/rma_proxy_launch.cc, src/rma/rma_proxy_progress.cc).
//!
//! A put goes into the queue of its target. The proxy takes it when its stream has come to it, and keeps it
//! in a list until the network is done. A wait is the stream's own: of it there is only the count of signals
//! that it is for. Both are otherwise in CUDA graphs: descriptors that are there as long as the graph.

use std::iter;

use super::{
    Found, MAX_CONTEXTS, OneSidedKind, OneSidedOp, OneSidedProxy, OneSidedQueue, SignalWait, counters,
    is_queue_size,
};
use crate::{
    RankReport,
    budget::Budget,
    places::{self, Places, Wanted},
};
use inspect::memory::{Memory, ReadError};
use nccl_library::{
    elf::RuntimeAddr,
    fields::{FieldRef, IntField, comm, rma_context, rma_descriptor as descriptor},
    layouts::Layouts,
};

/// Maximum number of descriptors of a communicator that are looked at one by one.
const MAX_DESCRIPTORS: u32 = 1 << 14;
/// Maximum number of signals that a rank has for each other one.
const MAX_SIGNALS: u64 = 256;
/// Maximum number of puts that are called together, and of peers of a wait, that are looked at.
const MAX_TOGETHER: u64 = 1 << 12;

/// Kinds of descriptors (`ncclRmaDescType_t`), and their state in a graph (`ncclRmaDescState_t`).
const PUT: u64 = 0;
const WAIT: u64 = 1;
const GROUP: u64 = 2;
const IN_PROGRESS: u64 = 2;

const COMM: [Wanted; 3] =
    [(comm::RMA_CONTEXTS, true), (comm::RMA_CONTEXT_COUNT, true), (comm::RMA_SIGNALS, false)];
const CONTEXT: [Wanted; 12] = [
    (rma_context::COMM, true),
    (rma_context::QUEUE_SIZE, true),
    (rma_context::QUEUES, true),
    (rma_context::QUEUED, true),
    (rma_context::TAKEN, true),
    (rma_context::IN_PROGRESS, true),
    (rma_context::READY, true),
    (rma_context::EXPECTED, true),
    (rma_context::ARRIVED, true),
    (rma_context::OF_GRAPHS, true),
    (rma_context::GRAPHS_WAITED, true),
    (rma_context::GRAPHS_ARRIVED, true),
];
const DESCRIPTOR: [Wanted; 14] = [
    (descriptor::NEXT, true),
    (descriptor::TYPE, true),
    (descriptor::STATE, true),
    (descriptor::NUMBER, true),
    (descriptor::BYTES, true),
    (descriptor::TARGET, true),
    (descriptor::SIGNAL, true),
    (descriptor::WAIT_COUNT, true),
    (descriptor::WAIT_PEERS, true),
    (descriptor::WAIT_SIGNALS, true),
    (descriptor::GROUP, false),
    (descriptor::GROUP_COUNT, false),
    (descriptor::GROUP_ISSUED, false),
    (descriptor::WAIT_NUMBERS, false),
];

#[derive(Debug)]
pub(super) struct RmaLayout {
    comm: Places<3>,
    context: Places<12>,
    descriptor: Places<14>,
    /// Bytes of a put, and places in it: bytes, target, signal, request.
    put_size: u64,
    put: Places<4>,
    /// Bytes of a list's head, which begins with a pointer to the first.
    list_size: u64,
}

/// One context, with what is read of it once.
#[derive(Debug)]
struct Context {
    number: u32,
    signals: u64,
    size: u64,
    queues: u64,
    ready: u64,
    n_ranks: u32,
    rank: u32,
}

impl Context {
    /// Returns the wait for a count of signals, by the place of the count among those of all peers.
    fn wait(&self, place: u64, expected: u64, arrived: Option<u64>, has_begun: bool) -> SignalWait {
        let n_ranks = u64::from(self.n_ranks).max(1);
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let (peer, signal) = (small(place % n_ranks), small(place / n_ranks));
        SignalWait { context: self.number, peer, signal, expected, arrived, has_begun }
    }
}

/// Values of [`DESCRIPTOR`], and their places.
type Values = [u64; 14];
const NEXT: usize = 0;
const TYPE: usize = 1;
const STATE: usize = 2;
const NUMBER: usize = 3;
const BYTES: usize = 4;
const TARGET: usize = 5;
const SIGNAL: usize = 6;
const WAIT_COUNT: usize = 7;
const WAIT_PEERS: usize = 8;
const WAIT_SIGNALS: usize = 9;
const GROUP_OPS: usize = 10;
const GROUP_COUNT: usize = 11;
const GROUP_ISSUED: usize = 12;
const WAIT_NUMBERS: usize = 13;

impl RmaLayout {
    pub(super) fn new(layouts: &Layouts) -> Option<Self> {
        let put = descriptor::PUT.find(layouts)?;
        // Puts that are called together are an array of the same struct.
        let within = |field: FieldRef| {
            let field = field.find(layouts)?;
            IntField::new(field.offset.checked_sub(put.offset)?, field.size)
        };
        let list = comm::PLAN_QUEUE.find(layouts)?.size;
        Some(Self {
            comm: places::find(COMM, layouts).ok()?,
            context: places::find(CONTEXT, layouts).ok()?,
            descriptor: places::find(DESCRIPTOR, layouts).ok()?,
            put_size: put.size,
            put: [
                Some(within(descriptor::BYTES)?),
                Some(within(descriptor::TARGET)?),
                Some(within(descriptor::SIGNAL)?),
                Some(within(descriptor::REQUEST)?),
            ],
            list_size: (8..=64).contains(&list).then_some(list)?,
        })
    }

    pub(super) fn read(
        &self,
        memory: Memory<'_>,
        comm: &RankReport,
        budget: &mut Budget,
        found: &mut Found,
    ) -> Result<(), ReadError> {
        let [contexts, count, signals] = places::read(memory, comm.address, self.comm)?;
        let (contexts, count) = (contexts.unwrap_or(0), count.unwrap_or(0));
        let signals = signals.unwrap_or(1);
        if contexts == 0 || count == 0 {
            return Ok(());
        }
        found.is_cut |= count > MAX_CONTEXTS || signals > MAX_SIGNALS;
        let contexts = memory.words(RuntimeAddr(contexts), count.min(MAX_CONTEXTS))?;
        for (number, at) in (0..).zip(contexts).filter(|(_, at)| *at != 0) {
            if !found.may_read(comm.n_ranks, budget) {
                break;
            }
            self.context(memory, comm, [number, signals.min(MAX_SIGNALS)], at, found)?;
        }
        Ok(())
    }

    fn context(
        &self,
        memory: Memory<'_>,
        comm: &RankReport,
        [number, signals]: [u64; 2],
        at: u64,
        found: &mut Found,
    ) -> Result<(), ReadError> {
        #[rustfmt::skip]
        let [
            owner, size, queues, queued, taken, in_progress, ready, expected, arrived, of_graphs, waited,
            graphs_arrived,
        ] = places::read(memory, at, self.context)?.map(Option::unwrap_or_default);
        if owner != comm.address || !is_queue_size(size) {
            found.is_cut = true;
            return Ok(());
        }
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let context =
            Context { number, signals, size, queues, ready, n_ranks: comm.n_ranks, rank: comm.rank };
        // In this order, so that nothing seems to be in flight that was not taken.
        let in_progress = self.heads(memory, in_progress, comm.n_ranks)?;
        let taken = counters(memory, taken, comm.n_ranks)?;
        let queued = counters(memory, queued, comm.n_ranks)?;
        for (((target, queued), taken), first) in (0..).zip(queued).zip(taken).zip(in_progress) {
            if queued != 0 || first != 0 {
                self.queue(memory, &context, target, [queued, taken], first, found);
            }
        }
        let n_ranks = u64::from(comm.n_ranks);
        let count = n_ranks * signals;
        let expected = memory.words(RuntimeAddr(expected), count)?;
        let arrived = memory.words(RuntimeAddr(arrived), count).ok();
        let came = |place: usize| arrived.as_ref().and_then(|arrived| arrived.get(place)).copied();
        for (place, expected) in expected.into_iter().enumerate().filter(|(_, expected)| *expected > 0) {
            found.wait(context.wait(place as u64, expected, came(place), false));
        }
        // Without graphs there may be nothing.
        if of_graphs == 0 {
            return Ok(());
        }
        for (target, first) in (0..).zip(self.heads(memory, of_graphs, comm.n_ranks)?) {
            if first != 0 {
                self.of_graphs(memory, &context, target, first, [waited, graphs_arrived], found);
            }
        }
        Ok(())
    }

    /// Returns the first descriptor of the list of each peer.
    fn heads(&self, memory: Memory<'_>, at: u64, n_ranks: u32) -> Result<Vec<u64>, ReadError> {
        let bytes = memory.bytes(RuntimeAddr(at), self.list_size.saturating_mul(n_ranks.into()))?;
        let size = usize::try_from(self.list_size).unwrap_or(8);
        let first = IntField::new(0, 8);
        Ok(bytes
            .chunks_exact(size)
            .map(|list| first.and_then(|first| first.unsigned(list)).unwrap_or(0))
            .collect())
    }

    /// Reads the queue of a target, and the list of what was taken out of it and is not done.
    fn queue(
        &self,
        memory: Memory<'_>,
        context: &Context,
        slot: u32,
        [queued, taken]: [u32; 2],
        first: u64,
        found: &mut Found,
    ) {
        let (mut in_flight, mut oldest) = (0, None);
        let is_whole = self.walk(memory, first, &mut found.counted, |values| {
            in_flight += 1;
            if in_flight == 1 {
                oldest = self.op(memory, context, slot, values);
            }
            matches!(values[TYPE], PUT | GROUP)
        });
        let waiting = u64::from(queued.wrapping_sub(taken));
        // Else it went on meanwhile, or it is no queue.
        if !is_whole || waiting > context.size || in_flight > taken || (in_flight > 0) != oldest.is_some() {
            found.is_cut = true;
            return;
        }
        let place = u64::from(slot) * context.size + (u64::from(taken) & (context.size - 1));
        let next = memory.word(RuntimeAddr(context.queues.saturating_add(8 * place)));
        let next = next.ok().filter(|_| waiting > 0);
        let next = next.and_then(|at| self.values(memory, at)).and_then(|values| {
            let ready = places::read_one(memory, context.ready, IntField::new(8 * u64::from(slot), 8));
            let (op, target) = self.op(memory, context, slot, &values)?;
            Some((OneSidedOp { is_ready: ready.map(|ready| ready >= values[NUMBER]), ..op }, target))
        });
        found.add(OneSidedQueue {
            proxy: Some(OneSidedProxy::Rma),
            connection: 0,
            context: context.number,
            slot,
            target: oldest.or(next).map_or(Some(slot), |(_, target)| Some(target)),
            called: queued,
            taken,
            done: taken - in_flight,
            size: context.size,
            oldest: oldest.map(|(op, _)| op),
            next: next.map(|(op, _)| op),
            still_seconds: 0.0,
        });
    }

    /// Reads the descriptors of graphs in the list of a peer: those in progress.
    fn of_graphs(
        &self,
        memory: Memory<'_>,
        context: &Context,
        slot: u32,
        first: u64,
        [waited, arrived]: [u64; 2],
        found: &mut Found,
    ) {
        let (mut in_flight, mut oldest, mut waits) = (0, None, Vec::new());
        let is_whole = self.walk(memory, first, &mut found.counted, |values| {
            match (values[STATE], values[TYPE]) {
                (IN_PROGRESS, PUT | GROUP) => {
                    in_flight += 1;
                    oldest = oldest.or_else(|| self.op(memory, context, slot, values));
                }
                (IN_PROGRESS, WAIT) => waits.push(*values),
                _ => {}
            }
            values[TYPE] <= GROUP
        });
        found.is_cut |= !is_whole;
        if let Some((op, target)) = oldest {
            found.add(OneSidedQueue {
                proxy: Some(OneSidedProxy::RmaGraph),
                context: context.number,
                slot,
                target: Some(target),
                called: in_flight,
                taken: in_flight,
                oldest: Some(op),
                ..OneSidedQueue::default()
            });
        }
        for values in waits {
            let count = values[WAIT_COUNT].min(MAX_TOGETHER);
            found.counted = found.counted.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
            if found.counted > MAX_DESCRIPTORS {
                found.is_cut = true;
                return;
            }
            let numbers = |at: u64| counters(memory, at, u32::try_from(count).unwrap_or(0));
            let (Ok(peers), Ok(counts)) = (numbers(values[WAIT_PEERS]), numbers(values[WAIT_SIGNALS])) else {
                found.is_cut = true;
                continue;
            };
            // Before 2.31 there is one signal.
            let signals = numbers(values[WAIT_NUMBERS]).unwrap_or_default();
            let signals = signals.into_iter().chain(iter::repeat(0));
            for ((peer, count), signal) in peers.into_iter().zip(counts).zip(signals) {
                if peer >= context.n_ranks || u64::from(signal) >= context.signals {
                    found.is_cut = true;
                    continue;
                }
                let place = u64::from(signal) * u64::from(context.n_ranks) + u64::from(peer);
                let count_of = |at: u64| places::read_one(memory, at, IntField::new(8 * place, 8));
                let Some(before) = count_of(waited) else { continue };
                let expected = before.saturating_add(count.into());
                found.wait(context.wait(place, expected, count_of(arrived), true));
            }
        }
    }

    /// Walks along a list as long as `take` wants more; `false` if it does not come to an end.
    fn walk(
        &self,
        memory: Memory<'_>,
        first: u64,
        looked_at: &mut u32,
        mut take: impl FnMut(&Values) -> bool,
    ) -> bool {
        let mut at = first;
        while at != 0 {
            *looked_at = looked_at.saturating_add(1);
            if *looked_at > MAX_DESCRIPTORS {
                return false;
            }
            let Some(values) = self.values(memory, at).filter(|values| take(values)) else { return false };
            at = values[NEXT];
        }
        true
    }

    fn values(&self, memory: Memory<'_>, at: u64) -> Option<Values> {
        Some(places::read(memory, at, self.descriptor).ok()?.map(Option::unwrap_or_default))
    }

    /// Returns a put, and its target: of several that were called together the first that is not done. `None`
    /// if it cannot be one of this peer's list.
    fn op(
        &self,
        memory: Memory<'_>,
        context: &Context,
        slot: u32,
        values: &Values,
    ) -> Option<(OneSidedOp, u32)> {
        let rank = |rank: u64| u32::try_from(rank).ok().filter(|rank| *rank < context.n_ranks);
        if values[TYPE] == PUT {
            let kind = match (values[BYTES], values[SIGNAL]) {
                (0, 1..) => OneSidedKind::Signal,
                _ => OneSidedKind::Put,
            };
            let target = rank(values[TARGET]).filter(|target| *target == slot)?;
            return Some((put(kind, values[BYTES], values[SIGNAL]), target));
        }
        let (count, issued) = (values[GROUP_COUNT], values[GROUP_ISSUED]);
        // They are in the list of the rank itself.
        if values[TYPE] != GROUP || slot != context.rank || issued > count || count > MAX_TOGETHER {
            return None;
        }
        let at = |number: u64| (values[GROUP_OPS].saturating_add(number * self.put_size), self.put);
        let puts: Vec<_> = (0..count).map(at).collect();
        let puts = places::read_each(memory, &puts).ok()?;
        let is_open = |(number, put): &(u64, Option<[Option<u64>; 4]>)| {
            *number >= issued || matches!(put, Some([.., Some(1..)]))
        };
        let (_, first) = (0..).zip(puts).find(is_open)?;
        let [bytes, target, signal, _] = first?;
        Some((put(OneSidedKind::PutGroup, bytes?, signal?), rank(target?)?))
    }
}

fn put(kind: OneSidedKind, bytes: u64, signal: u64) -> OneSidedOp {
    let with_signal = signal != 0 && kind != OneSidedKind::Signal;
    OneSidedOp { kind: Some(kind), bytes: Some(bytes), with_signal, is_ready: None }
}
