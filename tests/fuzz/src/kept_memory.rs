//! The memory of a process, of which what was read is kept: seeds are made of it.

use std::{cell::RefCell, collections::BTreeMap, fs::File, io, os::unix::fs::FileExt as _};

use cpython::Unreadable;

/// Keeps what is read, by address.
#[derive(Debug)]
pub struct KeptMemory {
    memory: File,
    pub pieces: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl KeptMemory {
    /// # Errors
    /// If the process is gone, or may not be read.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { memory: File::open(format!("/proc/{pid}/mem"))?, pieces: RefCell::default() })
    }
}

impl cpython::Memory for KeptMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.memory.read_exact_at(into, address).map_err(|_| Unreadable(address))?;
        let mut pieces = self.pieces.borrow_mut();
        let known = pieces.entry(address).or_default();
        if known.len() < into.len() {
            *known = into.to_vec();
        }
        Ok(())
    }
}
