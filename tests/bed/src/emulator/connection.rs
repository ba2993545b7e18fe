//! One direction of a connection to a peer: eight slots in a ring, and a counter for each side.

use super::executor::Control;
use super::functions::Proto;
use super::layout::{Layout, Slots};
use super::memory;
use super::transfer_log::Transfer;

/// `NCCL_STEPS`
pub(crate) const STEPS: u64 = 8;
/// `NCCL_MODE_OFFSET`: the FIFO has the slot's offset.
const MODE_OFFSET: u64 = 1;
/// Bytes of an `int`.
const INT: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Recv,
}

/// Identifies a connection of a channel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) peer: usize,
    /// 0 for collectives, 1 for p2p.
    pub(crate) index: usize,
    pub(crate) direction: Direction,
    pub(crate) proto: Proto,
    /// The SIMPLE protocol begins at a multiple of this number of steps.
    pub(crate) alignment: u64,
}

#[derive(Debug)]
pub(crate) struct Connection<'a> {
    direction: Direction,
    layout: &'a Layout,
    /// Address of the `ncclConnInfo`.
    info: usize,
    buffer: usize,
    head: usize,
    tail: usize,
    /// Addresses of the sizes of slots and of their offsets, or 0. From 2.20 on both are the same address.
    sizes: usize,
    offsets: usize,
    /// Bytes of a slot.
    slot_size: usize,
    /// The next step.
    pub(crate) step: u64,
    pub(crate) transfer: Transfer,
}

impl<'a> Connection<'a> {
    /// Continues where the last operation left the connection. `slot_size` is used where the
    /// connection has no size of its own.
    pub(crate) fn load(layout: &'a Layout, channel: usize, end: End, slot_size: usize) -> Self {
        let peers = layout.channel.peers.get_usize(channel);
        let peer = if layout.peers_in_place {
            peers + layout.peer.size * end.peer
        } else {
            memory::read(peers + 8 * end.peer, 8) as usize
        };
        let place = match end.direction {
            Direction::Send => layout.peer.send,
            Direction::Recv => layout.peer.recv,
        };
        let conn = &layout.conn;
        let info = peer + place.offset + end.index * conn.size;
        let step = conn.step.get(info).next_multiple_of(end.alignment);
        let head = conn.head.get_usize(info);
        if end.direction == Direction::Recv && end.proto == Proto::Simple {
            // Frees the slots that the alignment skips.
            memory::store(head, step);
        }
        let (sizes, offsets) = match &layout.slots {
            Slots::Entries { at, .. } => (at.get_usize(info), at.get_usize(info)),
            Slots::Arrays { sizes, offsets } => (sizes.get_usize(info), offsets.get_usize(info)),
        };
        // Those of the other protocols follow from the buffer's.
        let own_size = layout.step_size.filter(|_| end.proto == Proto::Simple);
        Self {
            direction: end.direction,
            layout,
            info,
            buffer: memory::read(info + conn.buffs.offset + 8 * end.proto.index(), 8) as usize,
            head,
            tail: conn.tail.get_usize(info),
            sizes,
            offsets,
            slot_size: own_size.map_or(slot_size, |size| size.get_usize(info)),
            step,
            transfer: Transfer::new(end.peer, end.index, end.direction),
        }
    }

    /// The entry of the next step in an array.
    fn entry(&self, array: usize, size: usize) -> Option<usize> {
        (array != 0).then(|| array + (self.step % STEPS) as usize * size)
    }

    /// Waits until the peer has filled the next `steps` slots.
    pub(crate) async fn wait_filled(&self, control: &Control, steps: u64) {
        control.until(|| memory::load(self.tail) >= self.step + steps).await;
    }

    /// Waits until the peer has emptied the next `steps` slots.
    pub(crate) async fn wait_free(&self, control: &Control, steps: u64) {
        // Where connections share slots, NCCL starts the counter at -8, so that the sender waits for one.
        control.until(|| memory::load(self.head).wrapping_add(STEPS) >= self.step + steps).await;
    }

    /// Writes for the proxy how many bytes the slot will have.
    pub(crate) fn announce(&self, bytes: usize) {
        match &self.layout.slots {
            Slots::Entries { fifo, .. } => {
                if let Some(entry) = self.entry(self.sizes, fifo.size) {
                    fifo.bytes.set(entry, bytes as u64);
                }
            }
            Slots::Arrays { .. } => {
                if let Some(entry) = self.entry(self.sizes, INT) {
                    memory::write(entry, INT, bytes as u64);
                }
            }
        }
    }

    /// Address of the current slot.
    pub(crate) fn slot(&self) -> usize {
        let offset = match &self.layout.slots {
            Slots::Entries { fifo, .. } => self
                .entry(self.offsets, fifo.size)
                .filter(|entry| fifo.mode.get(*entry) == MODE_OFFSET)
                .map(|entry| fifo.offset.get_usize(entry)),
            Slots::Arrays { .. } => {
                self.entry(self.offsets, INT).map(|entry| memory::read(entry, INT) as usize)
            }
        };
        self.buffer + offset.unwrap_or((self.step % STEPS) as usize * self.slot_size)
    }

    /// Passes the slots on: to the receiver as filled, or back to the sender as free.
    pub(crate) fn post(&mut self, steps: u64) {
        self.step += steps;
        match self.direction {
            Direction::Send => memory::store(self.tail, self.step),
            Direction::Recv => memory::store(self.head, self.step),
        }
    }

    /// Goes on without a counter: in LL the peer sees the flags in the data.
    pub(crate) fn advance(&mut self) {
        self.step += 1;
    }

    /// Leaves the connection for the next operation.
    pub(crate) fn save(&self) {
        self.layout.conn.step.set(self.info, self.step);
    }
}
