//! Parsed compilation units, and bounded ways to read their entries.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use gimli::constants as dw;
use gimli::{
    Abbreviations, AttributeValue, DebugAbbrev, DebugAbbrevOffset, DebugAddrBase, DebugInfo,
    DebugLocListsBase, DebugRngListsBase, DebugStrOffsetsBase, DwAt, DwTag, Dwarf, DwarfFileType, EntriesRaw,
    LittleEndian, Section as _, UnitOffset,
};

use super::abbreviation_table;
use super::entry::{DieRef, Entry};
use super::limits;
use super::store::{Slice, Store};
use crate::elf::Error;

pub(super) type Unit<'s> = gimli::Unit<Slice<'s>>;

/// Reads entries out of a [`Store`].
#[derive(Debug)]
pub(super) struct Reader<'s> {
    pub(super) store: &'s Store<'s>,
    pub(super) dwarf: Dwarf<Slice<'s>>,
    units: Vec<OnceCell<Unit<'s>>>,
    abbreviations: RefCell<HashMap<usize, Arc<Abbreviations>>>,
}

impl<'s> Reader<'s> {
    pub(super) fn new(store: &'s Store<'s>) -> Self {
        let units = (0..store.unit_count()).map(|_| OnceCell::new()).collect();
        Self { store, dwarf: store.dwarf(), units, abbreviations: RefCell::default() }
    }

    /// Returns a unit, parsed on first use.
    pub(super) fn unit(&self, index: usize) -> Result<&Unit<'s>, Error> {
        let cell =
            self.units.get(index).ok_or_else(|| self.store.malformed(".debug_info", "no such unit"))?;
        if let Some(unit) = cell.get() {
            return Ok(unit);
        }
        let unit = self.parse_unit(index)?;
        Ok(cell.get_or_init(|| unit))
    }

    fn parse_unit(&self, index: usize) -> Result<Unit<'s>, Error> {
        let info = DebugInfo::new(self.store.unit_bytes(index)?, LittleEndian);
        let header = info.units().next().map_err(|error| self.fault(index, error))?;
        let header = header.ok_or_else(|| self.store.malformed(".debug_info", "an empty unit"))?;
        let abbreviations = self.abbreviations(index, header.debug_abbrev_offset())?;
        let offset = header.root_offset();
        let raw =
            header.entries_raw(&abbreviations, Some(offset)).map_err(|error| self.fault(index, error))?;
        let at = DieRef { unit: index, offset: offset.0 };
        let root = self.next_entry(raw, at, "a unit without an entry")?;
        let encoding = header.encoding();
        let mut unit = Unit {
            abbreviations,
            name: None,
            comp_dir: None,
            low_pc: 0,
            str_offsets_base: DebugStrOffsetsBase::default_for_encoding_and_file(
                encoding,
                DwarfFileType::Main,
            ),
            addr_base: DebugAddrBase(0),
            loclists_base: DebugLocListsBase::default_for_encoding_and_file(encoding, DwarfFileType::Main),
            rnglists_base: DebugRngListsBase::default_for_encoding_and_file(encoding, DwarfFileType::Main),
            // The line table is not read: it is large, and nothing here asks for lines.
            line_program: None,
            dwo_id: None,
            header,
        };
        for attribute in &root.attributes {
            match attribute.value() {
                AttributeValue::DebugStrOffsetsBase(base) => unit.str_offsets_base = base,
                AttributeValue::DebugAddrBase(base) => unit.addr_base = base,
                AttributeValue::DebugLocListsBase(base) => unit.loclists_base = base,
                AttributeValue::DebugRngListsBase(base) => unit.rnglists_base = base,
                _ => {}
            }
        }
        unit.low_pc = self.address(&unit, root.value(dw::DW_AT_low_pc)).unwrap_or(0);
        Ok(unit)
    }

    /// Reads the next entry; `none` is the error if there is none.
    fn next_entry(
        &self,
        mut raw: EntriesRaw<'_, Slice<'s>>,
        at: DieRef,
        none: &str,
    ) -> Result<Entry<'s>, Error> {
        let fault = |error| self.fault(at.unit, error);
        let abbreviation = raw.read_abbreviation().map_err(fault)?;
        let abbreviation = abbreviation.ok_or_else(|| self.store.malformed(".debug_info", none))?;
        self.store.count_entries(1 + abbreviation.attributes().len() / 8)?;
        let mut attributes = Vec::new();
        raw.read_attributes(abbreviation.attributes(), &mut attributes).map_err(fault)?;
        Ok(Entry { at, tag: abbreviation.tag(), attributes })
    }

    fn abbreviations(&self, unit: usize, at: DebugAbbrevOffset) -> Result<Arc<Abbreviations>, Error> {
        if let Some(known) = self.abbreviations.borrow().get(&at.0) {
            return Ok(Arc::clone(known));
        }
        let rest = self.dwarf.debug_abbrev.reader().slice().get(at.0..).unwrap_or_default();
        let size = abbreviation_table::size(rest).map_err(|error| self.fault(unit, error))?;
        self.store.count_entries(1 + size.bytes / 32)?;
        self.store.take_memory(size.memory)?;
        let table = rest.get(..size.bytes).unwrap_or_default();
        let table = DebugAbbrev::new(table, LittleEndian).abbreviations(DebugAbbrevOffset(0));
        let table = Arc::new(table.map_err(|error| self.fault(unit, error))?);
        self.abbreviations.borrow_mut().insert(at.0, Arc::clone(&table));
        Ok(table)
    }

    /// Returns the entries of a unit from one on.
    fn entries(&self, from: DieRef) -> Result<EntriesRaw<'_, Slice<'s>>, Error> {
        let entries = self.unit(from.unit)?.entries_raw(Some(UnitOffset(from.offset)));
        entries.map_err(|error| self.fault(from.unit, error))
    }

    pub(super) fn entry(&self, at: DieRef) -> Result<Entry<'s>, Error> {
        self.next_entry(self.entries(at)?, at, "a reference leads to no entry")
    }

    /// Visits the children of an entry that have a wanted tag, in order. What is in namespaces counts as if
    /// it were outside; the children of all other entries are passed over.
    pub(super) fn for_each_child(
        &self,
        parent: DieRef,
        wanted: impl Fn(DwTag) -> bool,
        mut visit: impl FnMut(&Entry<'s>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let fault = |error| self.fault(parent.unit, error);
        let mut raw = self.entries(parent)?;
        let Some(own) = raw.read_abbreviation().map_err(fault)? else { return Ok(()) };
        raw.skip_attributes(own.attributes()).map_err(fault)?;
        let mut entry = Entry { at: parent, tag: own.tag(), attributes: Vec::new() };
        // Entries whose ends are ahead: the parent with the namespaces in it, and those that are passed over.
        let (mut open, mut inside) = (usize::from(own.has_children()), 0_usize);
        while open > 0 && !raw.is_empty() {
            entry.at.offset = raw.next_offset().0;
            let Some(abbreviation) = raw.read_abbreviation().map_err(fault)? else {
                if inside > 0 {
                    inside -= 1;
                } else {
                    open -= 1;
                }
                self.store.count_entries(1)?;
                continue;
            };
            let (specs, has_children) = (abbreviation.attributes(), abbreviation.has_children());
            self.store.count_entries(1 + specs.len() / 8)?;
            entry.tag = abbreviation.tag();
            let is_namespace = entry.tag == dw::DW_TAG_namespace;
            let is_wanted = inside == 0 && wanted(entry.tag);
            if inside > 0 || is_namespace || !(is_wanted || has_children) {
                raw.skip_attributes(specs).map_err(fault)?;
                if inside > 0 {
                    inside += usize::from(has_children);
                } else {
                    open += usize::from(has_children);
                }
                continue;
            }
            raw.read_attributes(specs, &mut entry.attributes).map_err(fault)?;
            if is_wanted {
                visit(&entry)?;
            }
            if has_children {
                // A sibling that does not lie ahead would make the pass endless.
                match entry.value(dw::DW_AT_sibling) {
                    Some(AttributeValue::UnitRef(next)) if next.0 > raw.next_offset().0 => {
                        raw = self.entries(DieRef { offset: next.0, ..parent })?;
                    }
                    _ => inside = 1,
                }
            }
        }
        Ok(())
    }

    /// Returns the children of an entry that have a wanted tag, in order, at most [`limits::CHILDREN`] of
    /// them.
    pub(super) fn children(
        &self,
        parent: DieRef,
        wanted: impl Fn(DwTag) -> bool,
    ) -> Result<Vec<Entry<'s>>, Error> {
        let mut found = Vec::new();
        self.for_each_child(parent, wanted, |entry| {
            if found.len() >= limits::CHILDREN {
                return Err(self.store.malformed(".debug_info", "an entry has too many children"));
            }
            found.push(entry.clone());
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the entry that a reference attribute leads to.
    pub(super) fn follow(&self, unit: usize, value: &AttributeValue<Slice<'s>>) -> Option<DieRef> {
        match value {
            AttributeValue::UnitRef(offset) => Some(DieRef { unit, offset: offset.0 }),
            // Between units: link-time optimisation and `dwz` write these.
            AttributeValue::DebugInfoRef(offset) => {
                let (unit, offset) = self.store.unit_at(u64::try_from(offset.0).ok()?)?;
                Some(DieRef { unit, offset })
            }
            _ => None,
        }
    }

    pub(super) fn type_of(&self, entry: &Entry<'s>) -> Option<DieRef> {
        self.follow(entry.at.unit, &entry.value(dw::DW_AT_type)?)
    }

    /// Returns an attribute of the entry itself, or of the entry that it is a copy or a definition of.
    pub(super) fn inherited(
        &self,
        entry: &Entry<'s>,
        name: DwAt,
    ) -> Option<(DieRef, AttributeValue<Slice<'s>>)> {
        let mut origin = None;
        for _ in 0..limits::HOPS {
            let entry = origin.as_ref().unwrap_or(entry);
            if let Some(value) = entry.value(name) {
                return Some((entry.at, value));
            }
            let next =
                entry.value(dw::DW_AT_abstract_origin).or_else(|| entry.value(dw::DW_AT_specification))?;
            origin = Some(self.entry(self.follow(entry.at.unit, &next)?).ok()?);
        }
        None
    }

    pub(super) fn unit_entry(&self, unit: usize) -> Result<Entry<'s>, Error> {
        let offset = self.unit(unit)?.root_offset().0;
        self.entry(DieRef { unit, offset })
    }

    /// Returns the name of an entry; `None` if it has none.
    pub(super) fn name(&self, entry: &Entry<'s>) -> Option<&'s str> {
        self.string(entry.at.unit, &entry.value(dw::DW_AT_name)?)
    }

    /// Returns a string attribute; `None` if it is not there, too long, not UTF-8, or not fit to be shown: a
    /// control character can only be there to deceive a terminal.
    pub(super) fn string(&self, unit: usize, value: &AttributeValue<Slice<'s>>) -> Option<&'s str> {
        let offset = match value {
            AttributeValue::String(text) => return printable(text.slice()),
            AttributeValue::DebugStrRef(offset) => *offset,
            AttributeValue::DebugStrOffsetsIndex(index) => {
                self.dwarf.string_offset(self.unit(unit).ok()?, *index).ok()?
            }
            _ => return None,
        };
        let rest = self.dwarf.debug_str.reader().slice().get(offset.0..)?;
        let rest = &rest[..rest.len().min(limits::NAME_BYTES + 1)];
        printable(&rest[..memchr::memchr(0, rest)?])
    }

    /// Returns an address attribute, direct or by index.
    pub(super) fn address(&self, unit: &Unit<'s>, value: Option<AttributeValue<Slice<'s>>>) -> Option<u64> {
        self.dwarf.attr_address(unit, value?).ok().flatten()
    }

    /// Returns the address ranges that an entry's `DW_AT_ranges` leads to.
    pub(super) fn ranges(
        &self,
        unit: usize,
        value: AttributeValue<Slice<'s>>,
    ) -> Result<Vec<gimli::Range>, Error> {
        let fault = |error| self.fault_at(".debug_ranges", error);
        let mut found = Vec::new();
        if let Some(mut ranges) = self.dwarf.attr_ranges(self.unit(unit)?, value).map_err(fault)? {
            while let Some(range) = ranges.next().map_err(fault)? {
                self.store.count_entries(1)?;
                if range.begin < range.end {
                    found.push(range);
                }
            }
        }
        Ok(found)
    }

    pub(super) fn fault_at(&self, section: &str, error: gimli::Error) -> Error {
        self.store.malformed(section, format!("cannot be read: {error}"))
    }

    pub(super) fn fault(&self, unit: usize, error: gimli::Error) -> Error {
        let start = self.store.unit_start(unit).unwrap_or(0);
        self.store.malformed(".debug_info", format!("the unit at {start:#x} cannot be read: {error}"))
    }
}

fn printable(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= limits::NAME_BYTES)?;
    (!text.chars().any(char::is_control)).then_some(text)
}
