//! The list of communicators that NCCL keeps itself: that of its reliability service, `ncclComms` and
//! `nNcclComms` (src/ras/ras.cc), since 2.24 and on by default. Every communicator is in it from the moment at
//! which it is connected to its neighbours to its end (src/bootstrap.cc, bootstrapInit and bootstrapSplit). So where it is,
//! and all that it names are communicators, memory need not be searched, unless a thread is making another one.

use std::time::Instant;

use super::{
    comm_layout::CommLayout,
    communicator::{self, Communicator},
};
use crate::{
    memory::{AddressSpace, Memory, ScanEnd, ScanReport},
    resolver,
    target::{LibraryId, MappedLibrary, Process},
};
use nccl_library::{
    elf::{ElfVaddr, FileOffset, RuntimeAddr},
    fields::ras::COMMUNICATORS,
    symbols::Resolution,
};

/// More than a process has.
const MAX_ENTRIES: u64 = 1 << 14;

/// Where the list is in a library.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnList {
    list: ElfVaddr,
    count: ElfVaddr,
}

impl OwnList {
    /// `None` if the library has no such list, or nothing tells where.
    pub(super) fn of(resolution: &Resolution) -> Option<Self> {
        let [list, count] = COMMUNICATORS.map(|name| resolution.variables.get(name).copied());
        Some(Self { list: list?, count: count? })
    }

    /// The communicators of the list, if it is whole.
    pub(super) fn read(
        self,
        process: &Process,
        file: &MappedLibrary,
        layout: &CommLayout,
        space: &AddressSpace,
    ) -> Option<(Vec<Communicator>, ScanReport)> {
        let started = Instant::now();
        let memory = Memory::new(process);
        let base = base_of(process, file.id)?;
        let count = memory.bytes(RuntimeAddr(base.checked_add(self.count.0)?), 4).ok()?;
        let count = u64::from(u32::from_le_bytes(count.try_into().ok()?));
        let list = memory.word(RuntimeAddr(base.checked_add(self.list.0)?)).ok()?;
        if list == 0 || count == 0 || count > MAX_ENTRIES {
            return None;
        }
        let entries = memory.words(RuntimeAddr(list), count).ok()?;
        let entries = entries.into_iter().filter(|entry| *entry != 0);
        let found: Result<Vec<Communicator>, _> =
            entries.map(|entry| communicator::read(memory, layout, space, entry)).collect();
        // One that is none, or is not set up yet: then the search decides what is there.
        let found = found.ok().filter(|found| !found.is_empty())?;
        let report = ScanReport {
            mappings: space.regions.len(),
            mapped_bytes: space.bytes(),
            milliseconds: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            ended_by: Some(ScanEnd::Listed),
            ..ScanReport::default()
        };
        Some((found, report))
    }
}

/// Where the beginning of the file is mapped, if that is in one place.
pub(super) fn base_of(process: &Process, library: LibraryId) -> Option<u64> {
    let mappings = resolver::maps(process.pid()).ok()?;
    let mut begins = mappings
        .iter()
        .filter(|mapping| mapping.inode == library.inode && mapping.file_offset == FileOffset(0));
    let first = begins.next()?;
    (begins.next().is_none() && !process.has_exited()).then_some(first.start.0)
}
