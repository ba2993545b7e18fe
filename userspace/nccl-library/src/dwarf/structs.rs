//! Struct layouts, with all structs that they hold by value.

use std::collections::HashMap;

use gimli::Operation;
use gimli::constants as dw;

use super::entry::{DieRef, Entry};
use super::limits;
use super::location::single_operation;
use super::reader::Reader;
use super::types::{TypeInfo, Types};
use crate::elf::Error;
use crate::layouts::{Array, Bits, Field, Layouts, Member, Struct};

/// Collects struct layouts by name.
#[derive(Debug)]
pub(super) struct Structs<'r, 's> {
    reader: &'r Reader<'s>,
    pub(super) types: Types<'r, 's>,
    keys: HashMap<DieRef, String>,
    /// Struct that each key stands for, so that another type of the same name gets another key.
    taken: HashMap<String, (DieRef, u64)>,
    members: usize,
    pub(super) layouts: Layouts,
}

impl<'r, 's> Structs<'r, 's> {
    pub(super) fn new(types: Types<'r, 's>) -> Self {
        let (keys, taken) = (HashMap::new(), HashMap::new());
        Self { reader: types.reader, types, keys, taken, members: 0, layouts: Layouts::default() }
    }

    /// Reserves a name for a struct before others that merely contain one of that name are read.
    pub(super) fn reserve(&mut self, name: &str, at: DieRef, size: u64) {
        self.keys.insert(at, name.to_owned());
        self.taken.insert(name.to_owned(), (at, size));
    }

    /// Reads the struct at `at` under the name `key`. `depth` is how many structs hold it by value.
    pub(super) fn read(&mut self, at: DieRef, key: &str, depth: usize) -> Result<(), Error> {
        if self.layouts.structs.contains_key(key) {
            return Ok(());
        }
        if depth >= limits::NESTING || self.layouts.structs.len() >= limits::STRUCTS {
            return Err(self.reader.store.malformed(".debug_info", "too many structs inside structs"));
        }
        let Some(size) = self.reader.entry(at)?.number(dw::DW_AT_byte_size) else { return Ok(()) };
        // Known from here on: a struct that claims to contain itself ends here.
        self.layouts.structs.insert(key.to_owned(), Struct { size, members: Vec::new() });
        let mut members = Vec::new();
        let read = self.members_of(at, 0, key, depth, &mut members);
        if read.is_err() {
            // Half a layout is none.
            self.layouts.structs.remove(key);
        } else if let Some(layout) = self.layouts.structs.get_mut(key) {
            layout.members = members;
        }
        read
    }

    /// Adds the members of the struct at `at`, which lies at `base` in the struct called `key`.
    fn members_of(
        &mut self,
        at: DieRef,
        base: u64,
        key: &str,
        depth: usize,
        out: &mut Vec<Member>,
    ) -> Result<(), Error> {
        if depth >= limits::NESTING {
            return Err(self.reader.store.malformed(".debug_info", "structs inside structs without end"));
        }
        let in_union = self.reader.entry(at)?.tag == dw::DW_TAG_union_type;
        let wanted = |tag| tag == dw::DW_TAG_member || tag == dw::DW_TAG_inheritance;
        for entry in self.reader.children(at, wanted)? {
            self.members += 1;
            if self.members > limits::MEMBERS {
                return Err(self.reader.store.malformed(".debug_info", "too many struct members"));
            }
            let info = self.types.describe(self.reader.type_of(&entry))?;
            let Some((offset, bits)) = self.place(&entry, &info, in_union) else { continue };
            let Some(offset) = base.checked_add(offset) else { continue };
            let name = self.reader.name(&entry).unwrap_or_default();
            match info.aggregate {
                // Members of a base, or of a struct or union without a name, are used as if they were this
                // struct's own.
                Some(inner) if name.is_empty() && info.dims.is_empty() => {
                    self.members_of(inner, offset, key, depth + 1, out)?;
                }
                _ if name.is_empty() => {}
                aggregate => {
                    let Some(field) = field_of(&entry, &info, offset, bits) else { continue };
                    let inner = match aggregate {
                        Some(inner) => self.nested(inner, &format!("{key}.{name}"), depth)?,
                        None => None,
                    };
                    out.push(Member { name: name.to_owned(), field, inner });
                }
            }
        }
        Ok(())
    }

    /// Reads a struct that another one holds by value, and returns its key.
    fn nested(&mut self, at: DieRef, path: &str, depth: usize) -> Result<Option<String>, Error> {
        let key = match self.keys.get(&at) {
            Some(key) => Some(key.clone()),
            None => self.new_key(at, path)?,
        };
        if let Some(key) = &key {
            self.read(at, key, depth + 1)?;
        }
        Ok(key)
    }

    /// Chooses the key for a struct that has none yet: its name, or the path by which it was reached if other
    /// structs have the same name.
    fn new_key(&mut self, at: DieRef, path: &str) -> Result<Option<String>, Error> {
        let entry = self.reader.entry(at)?;
        let Some(size) = entry.number(dw::DW_AT_byte_size) else { return Ok(None) };
        // Each unit has its own copy of a type; in one unit, one name twice means two scopes.
        let is_free = |name: &&str| {
            self.taken.get(*name).is_none_or(|(other, known)| other.unit != at.unit && *known == size)
        };
        let key = self.reader.name(&entry).filter(is_free).unwrap_or(path);
        if key.len() > limits::NAME_BYTES {
            return Ok(None);
        }
        self.keys.insert(at, key.to_owned());
        self.taken.entry(key.to_owned()).or_insert((at, size));
        Ok(Some(key.to_owned()))
    }

    /// Returns where a member begins in its struct, and which bits it has if it is a bit field. `None` for a
    /// static member, and for one whose place has to be computed.
    fn place(&self, entry: &Entry<'s>, info: &TypeInfo, in_union: bool) -> Option<(u64, Option<Bits>)> {
        if entry.flag(dw::DW_AT_external) || entry.flag(dw::DW_AT_declaration) {
            return None;
        }
        let width = entry.number(dw::DW_AT_bit_size);
        if let Some(first) = entry.number(dw::DW_AT_data_bit_offset) {
            return bits_from_start(first, width?, info.size?);
        }
        let stated = entry.value(dw::DW_AT_data_member_location);
        let offset = match stated.map(|value| (value.udata_value(), value.exprloc_value())) {
            // DWARF 2 writes a constant offset as `DW_OP_plus_uconst`.
            Some((_, Some(expression))) => {
                let unit = self.reader.unit(entry.at.unit).ok()?;
                let Operation::PlusConstant { value } = single_operation(unit, expression)? else {
                    return None;
                };
                value
            }
            Some((number, None)) => number?,
            None if in_union || width.is_some() => 0,
            None => return None,
        };
        let Some(width) = width else { return Some((offset, None)) };
        // DWARF 2 and 3 count from the most significant bit of the storage unit; without a count it is bit 0.
        let Some(from_top) = entry.number(dw::DW_AT_bit_offset) else {
            return Some((offset, Some(bits(0, width)?)));
        };
        let storage = entry.number(dw::DW_AT_byte_size).or(info.size)?.checked_mul(8)?;
        Some((offset, Some(bits(storage.checked_sub(from_top)?.checked_sub(width)?, width)?)))
    }
}

fn bits(shift: u64, width: u64) -> Option<Bits> {
    Some(Bits { shift: u32::try_from(shift).ok()?, width: u32::try_from(width).ok()? })
}

/// Returns the storage unit and bits of a field whose bits are counted from the beginning of the struct, as
/// DWARF 4 and 5 do. The storage unit is taken as the compiler would: the aligned one of the declared type
/// that holds the first bit.
fn bits_from_start(first: u64, width: u64, size: u64) -> Option<(u64, Option<Bits>)> {
    let unit = size.checked_mul(8).filter(|bits| *bits > 0)?;
    let shift = first % unit;
    if shift.checked_add(width)? > unit {
        // A packed field that lies across two units: from the byte of its first bit on.
        return Some((first / 8, Some(bits(first % 8, width)?)));
    }
    Some((first / unit * size, Some(bits(shift, width)?)))
}

fn field_of(entry: &Entry<'_>, info: &TypeInfo, offset: u64, bits: Option<Bits>) -> Option<Field> {
    // Only an array may have an unknown size: one of unstated length at the end of a struct.
    let size = match (bits, info.size) {
        (Some(bits), Some(size)) => {
            let needed = u64::from(bits.shift).checked_add(u64::from(bits.width))?.div_ceil(8);
            entry.number(dw::DW_AT_byte_size).unwrap_or(size).max(needed)
        }
        (_, Some(size)) => size,
        (_, None) if !info.dims.is_empty() => 0,
        (_, None) => return None,
    };
    let array = match info.element {
        Some(elem_size) if !info.dims.is_empty() => {
            let count = info.dims.iter().try_fold(1u64, |count, dim| count.checked_mul(*dim))?;
            Some(Array { count, elem_size, dims: info.dims.clone() })
        }
        _ => None,
    };
    Some(Field { offset, size, type_name: info.name.clone(), array, bits })
}

#[cfg(test)]
mod tests {
    use super::{Bits, bits_from_start};

    #[test]
    fn bit_fields_counted_from_the_start() {
        let bits = |shift, width| Some(Bits { shift, width });
        assert_eq!(bits_from_start(768, 8, 4), Some((96, bits(0, 8))));
        assert_eq!(bits_from_start(776, 8, 4), Some((96, bits(8, 8))));
        assert_eq!(bits_from_start(30, 4, 4), Some((3, bits(6, 4))));
        assert_eq!(bits_from_start(3, 2, 0), None);
        assert_eq!(bits_from_start(3, u64::MAX, 4), None);
        assert_eq!(bits_from_start(u64::MAX, 1, 8), Some((u64::MAX / 64 * 8, bits(63, 1))));
    }
}
