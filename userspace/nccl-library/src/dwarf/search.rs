//! The search for functions and types over the compilation units.

use std::collections::{BTreeMap, BTreeSet};

use gimli::constants as dw;
use memchr::memmem;

use super::address_map;
use super::entry::DieRef;
use super::function::{self, DeclaredParam, EntryParam};
use super::limits;
use super::reader::Reader;
use super::scan::{self, Findings};
use super::store::Store;
use super::structs::Structs;
use super::types::Types;
use crate::elf::{Budget, Error, ErrorKind, Image};
use crate::layouts::Layouts;

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
    /// Parameters of concrete functions, by entry address.
    pub functions: BTreeMap<u64, Vec<EntryParam>>,
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
/// When the sections cannot be read at all. A damaged unit is passed over and named in [`Found::faults`].
pub fn search(image: &Image, wanted: &Wanted<'_>, budget: &mut Budget) -> Result<Option<Found>, Error> {
    let Some(store) = Store::open(image, budget)? else { return Ok(None) };
    let reader = Reader::new(&store);
    let mut search = Search {
        reader: &reader,
        wanted,
        structs: BTreeMap::new(),
        enums: BTreeMap::new(),
        functions: BTreeMap::new(),
        declarations: BTreeMap::new(),
        typedefs: Vec::new(),
        ambiguous: BTreeSet::new(),
        faults: Vec::new(),
    };
    if let Err(error) = search.visit() {
        // Out of budget: findings until then are good.
        search.fault(error.to_string());
    }
    Ok(Some(search.finish()))
}

struct Search<'r, 's, 'w> {
    reader: &'r Reader<'s>,
    wanted: &'w Wanted<'w>,
    structs: BTreeMap<&'s str, (DieRef, u64)>,
    enums: BTreeMap<&'s str, DieRef>,
    functions: BTreeMap<u64, DieRef>,
    declarations: BTreeMap<&'s str, Vec<DieRef>>,
    typedefs: Vec<(&'s str, DieRef)>,
    ambiguous: BTreeSet<&'s str>,
    faults: Vec<String>,
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

    fn visit_unit(&mut self, unit: usize) -> Result<(), Error> {
        match scan::scan(self.reader, unit, self.wanted) {
            Ok(found) => self.take(found),
            Err(error) if error.kind() == ErrorKind::TooLarge => return Err(error),
            Err(error) => self.fault(error.to_string()),
        }
        Ok(())
    }

    /// Notes a fault. The first few tell enough; a hostile file may have any number.
    fn fault(&mut self, fault: String) {
        if self.faults.len() < limits::FAULTS && !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    fn take(&mut self, found: Findings<'s>) {
        for (address, at) in found.functions {
            self.functions.entry(address).or_insert(at);
        }
        for (name, at) in found.declarations {
            self.declarations.entry(name).or_default().push(at);
        }
        for (name, at, size) in found.structs {
            let (_, known) = *self.structs.entry(name).or_insert((at, size));
            if known != size {
                self.ambiguous.insert(name);
            }
        }
        for (name, at) in found.enums {
            self.enums.entry(name).or_insert(at);
        }
        for (name, at) in found.typedefs {
            if self.typedefs.iter().all(|(known, _)| *known != name) {
                self.typedefs.push((name, at));
            }
        }
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
        let strings = &self.reader.store.strings;
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
        let mut found = Found::default();
        for (address, at) in std::mem::take(&mut self.functions) {
            match function::entry_params(self.reader, &mut types, at, address) {
                Ok(params) => _ = found.functions.insert(address, params),
                Err(error) => self.fault(error.to_string()),
            }
        }
        for (name, places) in std::mem::take(&mut self.declarations) {
            for at in places.into_iter().take(limits::HOPS) {
                match function::declared_params(self.reader, &mut types, at) {
                    // A plain declaration of an external function states no parameters; the definition does.
                    Ok(params) if params.is_empty() => {}
                    Ok(params) => {
                        found.declared.insert(name.to_owned(), params);
                        break;
                    }
                    Err(error) => self.fault(error.to_string()),
                }
            }
        }
        self.resolve_typedefs(&mut types);
        for name in &self.ambiguous {
            self.structs.remove(name);
        }
        self.read_types(&mut types, &mut found);
        found.ambiguous = self.ambiguous.iter().map(|name| (*name).to_owned()).collect();
        found.faults = self.faults;
        found
    }

    /// Gives names to the structs and enumerations that have none: `typedef enum { … } name;` names only the
    /// `typedef`.
    fn resolve_typedefs(&mut self, types: &mut Types<'_, 's>) {
        for (name, at) in std::mem::take(&mut self.typedefs) {
            if self.structs.contains_key(name) || self.enums.contains_key(name) {
                continue;
            }
            let Some((target, tag)) = self.strip(at) else { continue };
            if tag == dw::DW_TAG_enumeration_type {
                self.enums.insert(name, target);
            } else if let Ok(info) = types.describe(Some(target))
                && let (Some(at), Some(size), true) = (info.aggregate, info.size, info.dims.is_empty())
            {
                self.structs.insert(name, (at, size));
            }
        }
    }

    fn strip(&self, mut at: DieRef) -> Option<(DieRef, gimli::DwTag)> {
        for _ in 0..limits::HOPS {
            let entry = self.reader.entry(at).ok()?;
            match entry.tag {
                dw::DW_TAG_typedef | dw::DW_TAG_const_type | dw::DW_TAG_volatile_type => {
                    at = self.reader.type_of(&entry)?;
                }
                tag => return Some((at, tag)),
            }
        }
        None
    }

    fn read_types(&mut self, types: &mut Types<'_, 's>, found: &mut Found) {
        let mut structs = Structs::new(self.reader);
        for (name, (at, size)) in &self.structs {
            structs.reserve(name, *at, *size);
        }
        for (name, (at, _)) in std::mem::take(&mut self.structs) {
            if let Err(error) = structs.read(types, at, name) {
                self.fault(format!("struct `{name}`: {error}"));
            }
        }
        found.layouts = structs.layouts;
        for (name, at) in std::mem::take(&mut self.enums) {
            match types.enumeration(at) {
                Ok(values) => _ = found.layouts.enums.insert(name.to_owned(), values),
                Err(error) => self.fault(format!("enumeration `{name}`: {error}")),
            }
        }
    }
}
