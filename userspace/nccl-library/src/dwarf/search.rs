//! The search for functions and types over the compilation units.

use std::collections::{BTreeMap, BTreeSet};

use gimli::{Section as _, constants as dw};
use memchr::memmem;

use super::address_map;
use super::entry::{DieRef, Entry};
use super::function::{self, DeclaredParam};
use super::limits;
use super::reader::Reader;
use super::store::{Store, within_limits};
use super::structs::Structs;
use super::types::Types;
use crate::elf::{Budget, Error, Image};
use crate::layouts::Layouts;
use crate::parameter::ParamLocation;

#[derive(Clone, Debug, Default)]
pub struct Wanted<'a> {
    /// Entry addresses of functions.
    pub entries: BTreeSet<u64>,
    /// Symbols of functions, without clone suffixes, whose declared parameters are wanted.
    pub linkage_names: BTreeSet<&'a str>,
    pub structs: BTreeSet<&'a str>,
    pub enums: BTreeSet<&'a str>,
}

#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Parameters of concrete functions and their locations, by entry address.
    pub functions: BTreeMap<u64, Vec<(DeclaredParam, ParamLocation)>>,
    /// Declared parameters, by linkage name.
    pub declared: BTreeMap<String, Vec<DeclaredParam>>,
    pub layouts: Layouts,
    /// Names with definitions of different sizes: nobody can say which one a function uses.
    pub ambiguous: Vec<String>,
    pub faults: Vec<String>,
}

/// Looks everything up. `None` when the library has no debugging information.
///
/// # Errors
/// When the sections cannot be read at all. A damaged unit ends where the damage is, and is named in
/// [`Found::faults`].
pub fn search(image: &Image, wanted: &Wanted<'_>, budget: &mut Budget) -> Result<Option<Found>, Error> {
    let Some(store) = Store::open(image, budget)? else { return Ok(None) };
    let reader = Reader::new(&store);
    let mut search = Search {
        reader: &reader,
        wanted,
        found: Found::default(),
        structs: BTreeMap::new(),
        enums: BTreeMap::new(),
        functions: BTreeMap::new(),
        declarations: BTreeMap::new(),
        typedefs: Vec::new(),
        ambiguous: BTreeSet::new(),
    };
    // Out of budget: findings until then are good.
    let visited = search.visit();
    search.good(visited);
    Ok(Some(search.finish()))
}

/// Wanted functions and types that were found.
struct Search<'r, 's, 'w> {
    reader: &'r Reader<'s>,
    wanted: &'w Wanted<'w>,
    found: Found,
    /// Definitions of structs: place, bytes.
    structs: BTreeMap<&'s str, (DieRef, u64)>,
    enums: BTreeMap<&'s str, DieRef>,
    /// Concrete functions, by entry address.
    functions: BTreeMap<u64, DieRef>,
    /// Functions without code in their unit, by linkage name. They may state their parameters.
    declarations: BTreeMap<&'s str, Vec<DieRef>>,
    typedefs: Vec<(&'s str, DieRef)>,
    ambiguous: BTreeSet<&'s str>,
}

impl<'s> Search<'_, 's, '_> {
    fn visit(&mut self) -> Result<(), Error> {
        let units = address_map::units_of(self.reader, &self.wanted.entries)?;
        let first: BTreeSet<usize> = units.into_values().collect();
        for unit in &first {
            self.visit_unit(*unit)?;
        }
        let mut missing = self.missing();
        if missing.is_empty() {
            return Ok(());
        }
        // A name that a library does not contain at all would cost a pass over everything.
        missing.retain(|name| self.may_contain(name));
        for unit in (0..self.reader.store.unit_count()).filter(|unit| !first.contains(unit)) {
            if missing.is_empty() {
                break;
            }
            self.visit_unit(unit)?;
            let still = self.missing();
            missing.retain(|name| still.contains(name));
        }
        Ok(())
    }

    /// Visits the outermost entries of a unit. Bodies of functions and of structs are passed over.
    fn visit_unit(&mut self, unit: usize) -> Result<(), Error> {
        let reader = self.reader;
        let root = reader.unit_entry(unit);
        let visited =
            root.and_then(|root| reader.for_each_child(root.at, is_candidate, |entry| self.keep(entry)));
        let visited = within_limits(visited)?;
        self.good(visited);
        Ok(())
    }

    /// Returns what could be read, or notes why it could not.
    fn good<T>(&mut self, read: Result<T, Error>) -> Option<T> {
        read.map_err(|error| self.fault(error.to_string())).ok()
    }

    /// Notes a fault. The first few tell enough; a hostile file may have any number.
    fn fault(&mut self, fault: String) {
        let faults = &mut self.found.faults;
        if faults.len() < limits::FAULTS && !faults.contains(&fault) {
            faults.push(fault);
        }
    }

    /// Notes an entry that is wanted.
    fn keep(&mut self, entry: &Entry<'s>) -> Result<(), Error> {
        let (reader, wanted, at) = (self.reader, self.wanted, entry.at);
        let named = |names: &BTreeSet<&str>| {
            reader.name(entry).filter(|name| !entry.flag(dw::DW_AT_declaration) && names.contains(name))
        };
        match entry.tag {
            dw::DW_TAG_subprogram => self.keep_function(entry)?,
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type => {
                if let (Some(name), Some(size)) = (named(&wanted.structs), entry.number(dw::DW_AT_byte_size))
                {
                    let (_, known) = *self.structs.entry(name).or_insert((at, size));
                    if known != size {
                        self.ambiguous.insert(name);
                    }
                }
            }
            dw::DW_TAG_enumeration_type => {
                if let Some(name) = named(&wanted.enums) {
                    self.enums.entry(name).or_insert(at);
                }
            }
            _ => {
                let name = named(&wanted.structs).or_else(|| named(&wanted.enums));
                if let Some(name) = name.filter(|name| self.typedefs.iter().all(|(known, _)| known != name)) {
                    self.typedefs.push((name, at));
                }
            }
        }
        Ok(())
    }

    fn keep_function(&mut self, entry: &Entry<'s>) -> Result<(), Error> {
        let (reader, wanted, unit) = (self.reader, self.wanted, entry.at.unit);
        let mut begins = Vec::from_iter(reader.address(reader.unit(unit)?, entry.value(dw::DW_AT_low_pc)));
        // A function with a cold part elsewhere. The symbol tells which part the entry is in.
        if let Some(parts) = entry.value(dw::DW_AT_ranges) {
            begins.extend(reader.ranges(unit, parts)?.iter().map(|range| range.begin));
        }
        if begins.is_empty() {
            let linkage = entry.value(dw::DW_AT_linkage_name);
            let linkage = linkage.or_else(|| entry.value(dw::DW_AT_MIPS_linkage_name));
            // A C function has no linkage name of its own.
            let name = linkage.and_then(|name| reader.string(unit, &name)).or_else(|| reader.name(entry));
            if let Some(name) = name.filter(|name| wanted.linkage_names.contains(name)) {
                self.declarations.entry(name).or_default().push(entry.at);
            }
        }
        for address in begins.into_iter().filter(|address| wanted.entries.contains(address)) {
            self.functions.entry(address).or_insert(entry.at);
        }
        Ok(())
    }

    fn missing(&self) -> BTreeSet<String> {
        let wanted = self.wanted.structs.iter().chain(&self.wanted.enums).copied();
        let missing = wanted.filter(|name| {
            !self.structs.contains_key(name)
                && !self.enums.contains_key(name)
                && self.typedefs.iter().all(|(known, _)| known != name)
        });
        missing.map(str::to_owned).collect()
    }

    /// Tells whether the library may contain the name. Compilers put names of more than three letters into
    /// `.debug_str`, each ended by a zero byte, where a name may be the end of a longer one.
    fn may_contain(&self, name: &str) -> bool {
        let strings = self.reader.dwarf.debug_str.reader().slice();
        if strings.is_empty() || name.len() < 4 {
            return true;
        }
        let mut needle = name.as_bytes().to_vec();
        needle.push(0);
        memmem::find(strings, &needle).is_some()
    }

    /// Reads the entries that were found.
    fn finish(mut self) -> Found {
        let mut types = Types::new(self.reader);
        for (address, at) in std::mem::take(&mut self.functions) {
            let params = self.good(function::entry_params(self.reader, &mut types, at, address));
            self.found.functions.extend(params.map(|params| (address, params)));
        }
        for (name, places) in std::mem::take(&mut self.declarations) {
            let mut params = places
                .into_iter()
                .take(limits::HOPS)
                .filter_map(|at| self.good(function::declared_params(self.reader, &mut types, at)));
            // A plain declaration of an external function states no parameters; the definition does.
            let params = params.find(|params| !params.is_empty());
            self.found.declared.extend(params.map(|params| (name.to_owned(), params)));
        }
        self.resolve_typedefs(&mut types);
        for name in &self.ambiguous {
            self.structs.remove(name);
        }
        self.read_types(types);
        self.found.ambiguous = self.ambiguous.iter().map(|name| (*name).to_owned()).collect();
        self.found
    }

    /// Gives names to the structs and enumerations that have none: `typedef enum { … } name;` names only the
    /// `typedef`.
    fn resolve_typedefs(&mut self, types: &mut Types<'_, 's>) {
        for (name, at) in std::mem::take(&mut self.typedefs) {
            if self.structs.contains_key(name) || self.enums.contains_key(name) {
                continue;
            }
            let Ok(info) = types.describe(Some(at)) else { continue };
            if let Some(enumeration) = info.enumeration {
                self.enums.insert(name, enumeration);
            } else if let (Some(at), Some(size), true) = (info.aggregate, info.size, info.dims.is_empty()) {
                self.structs.insert(name, (at, size));
            }
        }
    }

    fn read_types(&mut self, types: Types<'_, 's>) {
        let mut structs = Structs::new(types);
        for (name, (at, size)) in &self.structs {
            structs.reserve(name, *at, *size);
        }
        for (name, (at, _)) in std::mem::take(&mut self.structs) {
            if let Err(error) = structs.read(at, name, 0) {
                self.fault(format!("struct `{name}`: {error}"));
            }
        }
        let Structs { mut types, layouts, .. } = structs;
        self.found.layouts = layouts;
        for (name, at) in std::mem::take(&mut self.enums) {
            match types.enumeration(at) {
                Ok(values) => _ = self.found.layouts.enums.insert(name.to_owned(), values),
                Err(error) => self.fault(format!("enumeration `{name}`: {error}")),
            }
        }
    }
}

fn is_candidate(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        dw::DW_TAG_subprogram
            | dw::DW_TAG_structure_type
            | dw::DW_TAG_class_type
            | dw::DW_TAG_union_type
            | dw::DW_TAG_enumeration_type
            | dw::DW_TAG_typedef
    )
}
