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

#[derive(Debug)]
pub(crate) struct Connection {
    direction: Direction,
    layout: Layout,
    /// Address of the `ncclConnInfo`.
    info: usize,
    buffer: usize,
    head: usize,
    tail: usize,
    /// Address of the `ncclConnFifo` entries, or 0.
    fifo: usize,
    /// Bytes of a slot.
    step_size: usize,
    /// The next step.
    pub(crate) step: u64,
    pub(crate) transfer: Transfer,
}

impl Connection {
    /// Takes up the connection where the last operation left it; the SIMPLE protocol begins at a multiple of
    /// `alignment` steps.
    pub(crate) fn load(
        layout: &Layout,
        channel: usize,
        peer: usize,
        index: usize,
        direction: Direction,
        proto: Proto,
        alignment: u64,
        step_size: Option<usize>,
    ) -> Self {
        let peers = layout.channel.peers.get_usize(channel);
        let peer_info = memory::read(peers + 8 * peer, 8) as usize;
        let place = match direction {
            Direction::Send => layout.peer.send,
            Direction::Recv => layout.peer.recv,
        };
        let info = peer_info + place.offset + index * layout.conn.size;
        let conn = &layout.conn;
        let step = conn.step.get(info).next_multiple_of(alignment);
        let head = conn.head.get_usize(info);
        if direction == Direction::Recv && proto == Proto::Simple {
            // Gives back the slots that the alignment skips.
            memory::store(head, step);
        }
        Self {
            direction,
            layout: *layout,
            info,
            buffer: memory::read(info + conn.buffs.offset + 8 * proto.index(), 8) as usize,
            head,
            tail: conn.tail.get_usize(info),
            fifo: conn.fifo.get_usize(info),
            step_size: step_size.unwrap_or_else(|| conn.step_size.get_usize(info)),
            step,
            transfer: Transfer::new(peer, index, direction),
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
        self.buffer + (self.step % STEPS) as usize * self.step_size
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
