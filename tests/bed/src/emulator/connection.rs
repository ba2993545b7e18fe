//! One direction of a connection to a peer: slots in a ring of eight, a counter that each side moves.

use super::executor::Control;
use super::functions::Proto;
use super::layout::Layout;
use super::memory;
use super::transfer_log::Transfer;

/// `NCCL_STEPS`
pub(crate) const STEPS: u64 = 8;
/// `NCCL_MODE_OFFSET`: the slot lies where the FIFO says.
const MODE_OFFSET: u64 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Recv,
}

/// Which connection of a channel, and what for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) peer: usize,
    /// 0 for collectives, 1 for p2p.
    pub(crate) index: usize,
    pub(crate) direction: Direction,
    pub(crate) proto: Proto,
    /// The SIMPLE protocol begins at a multiple of so many steps.
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
    /// Address of the `ncclConnFifo` entries, or 0.
    fifo: usize,
    /// Bytes of a slot.
    slot_size: usize,
    /// The next step.
    pub(crate) step: u64,
    pub(crate) transfer: Transfer,
}

impl<'a> Connection<'a> {
    /// Takes up the connection where the last operation left it. `slot_size` is for protocols that do not have it in
    /// the connection.
    pub(crate) fn load(layout: &'a Layout, channel: usize, end: End, slot_size: Option<usize>) -> Self {
        let peers = layout.channel.peers.get_usize(channel);
        let peer = memory::read(peers + 8 * end.peer, 8) as usize;
        let place = match end.direction {
            Direction::Send => layout.peer.send,
            Direction::Recv => layout.peer.recv,
        };
        let conn = &layout.conn;
        let info = peer + place.offset + end.index * conn.size;
        let step = conn.step.get(info).next_multiple_of(end.alignment);
        let head = conn.head.get_usize(info);
        if end.direction == Direction::Recv && end.proto == Proto::Simple {
            // Gives back the slots that the alignment skips.
            memory::store(head, step);
        }
        Self {
            direction: end.direction,
            layout,
            info,
            buffer: memory::read(info + conn.buffs.offset + 8 * end.proto.index(), 8) as usize,
            head,
            tail: conn.tail.get_usize(info),
            fifo: conn.fifo.get_usize(info),
            slot_size: slot_size.unwrap_or_else(|| conn.step_size.get_usize(info)),
            step,
            transfer: Transfer::new(end.peer, end.index, end.direction),
        }
    }

    fn fifo_entry(&self) -> Option<usize> {
        let entry = self.fifo + (self.step % STEPS) as usize * self.layout.fifo.size;
        (self.fifo != 0).then_some(entry)
    }

    /// Waits until the peer has filled the next `steps` slots.
    pub(crate) async fn wait_filled(&self, control: &Control, steps: u64) {
        control.until(|| memory::load(self.tail) >= self.step + steps).await;
    }

    /// Waits until the peer has emptied the next `steps` slots.
    pub(crate) async fn wait_free(&self, control: &Control, steps: u64) {
        // Where slots are shared between connections NCCL starts the counter at -8, so that the sender waits for one.
        control.until(|| memory::load(self.head).wrapping_add(STEPS) >= self.step + steps).await;
    }

    /// Tells the proxy how many bytes the slot will have.
    pub(crate) fn announce(&self, bytes: usize) {
        if let Some(entry) = self.fifo_entry() {
            self.layout.fifo.bytes.set(entry, bytes as u64);
        }
    }

    /// Address of the current slot.
    pub(crate) fn slot(&self) -> usize {
        if let Some(entry) = self.fifo_entry()
            && self.layout.fifo.mode.get(entry) == MODE_OFFSET
        {
            return self.buffer + self.layout.fifo.offset.get_usize(entry);
        }
        self.buffer + (self.step % STEPS) as usize * self.slot_size
    }

    /// Passes the slots on: to the receiver as filled, or back to the sender as free.
    pub(crate) fn post(&mut self, steps: u64) {
        self.step += steps;
        match self.direction {
            Direction::Send => memory::store(self.tail, self.step),
            Direction::Recv => memory::store(self.head, self.step),
        }
    }

    /// Goes on without telling: in LL the flags in the data tell.
    pub(crate) fn advance(&mut self) {
        self.step += 1;
    }

    /// Leaves the connection for the next operation.
    pub(crate) fn save(&self) {
        self.layout.conn.step.set(self.info, self.step);
    }
}
