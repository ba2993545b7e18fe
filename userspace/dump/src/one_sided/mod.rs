//! One-sided operations that the CPU makes: those that GPUs give to the proxy of GIN, and `ncclPutSignal` and
//! `ncclWaitSignal` through the proxy of RMA.
//!
//! Neither has a proxy op in flight. Both keep a queue for each target, with counts of what was put into it,
//! taken out of it and is done. What a GPU sends by itself (GDAKI) passes no memory of the host.

mod gin;
mod rma;
mod text;

use serde::{Deserialize, Serialize};

pub(super) use self::text::lines;
use super::{RankReport, budget::Budget};
use flow::known;
use inspect::memory::{Memory, ReadError};
use nccl_library::{elf::RuntimeAddr, layouts::Layouts};

/// Maximum number of queues, and of waits, of a rank that are told: those with something to do come first.
const MAX_ROWS: usize = 256;
/// Maximum number of both that are looked at, those with something to do or not.
const MAX_HELD: usize = 1 << 14;
/// Maximum number of descriptors of a queue that NCCL makes, far more than its network takes at a time.
const MAX_QUEUE: u64 = 1 << 16;
/// Maximum number of contexts of a communicator.
const MAX_CONTEXTS: u64 = 1024;

/// One-sided operations of a rank that its CPU makes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OneSided {
    /// Operations that the proxies were asked for, over all targets, modulo 2^64.
    pub called: u64,
    /// Those of them that are done.
    pub done: u64,
    /// Queues in which there was ever something, those that are not done first, at most 256.
    pub queues: Vec<OneSidedQueue>,
    /// Waits for signals that have not come, or of which it is not known whether they have.
    pub waits: Vec<SignalWait>,
    /// Not all was read: there is more than is looked at, or it changed each time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

/// A queue of one-sided operations to one target. Its counts are of 32 bits, as NCCL's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OneSidedQueue {
    /// Proxy; null where a newer ncclflow says something else.
    #[serde(default, deserialize_with = "known")]
    pub proxy: Option<OneSidedProxy>,
    /// Number of the connection: of GIN those of all its device communicators, one after the other.
    pub connection: u32,
    pub context: u32,
    /// Number of the queue in its context: of the target or, of puts that were called together, the rank
    /// itself.
    pub slot: u32,
    /// Rank in the communicator; null where that is not known: of GIN over rails, whose numbers are others.
    pub target: Option<u32>,
    /// Operations that were put into the queue.
    pub called: u32,
    /// Those that the proxy has given to the network.
    pub taken: u32,
    /// Those that are done, with all before them.
    pub done: u32,
    /// Descriptors that the queue holds.
    pub size: u64,
    /// The first operation that was given to the network and is not done.
    pub oldest: Option<OneSidedOp>,
    /// The first operation that was not given to the network.
    pub next: Option<OneSidedOp>,
    /// Seconds for which something was in flight and nothing got done, over the readings.
    #[serde(default)]
    pub still_seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OneSidedProxy {
    /// Descriptors that GPUs write.
    Gin,
    /// Calls of the program.
    Rma,
    /// Calls that a CUDA graph replays: only those in flight are counted.
    RmaGraph,
}

/// A one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OneSidedOp {
    #[serde(default, deserialize_with = "known")]
    pub kind: Option<OneSidedKind>,
    /// Bytes; null where NCCL does not keep them: of what GPUs have put and the proxy has taken.
    pub bytes: Option<u64>,
    /// A put that adds to a signal of the target when it has come.
    pub with_signal: bool,
    /// The stream has come to the call; null of GPUs' own operations, or where that cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_ready: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OneSidedKind {
    Put,
    /// A signal without data.
    Signal,
    Get,
    /// Makes data visible that came before.
    Flush,
    /// Several puts that were called together: the first that is not done.
    PutGroup,
}

/// Signals of one peer that a rank waits for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalWait {
    pub context: u32,
    pub peer: u32,
    /// Number of the signal among those that the peer has for this rank: 0 before 2.31.
    #[serde(default)]
    pub signal: u32,
    /// Signals from this peer, since the communicator was made, after which the wait is over.
    pub expected: u64,
    /// Signals that came; null where they are in the GPU's memory, which cannot be read.
    pub arrived: Option<u64>,
    /// The wait is that of a CUDA graph, and has begun. Other waits may still have something before them in
    /// their stream.
    pub has_begun: bool,
}

impl OneSided {
    /// Tells whether anything moved since an earlier reading. Where not all was read, only what both readings have
    /// counts: what one of them lacks may have been there.
    pub(super) fn moved_since(&self, earlier: &Self) -> bool {
        if !self.is_cut && !earlier.is_cut {
            return self != earlier;
        }
        let counts = |queue: &OneSidedQueue| (queue.called, queue.taken, queue.done, queue.oldest);
        let of_wait = |wait: &SignalWait| (wait.context, wait.peer, wait.signal);
        let queue_moved = self.queues.iter().any(|queue| {
            let before = earlier.queues.iter().find(|before| queue.is_same(before));
            before.is_some_and(|before| counts(before) != counts(queue))
        });
        let wait_moved = self.waits.iter().any(|wait| {
            let before = earlier.waits.iter().find(|before| of_wait(before) == of_wait(wait));
            before.is_some_and(|before| before != wait)
        });
        queue_moved || wait_moved
    }
}

impl OneSidedQueue {
    /// Returns the number of operations that were given to the network and are not done.
    pub fn in_flight(&self) -> u32 {
        self.taken.wrapping_sub(self.done)
    }

    /// Returns the number of operations that were not given to the network.
    pub fn queued(&self) -> u32 {
        self.called.wrapping_sub(self.taken)
    }

    fn is_done(&self) -> bool {
        self.called == self.done
    }

    /// Tells whether this is the same queue at another time.
    fn is_same(&self, other: &Self) -> bool {
        let key = |queue: &Self| (queue.proxy, queue.connection, queue.context, queue.slot);
        key(self) == key(other)
    }

    /// Tells whether the queue had something in flight here as in an earlier reading, and nothing got done
    /// since. What is behind that can only wait for it.
    pub(super) fn stands_as(&self, earlier: &[Self]) -> bool {
        let before = earlier.iter().find(|before| self.is_same(before));
        before.is_some_and(|before| {
            let moved = (before.done, before.oldest) != (self.done, self.oldest);
            self.in_flight() > 0 && before.in_flight() > 0 && !moved
        })
    }
}

#[derive(Debug)]
pub(super) struct OneSidedLayout {
    gin: Option<gin::GinLayout>,
    rma: Option<rma::RmaLayout>,
}

impl OneSidedLayout {
    /// `None` for the parts that this version does not have, or of which the layout is not known.
    pub(super) fn new(layouts: &Layouts) -> Self {
        Self { gin: gin::GinLayout::new(layouts), rma: rma::RmaLayout::new(layouts) }
    }

    /// Reads what the proxies of a communicator have to do; `None` where it has none.
    ///
    /// # Errors
    /// The process is gone or may not be read.
    pub(super) fn read(
        &self,
        memory: Memory<'_>,
        comm: &RankReport,
        shared_res: u64,
        budget: &mut Budget,
    ) -> Result<Option<OneSided>, ReadError> {
        let mut found = Found::default();
        let gin = self.gin.as_ref().map(|gin| gin.read(memory, comm, shared_res, budget, &mut found));
        found.unless_read(gin)?;
        let rma = self.rma.as_ref().map(|rma| rma.read(memory, comm, budget, &mut found));
        found.unless_read(rma)?;
        Ok((found.contexts > 0).then(|| found.report()))
    }
}

/// What is found of one communicator.
#[derive(Debug, Default)]
struct Found {
    contexts: u64,
    is_cut: bool,
    called: u64,
    done: u64,
    queues: Vec<OneSidedQueue>,
    waits: Vec<SignalWait>,
    /// Descriptors that were looked at one by one.
    counted: u32,
}

impl Found {
    /// Begins another context of a proxy with so many targets, if there may be more of them.
    fn may_read(&mut self, targets: u32, budget: &mut Budget) -> bool {
        self.contexts += 1;
        let may = self.contexts <= MAX_CONTEXTS && budget.has_time() && budget.take_peers(targets);
        self.is_cut |= !may;
        may
    }

    fn add(&mut self, queue: OneSidedQueue) {
        self.called = self.called.wrapping_add(queue.called.into());
        self.done = self.done.wrapping_add(queue.done.into());
        if queue.called != 0 {
            self.is_cut |= self.queues.len() >= MAX_HELD;
            self.queues.extend((self.queues.len() < MAX_HELD).then_some(queue));
        }
    }

    /// Adds a wait, if it is not known to be over.
    fn wait(&mut self, wait: SignalWait) {
        if wait.arrived.is_none_or(|arrived| arrived < wait.expected) {
            self.is_cut |= self.waits.len() >= MAX_HELD;
            self.waits.extend((self.waits.len() < MAX_HELD).then_some(wait));
        }
    }

    /// Notes that something was not read, if the process is still there.
    fn unless_read(&mut self, read: Option<Result<(), ReadError>>) -> Result<(), ReadError> {
        match read {
            Some(Err(error)) if error.is_final() => return Err(error),
            Some(Err(_)) => self.is_cut = true,
            Some(Ok(())) | None => {}
        }
        Ok(())
    }

    fn report(self) -> OneSided {
        let Self { called, done, mut queues, mut waits, mut is_cut, .. } = self;
        queues.sort_by_key(|queue| (queue.is_done(), queue.in_flight() == 0));
        waits.sort_by_key(|wait| !wait.has_begun);
        is_cut |= queues.len() > MAX_ROWS || waits.len() > MAX_ROWS;
        queues.truncate(MAX_ROWS);
        waits.truncate(MAX_ROWS);
        OneSided { called, done, queues, waits, is_cut }
    }
}

/// Reads `count` counters of 32 bits.
fn counters(memory: Memory<'_>, at: u64, count: u32) -> Result<Vec<u32>, ReadError> {
    let bytes = memory.bytes(RuntimeAddr(at), 4 * u64::from(count))?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|count| u32::from_le_bytes(*count)).collect())
}

/// Tells whether a queue can be so large: it is a power of two.
fn is_queue_size(size: u64) -> bool {
    size.is_power_of_two() && size <= MAX_QUEUE
}

#[cfg(test)]
mod tests;
