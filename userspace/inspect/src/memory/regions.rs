//! Parts of an address space that a program's own data can be in.

use std::os::unix::ffi::OsStrExt as _;

use super::ReadError;
use crate::{
    process::{Process, maps::Mapping},
    resolver,
};
use nccl_library::elf::RuntimeAddr;

/// A writable private mapping that no file backs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    pub is_heap: bool,
}

impl Region {
    pub fn size(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Mappings of a process at one moment.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    /// All readable mappings as (start, end), by address.
    pub(super) readable: Vec<(u64, u64)>,
    /// Regions that data can be in: the heap first, then the others, small ones first.
    pub regions: Vec<Region>,
}

impl AddressSpace {
    pub fn read(process: &Process) -> Result<Self, ReadError> {
        let mappings = resolver::maps(process.live_thread())
            .map_err(|error| ReadError::new(process, error, RuntimeAddr(0)))?;
        if !process.is_live() {
            return Err(ReadError::Gone(process.pid()));
        }
        Ok(Self::of(&mappings))
    }

    pub fn of(mappings: &[Mapping]) -> Self {
        let mut space = Self::default();
        for mapping in mappings.iter().filter(|mapping| mapping.start < mapping.end) {
            let (start, end) = (mapping.start.0, mapping.end.0);
            if mapping.permissions.starts_with(b"r") {
                space.readable.push((start, end));
            }
            // Private, writable, no file. Names in brackets are the kernel's; of those only the heap's and
            // the ones that a program gave with prctl (`[anon:…]`) are the program's data: stacks hold no
            // communicator.
            let name = mapping.path.as_os_str().as_bytes();
            let is_heap = name == b"[heap]";
            let is_data = name.is_empty() || is_heap || name.starts_with(b"[anon:");
            let [read, write, _, private] = mapping.permissions;
            if [read, write, private] == *b"rwp" && mapping.inode == 0 && is_data {
                space.regions.push(Region { start, end, is_heap });
            }
        }
        space.readable.sort_unstable();
        space.regions.sort_by_key(|region| (!region.is_heap, region.size(), region.start));
        space
    }

    /// Tells whether `bytes` from `at` on lie in readable mappings.
    pub fn is_readable(&self, at: u64, bytes: u64) -> bool {
        at.checked_add(bytes).is_some() && self.readable_bytes(at, bytes) == bytes
    }

    /// Returns how many bytes from `at` on, at most so many, lie in readable mappings that touch.
    pub fn readable_bytes(&self, at: u64, most: u64) -> u64 {
        let mut reached = at;
        let first = self.readable.partition_point(|(_, end)| *end <= at);
        for (start, end) in self.readable.iter().skip(first) {
            if *start > reached || reached - at >= most {
                break;
            }
            reached = *end;
        }
        (reached - at).min(most)
    }

    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(Region::size).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
00400000-00500000 rw-p 00000000 fd:01 1234                       /opt/program
01000000-01200000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
7f0000800000-7f0000900000 rw-p 00000000 00:00 0                  [anon:arena]
7f0000900000-7f0000a00000 ---p 00000000 00:00 0
7f0000a00000-7f0000b00000 r--p 00000000 00:00 0
7f0000b00000-7f0000c00000 rw-s 00000000 00:01 77                 /dev/zero (deleted)
7f0000c00000-7f0000d00000 rw-s 00000000 00:05 99                 /dev/nvidia0
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                  [stack]
";

    #[test]
    fn only_private_anonymous_data_is_scanned_the_heap_and_small_ones_first() {
        let space = AddressSpace::of(&crate::process::maps::parse(MAPS.as_bytes()));
        let starts: Vec<u64> = space.regions.iter().map(|region| region.start).collect();
        assert_eq!(starts, [0x0100_0000, 0x7f00_0080_0000, 0x7f00_0000_0000]);
        assert!(space.regions[0].is_heap);
        assert_eq!(space.bytes(), 0x20_0000 + 0x10_0000 + 0x80_0000);
    }

    #[test]
    fn a_range_may_span_mappings_that_touch_and_no_gap() {
        let space = AddressSpace::of(&crate::process::maps::parse(MAPS.as_bytes()));
        assert!(space.is_readable(0x7f00_007f_fff0, 32));
        assert!(!space.is_readable(0x7f00_008f_fff0, 32));
        assert!(!space.is_readable(0, 8));
        assert!(!space.is_readable(u64::MAX - 4, 8));
        assert_eq!(space.readable_bytes(0x7f00_007f_fff0, 1 << 30), 0x10_0010);
        assert_eq!((space.readable_bytes(0x7f00_007f_fff0, 32), space.readable_bytes(8, 8)), (32, 0));
    }
}
