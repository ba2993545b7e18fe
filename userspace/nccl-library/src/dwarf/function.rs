//! Functions: the parameters of a concrete copy, and the declared ones of a function without one.

use gimli::constants as dw;

use super::entry::{DieRef, Entry};
use super::location;
use super::reader::Reader;
use super::types::Types;
use crate::elf::Error;
use crate::parameter::ParamLocation;

/// Class of a type in the eyes of a calling convention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TypeClass {
    /// Integers, pointers, references, enumerations and `bool` of at most 8 bytes.
    Integer,
    /// Floating point of at most 8 bytes.
    Float,
    /// Struct, class, union or array of a known size.
    Aggregate,
    #[default]
    Other,
}

/// A parameter as it is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredParam {
    /// Name; empty if there is none.
    pub name: String,
    /// Type without `const` and the like.
    pub type_name: String,
    pub size: Option<u64>,
    pub class: TypeClass,
}

/// Returns the parameters of the concrete function at `function`, which begins at the address `entry`, and
/// their locations there.
pub(super) fn entry_params<'s>(
    reader: &Reader<'s>,
    types: &mut Types<'_, 's>,
    function: DieRef,
    entry: u64,
) -> Result<Vec<(DeclaredParam, ParamLocation)>, Error> {
    // Without a frame base, only what is on the stack is lost.
    let base = location::frame_base(reader, &reader.entry(function)?, entry);
    let params = formal_parameters(reader, function)?;
    let param = |param: &Entry<'s>| {
        Ok((declared(reader, types, param)?, location::at_entry(reader, param, base, entry)))
    };
    params.iter().map(param).collect()
}

/// Returns the parameters that the declaration at `function` states.
pub(super) fn declared_params<'s>(
    reader: &Reader<'s>,
    types: &mut Types<'_, 's>,
    function: DieRef,
) -> Result<Vec<DeclaredParam>, Error> {
    formal_parameters(reader, function)?.iter().map(|param| declared(reader, types, param)).collect()
}

fn formal_parameters<'s>(reader: &Reader<'s>, function: DieRef) -> Result<Vec<Entry<'s>>, Error> {
    reader.children(function, |tag| tag == dw::DW_TAG_formal_parameter)
}

fn declared<'s>(
    reader: &Reader<'s>,
    types: &mut Types<'_, 's>,
    param: &Entry<'s>,
) -> Result<DeclaredParam, Error> {
    let name = reader.inherited(param, dw::DW_AT_name);
    let name = name.and_then(|(at, value)| reader.string(at.unit, &value)).unwrap_or_default();
    let kind = reader.inherited(param, dw::DW_AT_type);
    let kind = types.describe(kind.and_then(|(at, value)| reader.follow(at.unit, &value)))?;
    let (type_name, size, class) = (kind.name.clone(), kind.size, kind.class());
    Ok(DeclaredParam { name: name.to_owned(), type_name, size, class })
}
