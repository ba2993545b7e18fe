//! Flags of receives into registered buffers.

use inspect::memory::Memory;
use nccl_library::{
    elf::RuntimeAddr,
    fields::{IntField, conn_fifo, recv_mem, recv_net_resources, signed},
    layouts::Layouts,
    nccl::FIFO_STEPS,
};

use crate::places;

/// Flags by which a receiver's GPU says that its registered buffer may be written: the sizes in the slots of
/// the connection's FIFO, -1 until then (src/transport/net.cc, recvProxyProgress).
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadyFlags {
    /// In the resources of a receiver: pointer to the memory with the FIFO.
    pub(super) recv_mem: IntField,
    /// Offset of the FIFO there, and the bytes of a slot.
    pub(super) fifo: (u64, u64),
    pub(super) size: IntField,
}

impl ReadyFlags {
    pub(super) fn new(layouts: &Layouts) -> Option<Self> {
        let fifo = recv_mem::CONN_FIFO.find(layouts)?.offset;
        Some(Self {
            recv_mem: recv_net_resources::RECV_MEM.find_int(layouts)?,
            fifo: (fifo, conn_fifo::STRUCT.size(layouts).ok()?),
            size: conn_fifo::SIZE.find_int(layouts)?,
        })
    }

    /// Reads whether the flag of an op that begins at this FIFO step is set; `None` where that cannot be read.
    pub(super) fn is_set(self, memory: Memory<'_>, resources: u64, base: u64) -> Option<bool> {
        let (fifo, slot_size) = self.fifo;
        let recv_mem = places::read_one(memory, resources, Some(self.recv_mem)).filter(|at| *at != 0)?;
        let slot = fifo.checked_add((base % FIFO_STEPS).checked_mul(slot_size)?)?;
        let at = RuntimeAddr(recv_mem.checked_add(slot)?.checked_add(self.size.offset())?);
        let copy = memory.gather(&[(at, self.size.size())]).ok()?;
        Some(signed(&copy)? != -1)
    }
}
