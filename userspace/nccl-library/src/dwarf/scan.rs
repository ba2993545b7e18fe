//! Scan: one pass over the outermost entries of a compilation unit.

use std::collections::{BTreeMap, BTreeSet};

use gimli::constants as dw;

use super::entry::DieRef;
use super::reader::{Reader, sibling_of};
use super::search::Wanted;
use super::store::Slice;
use crate::elf::Error;

/// Wanted functions and types that a unit has.
#[derive(Debug, Default)]
pub(super) struct Findings<'s> {
    /// Concrete functions, by entry address.
    pub(super) functions: BTreeMap<u64, DieRef>,
    /// Functions without code in this unit, by linkage name. They may state their parameters.
    pub(super) declarations: Vec<(&'s str, DieRef)>,
    /// Definitions of wanted structs: name, place, bytes.
    pub(super) structs: Vec<(&'s str, DieRef, u64)>,
    pub(super) enums: Vec<(&'s str, DieRef)>,
    pub(super) typedefs: Vec<(&'s str, DieRef)>,
}

/// Attributes that the pass looks at.
#[derive(Default)]
struct Seen<'s> {
    name: Option<&'s str>,
    linkage_name: Option<&'s str>,
    low_pc: Option<u64>,
    /// Beginnings of the parts of a function that does not lie in one piece.
    parts: Vec<u64>,
    size: Option<u64>,
    declaration: bool,
    sibling: Option<usize>,
}

/// Visits a unit. Bodies of functions and of structs are passed over; namespaces are entered.
pub(super) fn scan<'s>(reader: &Reader<'s>, unit: usize, wanted: &Wanted<'_>) -> Result<Findings<'s>, Error> {
    let mut found = Findings::default();
    let mut raw = reader.entries(unit, None)?;
    // Depth within entries that are passed over.
    let mut inside = 0usize;
    while !raw.is_empty() {
        let offset = raw.next_offset().0;
        let abbreviation = raw.read_abbreviation().map_err(|error| reader.fault(unit, error))?;
        let Some(abbreviation) = abbreviation else {
            inside = inside.saturating_sub(1);
            reader.store.count_entries(1)?;
            continue;
        };
        let specs = abbreviation.attributes();
        reader.store.count_entries(1 + specs.len() / 8)?;
        let tag = abbreviation.tag();
        let enters = matches!(
            tag,
            dw::DW_TAG_compile_unit | dw::DW_TAG_partial_unit | dw::DW_TAG_type_unit | dw::DW_TAG_namespace
        );
        if inside > 0 || enters || !(abbreviation.has_children() || is_candidate(tag)) {
            raw.skip_attributes(specs).map_err(|error| reader.fault(unit, error))?;
            if inside > 0 && abbreviation.has_children() {
                inside += 1;
            }
            continue;
        }
        let seen = read(reader, unit, &mut raw, specs, tag == dw::DW_TAG_subprogram)?;
        let at = DieRef { unit, offset };
        keep(&mut found, tag, at, &seen, wanted);
        if abbreviation.has_children() {
            // A sibling that does not lie ahead would make the pass endless.
            match seen.sibling.filter(|sibling| *sibling > raw.next_offset().0) {
                Some(sibling) => raw = reader.entries(unit, Some(sibling))?,
                None => inside = 1,
            }
        }
    }
    Ok(found)
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

fn read<'s>(
    reader: &Reader<'s>,
    unit: usize,
    raw: &mut gimli::EntriesRaw<'_, Slice<'s>>,
    specs: &[gimli::AttributeSpecification],
    is_function: bool,
) -> Result<Seen<'s>, Error> {
    let mut seen = Seen::default();
    for spec in specs {
        let attribute = raw.read_attribute(*spec).map_err(|error| reader.fault(unit, error))?;
        match attribute.name() {
            dw::DW_AT_name => seen.name = reader.string(unit, &attribute.value()),
            dw::DW_AT_linkage_name | dw::DW_AT_MIPS_linkage_name => {
                seen.linkage_name = reader.string(unit, &attribute.value());
            }
            dw::DW_AT_low_pc => seen.low_pc = reader.address(reader.unit(unit)?, Some(attribute.value())),
            // A function with a cold part elsewhere. The symbol tells which part the entry is in.
            dw::DW_AT_ranges if is_function => {
                let ranges = reader.ranges(unit, attribute.value())?;
                seen.parts.extend(ranges.iter().map(|range| range.begin));
            }
            dw::DW_AT_byte_size => seen.size = attribute.udata_value(),
            dw::DW_AT_declaration => {
                seen.declaration = matches!(attribute.value(), gimli::AttributeValue::Flag(true));
            }
            dw::DW_AT_sibling => seen.sibling = sibling_of(Some(attribute.value())),
            _ => {}
        }
    }
    Ok(seen)
}

fn keep<'s>(found: &mut Findings<'s>, tag: gimli::DwTag, at: DieRef, seen: &Seen<'s>, wanted: &Wanted<'_>) {
    let named = |names: &BTreeSet<&str>| seen.name.filter(|name| !seen.declaration && names.contains(name));
    match tag {
        dw::DW_TAG_subprogram => {
            let mut entries = seen.low_pc.iter().chain(&seen.parts).peekable();
            if entries.peek().is_none() {
                // A C function has no linkage name of its own.
                let name = seen.linkage_name.or(seen.name).filter(|name| wanted.linkage_names.contains(name));
                found.declarations.extend(name.map(|name| (name, at)));
            }
            for address in entries.filter(|address| wanted.entries.contains(address)) {
                found.functions.entry(*address).or_insert(at);
            }
        }
        dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type => {
            if let (Some(name), Some(size)) = (named(&wanted.structs), seen.size) {
                found.structs.push((name, at, size));
            }
        }
        dw::DW_TAG_enumeration_type => found.enums.extend(named(&wanted.enums).map(|name| (name, at))),
        dw::DW_TAG_typedef => {
            let name = named(&wanted.structs).or_else(|| named(&wanted.enums));
            found.typedefs.extend(name.map(|name| (name, at)));
        }
        _ => {}
    }
}
