//! References and jumps in machine code.

mod aarch64;
mod x86_64;

use std::collections::BTreeSet;
use std::ops::Range;

use crate::elf::{Budget, Error, Image, Machine, Section};

/// Most code that is searched; the official libraries have at most 3 MB. The rest of a larger section is left
/// out.
const MAX_SEARCHED: u64 = 256 << 20;
const CHUNK: u64 = 4 << 20;
/// Bytes that pieces share: more than the longest pattern has.
const OVERLAP: u64 = 16;

/// Calls `visit` with pieces of a section and their addresses. Each piece repeats the end of the one before.
pub(super) fn for_each_chunk(
    image: &Image,
    section: &Section,
    budget: &mut Budget,
    mut visit: impl FnMut(u64, &[u8]),
) -> Result<(), Error> {
    image.for_each_piece(section, MAX_SEARCHED, [CHUNK, OVERLAP], budget, |start, bytes| {
        visit(section.address.0.wrapping_add(start), bytes);
        true
    })
}

/// Reads the code of one processor, piece after piece.
#[derive(Debug)]
pub(super) enum Code {
    X86_64,
    /// 64-bit Arm, with the addresses that the registers hold.
    Aarch64(Box<aarch64::Pages>),
}

impl Code {
    /// Returns the reader for a processor; `None` if its code is not read.
    pub(super) fn of(machine: Machine) -> Option<Self> {
        match machine {
            Machine::X86_64 => Some(Self::X86_64),
            Machine::Aarch64 => Some(Self::Aarch64(Box::default())),
            Machine::Other(_) => None,
        }
    }

    /// Visits the instructions that make an address: their own address, and the one that they make.
    pub(super) fn address_loads(&mut self, address: u64, code: &[u8], mut visit: impl FnMut(u64, u64)) {
        match self {
            Self::X86_64 => {
                x86_64::address_loads(address, code).for_each(|(from, target)| visit(from, target));
            }
            Self::Aarch64(pages) => pages.address_loads(address, code, visit),
        }
    }

    /// Visits the jumps, with or without a condition: their address, and their target.
    pub(super) fn jumps(&self, address: u64, code: &[u8], mut visit: impl FnMut(u64, u64)) {
        match self {
            Self::X86_64 => x86_64::jumps(address, code).for_each(|(from, target)| visit(from, target)),
            Self::Aarch64(_) => aarch64::jumps(address, code).for_each(|(from, target)| visit(from, target)),
        }
    }

    /// Visits the functions that are called by their address.
    pub(super) fn calls(&self, address: u64, code: &[u8], mut visit: impl FnMut(u64)) {
        match self {
            Self::X86_64 => x86_64::calls(address, code).for_each(&mut visit),
            Self::Aarch64(_) => aarch64::calls(address, code).for_each(&mut visit),
        }
    }
}

/// Finds the strings of `names` that stand between zero bytes: their addresses, and their indices in `names`.
pub(super) fn find_names(address: u64, data: &[u8], names: &[&str]) -> Vec<(u64, usize)> {
    let lengths: BTreeSet<usize> = names.iter().map(|name| name.len()).collect();
    let mut found = Vec::new();
    let mut start = 0;
    for end in memchr::memchr_iter(0, data) {
        let Range { start: from, end: to } = std::mem::replace(&mut start, end + 1)..end;
        if !lengths.contains(&(to - from)) {
            continue;
        }
        if let Some(name) = names.iter().position(|name| data.get(from..to) == Some(name.as_bytes())) {
            found.push((address.wrapping_add(from as u64), name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::find_names;

    #[test]
    fn names_stand_between_zero_bytes() {
        let data = b"SaveProxy\0xSaveProxy\0SaveProxy2\0\0SaveProxy\0f\0SaveProxy";
        assert_eq!(find_names(0x100, data, &["f", "SaveProxy"]), [(0x100, 1), (0x121, 1), (0x12b, 0)]);
        assert_eq!(find_names(0, b"", &["f"]), []);
    }
}
