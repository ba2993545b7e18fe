//! Files of a process's code, and the address in memory of each one's table of call frame information.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    rc::Rc,
};

use object::{LittleEndian as Little, elf, pod, read::elf::ProgramHeader as _};

use super::unwind::Entry;
use crate::{
    memory::{Memory, PageCache},
    process::{Process, maps::Mapping},
    resolver,
};
use nccl_library::elf::RuntimeAddr;

/// Maximum number of program headers of one file; real ones have about ten.
const MAX_HEADERS: u16 = 64;

/// Maximum number of bytes of entries of call frame information that are kept. Finding one takes some twenty
/// copies of memory, and threads stand at the same places.
const MAX_KEPT: usize = 8 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Module {
    /// Difference between addresses in memory and the file's own.
    pub(super) bias: u64,
    /// Address in memory of `.eh_frame_hdr`, if the file has one.
    pub(super) eh_frame_hdr: Option<u64>,
    /// Address in memory of the dynamic section.
    pub(super) dynamic: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Modules {
    mappings: Vec<Mapping>,
    /// Modules by the address of the mapping that begins the file.
    known: HashMap<u64, Option<Module>>,
    /// Entries of call frame information by address of code.
    entries: HashMap<u64, Option<Rc<Entry>>>,
    kept: usize,
    /// Pages of files' tables of call frame information: a search looks at the same ones again and again.
    tables: PageCache,
}

/// Maximum number of pages of tables that are kept: 8 MiB.
const MAX_PAGES: usize = 2048;

impl Modules {
    pub(super) fn read(process: &Process) -> io::Result<Self> {
        let mut mappings = resolver::maps(process.live_thread())?;
        mappings.sort_by_key(|mapping| mapping.start);
        Ok(Self {
            mappings,
            known: HashMap::new(),
            entries: HashMap::new(),
            kept: 0,
            tables: PageCache::new(MAX_PAGES),
        })
    }

    /// Reads the mappings again. Modules and entries are kept if no code has changed.
    pub(super) fn read_again(self, process: &Process) -> io::Result<Self> {
        let now = Self::read(process)?;
        Ok(if now.code().eq(self.code()) { Self { mappings: now.mappings, ..self } } else { now })
    }

    /// Returns all mappings.
    pub(super) fn files(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter()
    }

    /// Returns the mappings of code, and their files.
    fn code(&self) -> impl Iterator<Item = (u64, u64, u64, (u32, u32), u64)> {
        let code = self.mappings.iter().filter(|mapping| mapping.is_executable());
        code.map(|mapping| {
            (mapping.start.0, mapping.end.0, mapping.file_offset.0, mapping.device, mapping.inode)
        })
    }

    /// Returns the entry of call frame information for an address.
    pub(super) fn entry(&mut self, memory: Memory<'_>, address: u64) -> Option<Rc<Entry>> {
        if let Some(known) = self.entries.get(&address) {
            return known.clone();
        }
        let table = self.module(memory, address).and_then(|module| module.eh_frame_hdr);
        let entry =
            table.and_then(|table| Entry::find(memory, &mut self.tables, table, address)).map(Rc::new);
        self.kept += 64 + entry.as_ref().map_or(0, |entry| entry.size());
        if self.kept > MAX_KEPT {
            self.entries.clear();
            self.kept = 0;
        }
        self.entries.insert(address, entry.clone());
        entry
    }

    /// Returns the inode of the file at an address or, if there is none, that of the mapping before: a file's
    /// variables lie behind it.
    pub(super) fn inode_at_or_below(&self, address: u64) -> Option<u64> {
        let next = self.mappings.partition_point(|mapping| mapping.start.0 <= address);
        let before = self.mappings.get(..next)?.iter().rev().take(2);
        before.map(|mapping| mapping.inode).find(|inode| *inode != 0)
    }

    pub(super) fn at(&self, address: u64) -> Option<&Mapping> {
        let next = self.mappings.partition_point(|mapping| mapping.start.0 <= address);
        let mapping = self.mappings.get(next.checked_sub(1)?)?;
        (address < mapping.end.0).then_some(mapping)
    }

    pub(super) fn is_code(&self, address: u64) -> bool {
        self.at(address).is_some_and(Mapping::is_executable)
    }

    pub(super) fn inode_at(&self, address: u64) -> Option<u64> {
        self.at(address).map(|mapping| mapping.inode).filter(|inode| *inode != 0)
    }

    /// Returns the code of these files, as (start, end).
    pub(super) fn code_of(&self, inodes: &BTreeSet<u64>) -> Vec<(u64, u64)> {
        let code =
            self.mappings.iter().filter(|mapping| mapping.is_executable() && inodes.contains(&mapping.inode));
        code.map(|mapping| (mapping.start.0, mapping.end.0)).collect()
    }

    /// Returns the file that an address is in, and the address in the file's own terms.
    pub(super) fn locate(&mut self, memory: Memory<'_>, address: u64) -> Option<(&Mapping, u64)> {
        self.at(address).filter(|mapping| mapping.inode != 0)?;
        let module = self.module(memory, address)?;
        Some((self.at(address)?, address.wrapping_sub(module.bias)))
    }

    /// Returns the module that an address is in; the kernel's vDSO is one too.
    pub(super) fn module(&mut self, memory: Memory<'_>, address: u64) -> Option<Module> {
        let mapping = self.at(address).filter(|mapping| mapping.is_executable())?;
        // The file begins at the nearest mapping of its first byte at or below.
        let first = self.mappings.iter().rev().find(|other| {
            other.start <= mapping.start
                && other.file_offset.0 == 0
                && (&other.path, other.inode) == (&mapping.path, mapping.inode)
        })?;
        let start = first.start.0;
        if let Some(known) = self.known.get(&start) {
            return *known;
        }
        let module = read_headers(memory, start);
        self.known.insert(start, module);
        module
    }
}

/// Reads the ELF headers of the file that begins in memory at `start`.
fn read_headers(memory: Memory<'_>, start: u64) -> Option<Module> {
    let header = memory.bytes(RuntimeAddr(start), size_of::<elf::FileHeader64<Little>>() as u64).ok()?;
    let (header, _) = pod::from_bytes::<elf::FileHeader64<Little>>(&header).ok()?;
    let ident = &header.e_ident;
    if ident.magic != elf::ELFMAG || ident.class != elf::ELFCLASS64 || ident.data != elf::ELFDATA2LSB {
        return None;
    }
    let entry = size_of::<elf::ProgramHeader64<Little>>();
    let count = header.e_phnum.get(Little);
    if count > MAX_HEADERS || usize::from(header.e_phentsize.get(Little)) != entry {
        return None;
    }
    let at = RuntimeAddr(start.checked_add(header.e_phoff.get(Little))?);
    let bytes = memory.bytes(at, u64::from(count) * entry as u64).ok()?;
    let headers = pod::slice_from_all_bytes::<elf::ProgramHeader64<Little>>(&bytes).ok()?;
    let load = headers.iter().find(|load| load.p_type(Little) == elf::PT_LOAD)?;
    // `start` is the mapping of the first byte; the first segment may begin behind it, in the same page.
    let bias = start.wrapping_sub(load.p_vaddr(Little).wrapping_sub(load.p_offset(Little)));
    let place = |kind| {
        let header = headers.iter().find(|header| header.p_type(Little) == kind)?;
        Some(bias.wrapping_add(header.p_vaddr(Little)))
    };
    Some(Module { bias, eh_frame_hdr: place(elf::PT_GNU_EH_FRAME), dynamic: place(elf::PT_DYNAMIC) })
}
