//! The bytes of the debugging information: small sections whole, compilation units and location lists when
//! needed.

use std::cell::{OnceCell, RefCell};

use gimli::{Dwarf, DwarfSections, EndianSlice, LittleEndian, Reader as _, SectionId};

use super::limits;
use crate::elf::{Budget, Error, ErrorKind, Image, Section};

/// Bytes of a section. Official libraries are little-endian, and [`Image`] refuses others.
pub(super) type Slice<'s> = EndianSlice<'s, LittleEndian>;

/// Bytes that are read of a unit's header: an initial length, a version, an abbreviation offset and a little
/// more.
const HEADER_PEEK: u64 = 12;
/// Small sections, which are read whole at once.
const WHOLE: [SectionId; 6] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

#[derive(Debug)]
struct Slot {
    start: u64,
    length: u64,
    bytes: OnceCell<Box<[u8]>>,
}

/// Sections in memory. Everything that parses them borrows from here.
#[derive(Debug)]
pub(super) struct Store<'i> {
    image: &'i Image,
    budget: RefCell<&'i mut Budget>,
    info: &'i Section,
    slots: Vec<Slot>,
    sections: DwarfSections<Box<[u8]>>,
}

impl<'i> Store<'i> {
    /// Opens the debugging information; `None` when the library has none.
    pub(super) fn open(image: &'i Image, budget: &'i mut Budget) -> Result<Option<Self>, Error> {
        let filled = |name| image.section(name).filter(|section| section.size > 0);
        let (Some(info), Some(_)) = (filled(".debug_info"), filled(".debug_abbrev")) else {
            return Ok(None);
        };
        let sections = DwarfSections::load(|id| {
            if WHOLE.contains(&id) { whole(image, id.name(), budget) } else { Ok(Box::default()) }
        })?;
        let slots = index_units(image, info, budget)?;
        Ok(Some(Self { image, budget: RefCell::new(budget), info, slots, sections }))
    }

    /// Returns the sections that are in memory; the others are empty.
    pub(super) fn dwarf(&self) -> Dwarf<Slice<'_>> {
        self.sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian))
    }

    pub(super) fn unit_count(&self) -> usize {
        self.slots.len()
    }

    /// Returns where a unit begins in `.debug_info`.
    pub(super) fn unit_start(&self, unit: usize) -> Option<u64> {
        self.slots.get(unit).map(|slot| slot.start)
    }

    /// Finds the unit that holds an offset of `.debug_info`, and the offset within it.
    pub(super) fn unit_at(&self, offset: u64) -> Option<(usize, usize)> {
        let unit = self.slots.partition_point(|slot| slot.start <= offset).checked_sub(1)?;
        let slot = self.slots.get(unit)?;
        let within = offset.checked_sub(slot.start).filter(|within| *within < slot.length)?;
        Some((unit, usize::try_from(within).ok()?))
    }

    /// Returns the bytes of a unit, header included.
    pub(super) fn unit_bytes(&self, unit: usize) -> Result<&[u8], Error> {
        let slot = self.slots.get(unit).ok_or_else(|| self.malformed(".debug_info", "no such unit"))?;
        if let Some(bytes) = slot.bytes.get() {
            return Ok(bytes);
        }
        if slot.length > limits::UNIT_BYTES {
            let what = format!("the unit at {:#x} has {} bytes", slot.start, slot.length);
            return Err(Error::new(ErrorKind::TooLarge, self.image.place(".debug_info"), what));
        }
        let bytes =
            self.image.section_range(self.info, slot.start, slot.length, &mut self.budget.borrow_mut())?;
        Ok(slot.bytes.get_or_init(|| bytes))
    }

    /// Reads anew a section that only some searches need; empty when the library has none.
    pub(super) fn whole_section(&self, name: &str) -> Result<Box<[u8]>, Error> {
        whole(self.image, name, &mut self.budget.borrow_mut())
    }

    /// Reads at most `size` bytes of a section from `offset` on; fewer at its end.
    pub(super) fn window(&self, name: &str, offset: u64, size: u64) -> Result<Box<[u8]>, Error> {
        let section = self.image.section(name).ok_or_else(|| self.malformed(name, "missing"))?;
        let rest = section.size.checked_sub(offset);
        let rest = rest.ok_or_else(|| self.malformed(name, "an offset reaches past its end"))?;
        self.image.section_range(section, offset, size.min(rest), &mut self.budget.borrow_mut())
    }

    /// Counts entries visited; an error when there were too many.
    pub(super) fn count_entries(&self, entries: usize) -> Result<(), Error> {
        let place = self.image.place(".debug_info");
        self.budget.borrow_mut().take_entries(u64::try_from(entries).unwrap_or(u64::MAX), &place)
    }

    /// Counts memory that is held until the library is resolved; an error when it is too much.
    pub(super) fn take_memory(&self, bytes: usize) -> Result<(), Error> {
        let place = self.image.place(".debug_info");
        self.budget.borrow_mut().take_memory(u64::try_from(bytes).unwrap_or(u64::MAX), &place)
    }

    pub(super) fn malformed(&self, part: &str, what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Malformed, self.image.place(part), what)
    }

    pub(super) fn machine(&self) -> crate::elf::Machine {
        self.image.machine()
    }
}

/// Passes on that a limit was reached; any other failure is for the caller to judge.
pub(super) fn within_limits<T>(read: Result<T, Error>) -> Result<Result<T, Error>, Error> {
    match read {
        Err(error) if error.kind() == ErrorKind::TooLarge => Err(error),
        read => Ok(read),
    }
}

fn whole(image: &Image, name: &str, budget: &mut Budget) -> Result<Box<[u8]>, Error> {
    match image.section(name).filter(|section| section.size > 0) {
        Some(section) => image.section_data(section, limits::SECTION_BYTES, budget),
        None => Ok(Box::default()),
    }
}

/// Finds where the units begin by their length fields alone: some hundred small reads instead of the section.
fn index_units(image: &Image, info: &Section, budget: &mut Budget) -> Result<Vec<Slot>, Error> {
    let malformed = |start: u64, what: &str| {
        Error::new(ErrorKind::Malformed, image.place(".debug_info"), format!("{what} at {start:#x}"))
    };
    let mut slots = Vec::new();
    let mut start = 0;
    while start < info.size {
        if slots.len() >= limits::UNITS {
            return Err(Error::new(ErrorKind::TooLarge, image.place(".debug_info"), "too many units"));
        }
        let peek = image.section_range(info, start, HEADER_PEEK.min(info.size - start), budget)?;
        let mut peek = EndianSlice::new(&peek, LittleEndian);
        let (length, format) = peek.read_initial_length().map_err(|_| malformed(start, "no unit header"))?;
        let field = u64::from(format.initial_length_size());
        let length = u64::try_from(length).ok().and_then(|length| length.checked_add(field));
        let length = length.filter(|length| *length <= info.size - start);
        let length = length.ok_or_else(|| malformed(start, "a unit reaches past the end of the section"))?;
        slots.push(Slot { start, length, bytes: OnceCell::new() });
        start += length;
    }
    Ok(slots)
}
