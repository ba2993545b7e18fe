//! The memory of a process, as the crate that knows CPython reads it.

use cpython::Unreadable;
use nccl_library::elf::RuntimeAddr;

use crate::{memory::Memory, target::Process};

/// `process_vm_readv`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessMemory<'p>(pub(super) &'p Process);

impl cpython::Memory for ProcessMemory<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        Memory::new(self.0).read(RuntimeAddr(address), into).map_err(|_| Unreadable(address))
    }
}

/// A word; `None` where there is none.
pub(super) fn word(memory: &dyn cpython::Memory, address: Option<u64>) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read(address?, &mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}
