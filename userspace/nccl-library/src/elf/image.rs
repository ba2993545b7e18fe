//! An opened ELF file: its identity and bounded access to its sections.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use object::LittleEndian as Little;
use object::elf;
use object::pod;
use object::read::StringTable;
use object::read::elf::{NoteIterator, ProgramHeader as _, SectionHeader as _};
use serde::{Deserialize, Serialize};

use super::{
    Budget, BuildId, ElfVaddr, Error, ErrorKind, FileOffset,
    compressed::{self, Compressed, Refusal},
};

/// Most sections or segments; more are refused. NCCL 2.32.3 has 49 and 8.
const MAX_HEADERS: u64 = 4096;
/// Longest note segment that is searched for a build-id.
const MAX_NOTE_BYTES: u64 = 64 << 10;
/// Largest section name table; that of an ordinary file has some hundred bytes.
const MAX_SECTION_NAMES: u64 = 1 << 20;
/// Length at which a section name is cut.
const MAX_SECTION_NAME: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Machine {
    X86_64,
    Aarch64,
    /// Any other, by its `e_machine`.
    Other(u16),
}

impl fmt::Display for Machine {
    /// Writes it as uname(2) names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::X86_64 => f.write_str("x86_64"),
            Self::Aarch64 => f.write_str("aarch64"),
            Self::Other(machine) => write!(f, "machine {machine}"),
        }
    }
}

/// A section, as its header states it. Whether it lies inside the file is checked when it is read.
#[derive(Debug)]
pub struct Section {
    /// Name, in which control characters and what is not UTF-8 are replaced.
    pub name: String,
    pub kind: u32,
    /// Address in memory, before the load bias; 0 if the section is not loaded.
    pub address: ElfVaddr,
    pub offset: FileOffset,
    /// Bytes of the contents, decompressed; 0 for a section without contents in the file.
    pub size: u64,
    /// `sh_link`: the section that this one refers to.
    pub link: u32,
    /// How the contents are stored, if they are compressed.
    compressed: Option<Compressed>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    vaddr: u64,
    file_size: u64,
    memory_size: u64,
}

/// An opened library: identity, addresses, bounded reads. The file stays open, so all reads are of the same
/// inode even if the path is replaced.
#[derive(Debug)]
pub struct Image {
    file: File,
    name: String,
    length: u64,
    machine: Machine,
    build_id: Option<BuildId>,
    sections: Vec<Section>,
    loads: Vec<Segment>,
}

impl Image {
    /// Opens a library by path. A path that is no regular file is refused before anything is read from it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        // Without NONBLOCK, opening a FIFO that a hostile tenant put there would wait for ever.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        Self::from_file_named(file.map_err(|source| Error::io(&name, source))?, name)
    }

    pub fn from_file(file: File) -> Result<Self, Error> {
        Self::from_file_named(file, "library")
    }

    /// Takes an opened library; messages call it `name`.
    pub fn from_file_named(file: File, name: impl Into<String>) -> Result<Self, Error> {
        let name = name.into();
        let metadata = file.metadata().map_err(|source| Error::io(&name, source))?;
        if !metadata.is_file() {
            return Err(Error::new(ErrorKind::NotElf, name, "not a regular file"));
        }
        let mut image = Self {
            file,
            name,
            length: metadata.len(),
            machine: Machine::Other(0),
            build_id: None,
            sections: Vec::new(),
            loads: Vec::new(),
        };
        image.read_headers()?;
        Ok(image)
    }

    pub fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }

    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// Returns the opened file, for a caller that wants its inode.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the name that messages give the file: its path, if it was opened by path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns all sections, in the file's order.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Returns the address of the file's first byte, in the file's own terms. The address at which a process
    /// has that byte mapped, less this one, is the load bias.
    pub fn base(&self) -> Option<ElfVaddr> {
        self.loads.first().map(|load| ElfVaddr(load.vaddr.wrapping_sub(load.offset)))
    }

    /// Returns address and bytes of the variables that begin as zero, of which the file has no bytes; `None`
    /// if there are none.
    pub fn zeroed(&self) -> Option<(ElfVaddr, u64)> {
        let with_zeroes = self.loads.iter().rev().find(|load| load.memory_size > load.file_size)?;
        let begin = with_zeroes.vaddr.checked_add(with_zeroes.file_size)?;
        Some((ElfVaddr(begin), with_zeroes.memory_size - with_zeroes.file_size))
    }

    /// Returns the file offset of an address that is loaded from the file; `None` for any other address.
    pub fn file_offset(&self, address: ElfVaddr) -> Option<FileOffset> {
        self.loaded_at(address).map(|(offset, _)| FileOffset(offset))
    }

    /// Returns the file offset that an address is loaded from, and how many bytes of the segment are left
    /// there.
    fn loaded_at(&self, address: ElfVaddr) -> Option<(u64, u64)> {
        self.loads.iter().find_map(|load| {
            let within = address.0.checked_sub(load.vaddr).filter(|within| *within < load.file_size)?;
            Some((load.offset.checked_add(within)?, load.file_size - within))
        })
    }

    /// Reads at most `size` bytes that are loaded at `address`; fewer at the end of the segment.
    pub fn loaded_bytes(
        &self,
        address: ElfVaddr,
        size: u64,
        budget: &mut Budget,
    ) -> Result<Box<[u8]>, Error> {
        let Some((offset, rest)) = self.loaded_at(address) else {
            return Err(self.malformed("segments", &format!("{address} is not loaded from the file")));
        };
        self.read(offset, size.min(rest), "segments", budget)
    }

    /// Reads a whole section, if it is not larger than `limit` bytes.
    pub fn section_data(
        &self,
        section: &Section,
        limit: u64,
        budget: &mut Budget,
    ) -> Result<Box<[u8]>, Error> {
        if section.size > limit {
            let what = format!("{} bytes are more than the limit of {limit}", section.size);
            return Err(Error::new(ErrorKind::TooLarge, self.place(&section.name), what));
        }
        self.section_range(section, 0, section.size, budget)
    }

    /// Reads `size` bytes at `offset` within a section.
    pub fn section_range(
        &self,
        section: &Section,
        offset: u64,
        size: u64,
        budget: &mut Budget,
    ) -> Result<Box<[u8]>, Error> {
        let end = offset.checked_add(size).filter(|end| *end <= section.size);
        let (Some(start), Some(end)) = (section.offset.0.checked_add(offset), end) else {
            let what = format!("{size} bytes at {offset:#x} reach past its end ({:#x})", section.size);
            return Err(Error::new(ErrorKind::Malformed, self.place(&section.name), what));
        };
        let Some(compressed) = &section.compressed else {
            return self.read(start, size, &section.name, budget);
        };
        budget.take_bytes(size, &section.name)?;
        if let Some((offset, length)) =
            compressed.wanted().map_err(|refusal| self.refused(section, refusal))?
        {
            let stored = self.read(offset, length, &section.name, budget)?;
            let inflated = compressed.inflate(&stored, &section.name, budget);
            inflated.map_err(|refusal| self.refused(section, refusal))?;
        }
        let piece = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
        let piece = piece.and_then(|(start, end)| compressed.contents().get(start..end));
        piece.map(Box::from).ok_or_else(|| self.malformed(&section.name, "shorter than it says"))
    }

    fn refused(&self, section: &Section, (kind, what): Refusal) -> Error {
        let error = Error::new(kind, self.place(&section.name), what);
        match kind {
            ErrorKind::Unsupported => {
                error.with_advice("make an uncompressed copy with `objcopy --decompress-debug-sections`")
            }
            _ => error,
        }
    }

    /// Visits pieces of a section's first `limit` bytes, with their offsets in the section, until `visit`
    /// returns false. A piece has `length` bytes at most, and repeats the last `overlap` of the one before.
    pub(crate) fn for_each_piece(
        &self,
        section: &Section,
        limit: u64,
        [length, overlap]: [u64; 2],
        budget: &mut Budget,
        mut visit: impl FnMut(u64, &[u8]) -> bool,
    ) -> Result<(), Error> {
        let (mut start, mut end) = (0, 0);
        let size = section.size.min(limit);
        while end < size {
            end = size.min(start + length);
            if !visit(start, &self.section_range(section, start, end - start, budget)?) {
                break;
            }
            start = end - overlap.min(end);
        }
        Ok(())
    }

    pub fn place(&self, part: &str) -> String {
        format!("{}: {part}", self.name)
    }

    fn read(&self, offset: u64, size: u64, part: &str, budget: &mut Budget) -> Result<Box<[u8]>, Error> {
        let place = || self.place(part);
        if offset.checked_add(size).is_none_or(|end| end > self.length) {
            let what =
                format!("{size} bytes at {offset:#x} reach past the end of the file ({:#x})", self.length);
            return Err(Error::new(ErrorKind::Malformed, place(), what));
        }
        budget.take_bytes(size, part)?;
        let size = usize::try_from(size)
            .map_err(|_| Error::new(ErrorKind::TooLarge, place(), "does not fit into memory"))?;
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(size)
            .map_err(|_| Error::new(ErrorKind::TooLarge, place(), format!("no memory for {size} bytes")))?;
        bytes.resize(size, 0);
        self.file.read_exact_at(&mut bytes, offset).map_err(|source| Error::io(place(), source))?;
        Ok(bytes.into_boxed_slice())
    }

    fn malformed(&self, part: &str, what: &str) -> Error {
        Error::new(ErrorKind::Malformed, self.place(part), what)
    }

    fn read_headers(&mut self) -> Result<(), Error> {
        let mut budget = Budget::default();
        let header_size = size_of::<elf::FileHeader64<Little>>() as u64;
        if self.length < header_size {
            return Err(Error::new(ErrorKind::NotElf, &self.name, "shorter than an ELF header"));
        }
        let bytes = self.read(0, header_size, "ELF header", &mut budget)?;
        let (header, _) = pod::from_bytes::<elf::FileHeader64<Little>>(&bytes)
            .map_err(|()| self.malformed("ELF header", "incomplete"))?;
        let ident = &header.e_ident;
        if ident.magic != elf::ELFMAG {
            return Err(Error::new(ErrorKind::NotElf, &self.name, "has no ELF magic"));
        }
        if ident.class != elf::ELFCLASS64 || ident.data != elf::ELFDATA2LSB {
            let what = "not a 64-bit little-endian ELF file";
            return Err(Error::new(ErrorKind::Unsupported, &self.name, what));
        }
        self.machine = match header.e_machine.get(Little) {
            elf::EM_X86_64 => Machine::X86_64,
            elf::EM_AARCH64 => Machine::Aarch64,
            other => Machine::Other(other),
        };
        self.read_segments(header, &mut budget)?;
        self.read_sections(header, &mut budget)?;
        if self.build_id.is_none() {
            let mut notes = self.sections.iter().filter(|section| section.kind == elf::SHT_NOTE);
            self.build_id =
                notes.find_map(|section| self.build_id_at(section.offset.0, section.size, 4, &mut budget));
        }
        Ok(())
    }

    fn read_segments(
        &mut self,
        header: &elf::FileHeader64<Little>,
        budget: &mut Budget,
    ) -> Result<(), Error> {
        let count = u64::from(header.e_phnum.get(Little));
        if count == 0 {
            return Ok(());
        }
        let entry = size_of::<elf::ProgramHeader64<Little>>() as u64;
        if u64::from(header.e_phentsize.get(Little)) != entry || count > MAX_HEADERS {
            return Err(self.malformed("program headers", "their size or number is not sensible"));
        }
        let bytes = self.read(header.e_phoff.get(Little), count * entry, "program headers", budget)?;
        let headers = pod::slice_from_all_bytes::<elf::ProgramHeader64<Little>>(&bytes)
            .map_err(|()| self.malformed("program headers", "incomplete"))?;
        for segment in headers {
            let (offset, file_size) = (segment.p_offset(Little), segment.p_filesz(Little));
            if offset.checked_add(file_size).is_none_or(|end| end > self.length) {
                continue;
            }
            match segment.p_type(Little) {
                elf::PT_LOAD => {
                    let (vaddr, memory_size) = (segment.p_vaddr(Little), segment.p_memsz(Little));
                    self.loads.push(Segment { offset, vaddr, file_size, memory_size });
                }
                elf::PT_NOTE if self.build_id.is_none() => {
                    self.build_id = self.build_id_at(offset, file_size, segment.p_align(Little), budget);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read_sections(
        &mut self,
        header: &elf::FileHeader64<Little>,
        budget: &mut Budget,
    ) -> Result<(), Error> {
        let place = "section headers";
        let start = header.e_shoff.get(Little);
        if start == 0 {
            return Ok(());
        }
        let entry = size_of::<elf::SectionHeader64<Little>>() as u64;
        if u64::from(header.e_shentsize.get(Little)) != entry {
            return Err(self.malformed(place, "their size is not that of a 64-bit file"));
        }
        let count = u64::from(header.e_shnum.get(Little));
        if count == 0 || count > MAX_HEADERS {
            let what = format!("{count} sections; between 1 and {MAX_HEADERS} are supported");
            return Err(Error::new(ErrorKind::Unsupported, self.place(place), what));
        }
        let bytes = self.read(start, count * entry, place, budget)?;
        let headers = pod::slice_from_all_bytes::<elf::SectionHeader64<Little>>(&bytes)
            .map_err(|()| self.malformed(place, "incomplete"))?;
        let names = match headers.get(usize::from(header.e_shstrndx.get(Little))) {
            Some(names) if names.sh_size(Little) <= MAX_SECTION_NAMES => {
                self.read(names.sh_offset(Little), names.sh_size(Little), "section names", budget)?
            }
            _ => return Err(self.malformed("section names", "missing or too large")),
        };
        let names = StringTable::new(&*names, 0, names.len() as u64);
        self.sections = headers.iter().map(|section| self.section_of(section, names, budget)).collect();
        Ok(())
    }

    fn section_of(
        &self,
        header: &elf::SectionHeader64<Little>,
        names: StringTable<'_>,
        budget: &mut Budget,
    ) -> Section {
        let name = names.get(header.sh_name(Little)).unwrap_or_default();
        let name = String::from_utf8_lossy(&name[..name.len().min(MAX_SECTION_NAME)]);
        let mut name = name.replace(char::is_control, "?");
        let in_file = header.sh_type(Little) != elf::SHT_NOBITS;
        let (offset, mut size) = (header.sh_offset(Little), if in_file { header.sh_size(Little) } else { 0 });
        let mut head = || self.read(offset, size.min(compressed::HEADER as u64), &name, budget).ok();
        let compressed = if header.sh_flags(Little) & u64::from(elf::SHF_COMPRESSED) != 0 {
            head().and_then(|head| Compressed::with_header(&head, offset, size))
        } else if name.starts_with(".zdebug_") {
            head().and_then(|head| Compressed::the_old_way(&head, offset, size))
        } else {
            None
        };
        if let Some(compressed) = &compressed {
            size = compressed.size();
            name = name.replacen(".zdebug_", ".debug_", 1);
        }
        let (kind, link) = (header.sh_type(Little), header.sh_link(Little));
        let address = ElfVaddr(header.sh_addr(Little));
        Section { name, kind, address, offset: FileOffset(offset), size, link, compressed }
    }

    fn build_id_at(&self, offset: u64, size: u64, align: u64, budget: &mut Budget) -> Option<BuildId> {
        let bytes = self.read(offset, size.min(MAX_NOTE_BYTES), "notes", budget).ok()?;
        let mut notes = NoteIterator::<elf::FileHeader64<Little>>::new(Little, align, &bytes).ok()?;
        while let Ok(Some(note)) = notes.next() {
            if note.n_type(Little) == elf::NT_GNU_BUILD_ID && note.name() == elf::ELF_NOTE_GNU {
                return BuildId::new(note.desc());
            }
        }
        None
    }
}
