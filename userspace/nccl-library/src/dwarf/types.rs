//! Types: their names, sizes, dimensions.

use std::collections::HashMap;
use std::rc::Rc;

use gimli::AttributeValue;
use gimli::constants as dw;

use super::entry::{DieRef, Entry};
use super::function::TypeClass;
use super::limits;
use super::reader::Reader;
use crate::elf::Error;
use crate::layouts::Enumeration;

#[derive(Clone, Debug, Default)]
pub(super) struct TypeInfo {
    /// Name as a C programmer would write it, qualifiers left out; a `typedef` keeps its name.
    pub(super) name: String,
    /// Bytes; `None` for `void`, functions and types that are only declared.
    pub(super) size: Option<u64>,
    /// Dimensions of an array, outermost first; empty for everything else. A dimension of unstated length is
    /// 0.
    pub(super) dims: Vec<u64>,
    /// Bytes of the innermost element of an array.
    pub(super) element: Option<u64>,
    /// Struct that the type, or its innermost element, is.
    pub(super) aggregate: Option<DieRef>,
    /// Enumeration that the type is.
    pub(super) enumeration: Option<DieRef>,
    /// Class of the type, whatever its size.
    kind: TypeClass,
}

impl TypeInfo {
    pub(super) fn class(&self) -> TypeClass {
        match (self.kind, self.size) {
            (TypeClass::Aggregate, Some(_)) | (TypeClass::Integer | TypeClass::Float, Some(1..=8)) => {
                self.kind
            }
            _ => TypeClass::Other,
        }
    }
}

/// Describes types, each once.
#[derive(Debug)]
pub(super) struct Types<'r, 's> {
    pub(super) reader: &'r Reader<'s>,
    known: HashMap<DieRef, Rc<TypeInfo>>,
}

impl<'r, 's> Types<'r, 's> {
    pub(super) fn new(reader: &'r Reader<'s>) -> Self {
        Self { reader, known: HashMap::new() }
    }

    /// Describes the type at a reference; without one it is `void`.
    pub(super) fn describe(&mut self, at: Option<DieRef>) -> Result<Rc<TypeInfo>, Error> {
        self.describe_nested(at, 0)
    }

    fn describe_nested(&mut self, at: Option<DieRef>, depth: usize) -> Result<Rc<TypeInfo>, Error> {
        let Some(at) = at else {
            return Ok(Rc::new(TypeInfo { name: "void".into(), ..TypeInfo::default() }));
        };
        if let Some(known) = self.known.get(&at) {
            return Ok(Rc::clone(known));
        }
        if depth >= limits::NESTING {
            return Err(self.reader.store.malformed(".debug_info", "types refer to each other without end"));
        }
        let info = Rc::new(self.read(at, depth + 1)?);
        self.known.insert(at, Rc::clone(&info));
        Ok(info)
    }

    fn read(&mut self, at: DieRef, depth: usize) -> Result<TypeInfo, Error> {
        let entry = self.reader.entry(at)?;
        let own_name = self.reader.name(&entry).map(str::to_owned);
        let size = entry.number(dw::DW_AT_byte_size);
        let target = self.reader.type_of(&entry);
        let named = |otherwise: &str| own_name.clone().unwrap_or_else(|| otherwise.to_owned());
        let plain = |name, kind| TypeInfo { name, size, kind, ..TypeInfo::default() };
        Ok(match entry.tag {
            dw::DW_TAG_base_type => {
                let kind = match entry.value(dw::DW_AT_encoding) {
                    Some(AttributeValue::Encoding(dw::DW_ATE_float)) => TypeClass::Float,
                    Some(AttributeValue::Encoding(
                        dw::DW_ATE_address
                        | dw::DW_ATE_boolean
                        | dw::DW_ATE_signed
                        | dw::DW_ATE_signed_char
                        | dw::DW_ATE_unsigned
                        | dw::DW_ATE_unsigned_char
                        | dw::DW_ATE_UTF,
                    )) => TypeClass::Integer,
                    _ => TypeClass::Other,
                };
                plain(named(""), kind)
            }
            dw::DW_TAG_pointer_type | dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type => {
                let mark = match entry.tag {
                    dw::DW_TAG_pointer_type => "*",
                    dw::DW_TAG_reference_type => "&",
                    _ => "&&",
                };
                let pointee = self.describe_nested(target, depth)?;
                let name = cut(format!("{}{mark}", pointee.name));
                let size = size.unwrap_or(self.reader.unit(at.unit)?.address_size().into());
                TypeInfo { size: Some(size), ..plain(name, TypeClass::Integer) }
            }
            dw::DW_TAG_const_type
            | dw::DW_TAG_volatile_type
            | dw::DW_TAG_restrict_type
            | dw::DW_TAG_atomic_type => (*self.describe_nested(target, depth)?).clone(),
            dw::DW_TAG_typedef => {
                let target = self.describe_nested(target, depth)?;
                TypeInfo { name: named(&target.name), ..(*target).clone() }
            }
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type => {
                let what =
                    if entry.tag == dw::DW_TAG_union_type { "<unnamed union>" } else { "<unnamed struct>" };
                let defined = !entry.flag(dw::DW_AT_declaration);
                let (size, aggregate) = (size.filter(|_| defined), defined.then_some(at));
                TypeInfo { size, aggregate, ..plain(named(what), TypeClass::Aggregate) }
            }
            dw::DW_TAG_enumeration_type => {
                let size = match size {
                    Some(size) => Some(size),
                    None => self.describe_nested(target, depth)?.size,
                };
                let plain = plain(named("<unnamed enum>"), TypeClass::Integer);
                TypeInfo { size, enumeration: Some(at), ..plain }
            }
            dw::DW_TAG_array_type => self.read_array(&entry, target, size, depth)?,
            dw::DW_TAG_subroutine_type => TypeInfo { name: "function".into(), ..TypeInfo::default() },
            _ => plain(named("<unknown>"), TypeClass::Other),
        })
    }

    /// Reads the names and values of the enumeration at `at`.
    pub(super) fn enumeration(&mut self, at: DieRef) -> Result<Enumeration, Error> {
        let size = self.describe(Some(at))?.size.unwrap_or(0);
        let mut values = Vec::new();
        for entry in self.reader.children(at, |tag| tag == dw::DW_TAG_enumerator)? {
            // `DW_FORM_dataN` does not tell the sign. A compiler that means a negative value writes
            // `DW_FORM_sdata`, so these are taken as unsigned.
            let value = match entry.value(dw::DW_AT_const_value) {
                Some(AttributeValue::Sdata(value)) => Some(value),
                other => other.and_then(|value| i64::try_from(value.udata_value()?).ok()),
            };
            values.extend(self.reader.name(&entry).map(str::to_owned).zip(value));
        }
        Ok(Enumeration { size, values })
    }

    fn read_array(
        &mut self,
        entry: &Entry<'s>,
        target: Option<DieRef>,
        stated: Option<u64>,
        depth: usize,
    ) -> Result<TypeInfo, Error> {
        let inner = self.describe_nested(target, depth)?;
        let mut dims = Vec::new();
        for dimension in self.reader.children(entry.at, |tag| tag == dw::DW_TAG_subrange_type)? {
            dims.push(length(&dimension).unwrap_or(0));
        }
        let mut name = inner.name.clone();
        // The element may be an array already, through a `typedef`: its brackets come last.
        let place = name.find('[').filter(|_| !inner.dims.is_empty()).unwrap_or(name.len());
        for dim in dims.iter().take(limits::NESTING).rev() {
            name.insert_str(place, &format!("[{dim}]"));
        }
        dims.extend_from_slice(&inner.dims);
        if dims.len() > limits::NESTING {
            return Err(self.reader.store.malformed(".debug_info", "an array has too many dimensions"));
        }
        let element = if inner.dims.is_empty() { inner.size } else { inner.element };
        let count = dims.iter().try_fold(1u64, |count, dim| count.checked_mul(*dim));
        let size = stated.or_else(|| count?.checked_mul(element?));
        let (name, aggregate, kind) = (cut(name), inner.aggregate, TypeClass::Aggregate);
        Ok(TypeInfo { name, size, dims, element, aggregate, kind, ..TypeInfo::default() })
    }
}

/// Returns the number of elements of a dimension; `None` if it is not stated.
fn length(dimension: &Entry<'_>) -> Option<u64> {
    if let Some(count) = dimension.number(dw::DW_AT_count) {
        return Some(count);
    }
    let lowest = dimension.number(dw::DW_AT_lower_bound).unwrap_or(0);
    dimension.number(dw::DW_AT_upper_bound)?.checked_sub(lowest)?.checked_add(1)
}

fn cut(mut name: String) -> String {
    if name.len() > limits::NAME_BYTES {
        let end = (0..=limits::NAME_BYTES).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
        name.truncate(end);
    }
    name
}
