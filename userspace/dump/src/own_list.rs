//! List of communicators that NCCL itself keeps for its reliability service, `ncclComms` and `nNcclComms`
//! (src/ras/ras.cc), since 2.24 and on by default. Every communicator is in it from the moment at which it is
//! connected to its neighbours to its end (src/bootstrap.cc, bootstrapInit and bootstrapSplit). So where the
//! list is found, and all its entries are communicators, memory need not be searched, unless a thread is
//! making another one.

use std::{collections::BTreeSet, time::Instant};

use super::{
    budget::Budget,
    comm_layout::CommLayout,
    communicator::{self, Communicator},
};
use inspect::{
    memory::{AddressSpace, Memory, ScanEnd, ScanReport},
    process::{LibraryId, MappedLibrary, Process, maps::Mapping},
    resolver,
};
use nccl_library::{
    elf::{ElfVaddr, FileOffset, RuntimeAddr},
    fields::ras::COMMUNICATORS,
    symbols::Resolution,
};

/// Bound of the list's length: as many communicators as a search finds in a process.
const MAX_ENTRIES: u64 = communicator::MAX_COMMUNICATORS as u64;

/// Addresses of the list and of its length in a library.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnList {
    list: ElfVaddr,
    count: ElfVaddr,
}

impl OwnList {
    /// Returns the addresses; `None` if the library has no such list, or nothing tells where.
    pub(super) fn of(resolution: &Resolution) -> Option<Self> {
        let [list, count] = COMMUNICATORS.map(|name| resolution.variables.get(name).copied());
        Some(Self { list: list?, count: count? })
    }

    /// Returns the addresses of the pointer to the list (8 bytes) and of its length (4 bytes), of a library
    /// at `base`.
    pub(super) fn head(self, base: u64) -> [u64; 2] {
        [self.list, self.count].map(|variable| base.saturating_add(variable.0))
    }

    /// Reads the communicators of the list, if it is whole, and says what is left out as it takes too long.
    pub(super) fn read(
        self,
        process: &Process,
        file: &MappedLibrary,
        layout: &CommLayout,
        space: &AddressSpace,
    ) -> Option<(Vec<Communicator>, ScanReport, Option<String>)> {
        let (started, mut budget) = (Instant::now(), Budget::default());
        let memory = Memory::new(process);
        let base = base_of(process, file.id)?;
        let (list, count) = head(memory, base, self.list, self.count)?;
        if list == 0 || count == 0 || count > MAX_ENTRIES {
            return None;
        }
        let entries = memory.words(RuntimeAddr(list), count).ok()?;
        let (mut found, mut seen) = (Vec::new(), BTreeSet::from([0]));
        for entry in entries.into_iter().filter(|entry| seen.insert(*entry)) {
            if budget.has_time() {
                // An entry may be no communicator, or not set up yet: then the search decides what is there.
                found.push(communicator::read(memory, layout, space, entry).ok()?);
            } else {
                budget.leave_out();
            }
        }
        if found.is_empty() {
            return None;
        }
        let report = ScanReport {
            mappings: space.regions.len(),
            mapped_bytes: space.bytes(),
            milliseconds: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            ended_by: Some(ScanEnd::Listed),
            ..ScanReport::default()
        };
        Some((found, report, budget.problem()))
    }
}

/// Reads the address and the length of a list, which are variables of a library at `base`.
pub(super) fn head(memory: Memory<'_>, base: u64, list: ElfVaddr, count: ElfVaddr) -> Option<(u64, u64)> {
    let at = |variable: ElfVaddr| base.checked_add(variable.0).map(RuntimeAddr);
    let count = memory.bytes(at(count)?, 4).ok()?;
    Some((memory.word(at(list)?).ok()?, u32::from_le_bytes(count.try_into().ok()?).into()))
}

/// Returns the address at which the beginning of the file is mapped, if that is one place.
pub(super) fn base_of(process: &Process, library: LibraryId) -> Option<u64> {
    let begin = begin_of(&resolver::maps(process.pid()).ok()?, library.inode);
    begin.filter(|_| !process.has_exited())
}

/// As [`base_of`], of mappings that were read.
pub(super) fn begin_of(mappings: &[Mapping], inode: u64) -> Option<u64> {
    let is_begin = |mapping: &&Mapping| mapping.inode == inode && mapping.file_offset == FileOffset(0);
    let mut begins = mappings.iter().filter(is_begin);
    begins.next().filter(|_| begins.next().is_none()).map(|first| first.start.0)
}
