//! Sizes of messages, where they follow from NCCL's planning.
//!
//! `ncclProxyOp.nbytes` is the capacity of a message's slots, not the bytes that are sent. From 2.24 the op
//! has `channelSize`, the payload of its channel; from 2.20 to 2.23 the device work that the op was made for
//! tells it. The sizes follow from the loops of NCCL's device code (2.27: src/device/all_reduce.h runRing,
//! all_gather.h, reduce_scatter.h, prims_simple.h genericOp). Where they do not, the capacity is given.

use super::flow::FlowRecord;
use crate::schema::BytesKind;
use nccl_library::nccl::{Pattern, Protocol, datatype_bytes, p2p_part_bytes};

/// Place of a message in its op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Repetition of the whole pattern.
    pub(super) loop_index: u64,
    /// Chunk that the message is of, among those of the ranks; rings only.
    pub(super) chunk: u64,
    /// Part of the chunk.
    pub(super) slice: u64,
}

/// Rule for the sizes of an op's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sizes {
    /// Ring all-reduce: the loop's payload is dealt out to the ranks' chunks.
    RingAllReduce { ring: Slicing, n_ranks: u64 },
    /// Ring all-gather and reduce-scatter: each rank's chunk is the loop's payload.
    RingPerRank(Slicing),
    /// Trees, chains, p2p: one chunk of the payload after the other, each chunk one message.
    Chunks { protocol: Protocol, payload: u64, chunk: u64 },
    /// Size `full` for every message but the last, whose size is not known.
    AllButLast { full: u64, messages: u64, capacity: u64 },
    /// Single message of this size.
    Single(u64),
    /// Unknown sizes: messages have at most this capacity.
    Capacity(u64),
}

/// Division of a ring's chunks into messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slicing {
    protocol: Protocol,
    /// Payload of the channel, bytes.
    channel_size: u64,
    /// Payload of a full chunk, bytes.
    chunk_size: u64,
    slices_per_chunk: u64,
    /// Bytes of an element.
    element: u64,
    /// Bytes that the slots of one message hold.
    slot: u64,
    /// Payload of a rank's chunk in a loop that is not full, bytes, where NCCL says it (2.20 and 2.21).
    last_chunk: Option<u64>,
}

impl Sizes {
    /// Chooses the rule for an op; `n_steps` are the FIFO steps that NCCL planned with the peer: a rule that
    /// would not make as many is not used.
    pub(super) fn of(record: &FlowRecord, n_steps: u64) -> Self {
        let capacity = Self::Capacity(u64::try_from(record.op.nbytes).unwrap_or(0));
        let op = &record.op;
        if op.registered {
            return capacity;
        }
        if op.pattern.is_p2p() {
            return Self::of_p2p(record).unwrap_or(capacity);
        }
        Self::of_collective(record)
            .filter(|sizes| sizes.n_steps(record).is_some_and(|steps| steps == n_steps))
            .unwrap_or(capacity)
    }

    fn of_collective(record: &FlowRecord) -> Option<Self> {
        let op = &record.op;
        let channel_size = op.channel_size?;
        if op.chunk_size == 0 || op.slice_steps == 0 || !op.chunk_steps.is_multiple_of(op.slice_steps) {
            return None;
        }
        let slicing = Slicing {
            protocol: op.protocol,
            channel_size,
            chunk_size: op.chunk_size,
            slices_per_chunk: op.chunk_steps / op.slice_steps,
            element: datatype_bytes(op.dtype.as_deref()?)?,
            slot: u64::try_from(op.nbytes).ok()?,
            last_chunk: op.last_chunk,
        };
        match op.pattern {
            Pattern::RingTwice => {
                let n_ranks = u64::try_from(record.comm.n_ranks).ok()?;
                Some(Self::RingAllReduce { ring: slicing, n_ranks })
            }
            // Grouped all-gathers (2.29 and later) share the pattern; their channelSize is 0.
            Pattern::Ring if channel_size != 0 => Some(Self::RingPerRank(slicing)),
            Pattern::TreeUp
            | Pattern::TreeDown
            | Pattern::TreeUpDown
            | Pattern::PipelineFrom
            | Pattern::PipelineTo => {
                Some(Self::Chunks { protocol: op.protocol, payload: channel_size, chunk: op.chunk_size })
            }
            _ => None,
        }
    }

    fn of_p2p(record: &FlowRecord) -> Option<Self> {
        let op = &record.op;
        let capacity = u64::try_from(op.nbytes).ok()?;
        if op.nsteps == 1 {
            // From 2.20 on nbytes is the part's own size where the part fits one message. Before, nbytes is
            // the capacity.
            return op.p2p_nbytes_is_size.then_some(Self::Single(capacity));
        }
        // LL's chunkSize counts flags too: half of it is payload.
        let chunk = if op.protocol == Protocol::Ll { op.chunk_size / 2 } else { op.chunk_size };
        let full = op.protocol.wire_bytes(chunk);
        let by_task = || {
            let task = record.task.as_ref()?;
            p2p_part_bytes(task.p2p_bytes?, task.p2p_channels?, record.p2p_part?)
        };
        let from_part = || {
            let payload = op.part_bytes.or_else(by_task)?;
            let steps = payload.div_ceil(chunk.max(1)).max(1);
            (steps == op.nsteps).then_some(Self::Chunks { protocol: op.protocol, payload, chunk })
        };
        let partly =
            || op.p2p_nbytes_is_size.then_some(Self::AllButLast { full, messages: op.nsteps, capacity });
        from_part().or_else(partly)
    }

    /// Returns the FIFO steps that the rule makes.
    fn n_steps(&self, record: &FlowRecord) -> Option<u64> {
        let n_ranks = u64::try_from(record.comm.n_ranks).ok()?;
        let (per_loop, loops) = match self {
            Self::RingAllReduce { ring, n_ranks } => (
                n_ranks.checked_sub(1)?.checked_mul(2)?,
                ring.channel_size.div_ceil(ring.chunk_size.checked_mul(*n_ranks)?),
            ),
            Self::RingPerRank(ring) => (n_ranks.checked_sub(1)?, ring.channel_size.div_ceil(ring.chunk_size)),
            Self::Chunks { payload, chunk, .. } => (1, payload.div_ceil(*chunk)),
            Self::AllButLast { .. } | Self::Single(_) | Self::Capacity(_) => return None,
        };
        per_loop.checked_mul(loops)?.checked_mul(record.op.chunk_steps)
    }

    /// Returns the bytes of the message at this position, the `index`-th with its peer.
    pub(super) fn bytes(&self, position: Position, index: u64) -> (u64, BytesKind) {
        let exact = |bytes| (bytes, BytesKind::Exact);
        match self {
            Self::RingAllReduce { ring, n_ranks } => {
                exact(ring.message(ring.all_reduce_chunk(position, *n_ranks), position.slice))
            }
            Self::RingPerRank(ring) => {
                let rest =
                    ring.channel_size.saturating_sub(position.loop_index.saturating_mul(ring.chunk_size));
                exact(ring.message(rest.min(ring.chunk_size), position.slice))
            }
            Self::Chunks { protocol, payload, chunk } => {
                let rest = payload.saturating_sub(position.loop_index.saturating_mul(*chunk));
                exact(protocol.wire_bytes(rest.min(*chunk)))
            }
            Self::AllButLast { full, messages, .. } if index + 1 < *messages => exact(*full),
            Self::Single(bytes) => exact(*bytes),
            Self::AllButLast { capacity, .. } | Self::Capacity(capacity) => (*capacity, BytesKind::Capacity),
        }
    }
}

impl Slicing {
    /// Returns the payload of one rank's chunk in one loop.
    fn all_reduce_chunk(&self, position: Position, n_ranks: u64) -> u64 {
        let full_loop = self.chunk_size.saturating_mul(n_ranks);
        let rest = self.channel_size.saturating_sub(position.loop_index.saturating_mul(full_loop));
        let chunk = if rest >= full_loop {
            self.chunk_size
        } else if let Some(chunk) = self.last_chunk {
            chunk
        } else {
            // alignUp(divUp(remCount, nranks), 16/sizeof(T)) elements
            let elements = (rest / self.element).div_ceil(n_ranks.max(1));
            let grain = (16 / self.element).max(1);
            elements.next_multiple_of(grain).saturating_mul(self.element)
        };
        rest.saturating_sub(position.chunk.saturating_mul(chunk)).min(chunk)
    }

    /// Returns the bytes in the FIFO of one slice of a chunk of `data` payload bytes.
    fn message(&self, data: u64, slice: u64) -> u64 {
        if self.slices_per_chunk <= 1 {
            return self.protocol.wire_bytes(data);
        }
        // sliceSize = max(divUp(nelem, 16*SlicePerChunk)*16, sliceSize/32) elements: a small chunk is one
        // slice, and NCCL really sends the empty second message.
        let elements = data / self.element;
        let even = elements.div_ceil(16 * self.slices_per_chunk).saturating_mul(16);
        let least = self.slot / self.element / 32;
        let size = even.max(least).saturating_mul(self.element);
        let rest = data.saturating_sub(slice.saturating_mul(size));
        self.protocol.wire_bytes(rest.min(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slicing(channel_size: u64, chunk_size: u64, element: u64) -> Slicing {
        Slicing {
            protocol: Protocol::Simple,
            channel_size,
            chunk_size,
            slices_per_chunk: 2,
            element,
            slot: 1 << 20,
            last_chunk: None,
        }
    }

    /// Checks that over all ranks 2(N-1) times the payload is sent.
    #[test]
    fn ring_all_reduce_messages_add_up_to_what_an_all_reduce_moves() {
        for (channel_size, n_ranks) in
            [(4096u64, 4u64), (1_200_000, 2), (40_000_000, 4), (7_340_032 + 48, 8), (48, 3)]
        {
            let chunk_size = 2 << 20;
            let sizes = Sizes::RingAllReduce { ring: slicing(channel_size, chunk_size, 4), n_ranks };
            let loops = channel_size.div_ceil(chunk_size * n_ranks);
            let mut total = 0;
            for ring_index in 0..n_ranks {
                for loop_index in 0..loops {
                    for step in 0..2 * (n_ranks - 1) {
                        let chunk = (ring_index + n_ranks - 1 - (step % n_ranks)) % n_ranks;
                        for slice in 0..2 {
                            total += sizes.bytes(Position { loop_index, chunk, slice }, 0).0;
                        }
                    }
                }
            }
            assert_eq!(total, 2 * (n_ranks - 1) * channel_size, "{channel_size} bytes on {n_ranks} ranks");
        }
    }

    #[test]
    fn a_small_chunk_is_one_slice_and_an_empty_message() {
        // 1,024 floats per chunk: divUp(1024, 32)*16 = 512 elements, but at least 1 MiB / 4 / 32 = 8,192.
        let sizes = slicing(16384, 2 << 20, 4);
        assert_eq!((sizes.message(4096, 0), sizes.message(4096, 1)), (4096, 0));
        assert_eq!((sizes.message(2 << 20, 0), sizes.message(2 << 20, 1)), (1 << 20, 1 << 20));
    }
}
