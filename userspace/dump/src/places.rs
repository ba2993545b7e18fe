//! Several fields of one struct, looked up and read at once.

use inspect::memory::{Memory, ReadError};
use nccl_library::{
    elf::RuntimeAddr,
    fields::{FieldRef, IntField, MissingField, unsigned},
    layouts::Layouts,
};

/// A field, and whether every version has it.
pub(super) type Wanted = (FieldRef, bool);

/// Offsets of fields; `None` for one that this version does not have.
pub(super) type Places<const N: usize> = [Option<IntField>; N];

pub(super) fn find<const N: usize>(
    fields: [Wanted; N],
    layouts: &Layouts,
) -> Result<Places<N>, MissingField> {
    let places = fields.map(|(field, _)| field.find_int(layouts));
    let mut missing =
        fields.iter().zip(&places).filter(|((_, is_needed), place)| *is_needed && place.is_none());
    missing.next().map_or(Ok(places), |((field, _), _)| Err(field.missing()))
}

/// Reads the values of fields of the struct at `base`.
pub(super) fn read<const N: usize>(
    memory: Memory<'_>,
    base: u64,
    places: Places<N>,
) -> Result<[Option<u64>; N], ReadError> {
    let address = |place: &IntField| RuntimeAddr(base.saturating_add(place.offset()));
    let pieces: Vec<_> = places.iter().flatten().map(|place| (address(place), place.size())).collect();
    let bytes = memory.gather(&pieces)?;
    let mut rest = bytes.as_slice();
    Ok(places.map(|place| {
        let (value, tail) = rest.split_at_checked(place?.size())?;
        rest = tail;
        unsigned(value)
    }))
}

/// Reads the values of fields of many structs, each at its base, with as few reads as possible. `None` for a
/// struct of which a field cannot be read.
pub(super) fn read_each<const N: usize>(
    memory: Memory<'_>,
    structs: &[(u64, Places<N>)],
) -> Result<Vec<Option<[Option<u64>; N]>>, ReadError> {
    let fields = |(base, places): &(u64, Places<N>)| {
        let base = *base;
        places
            .map(|place| place.map(|place| (RuntimeAddr(base.saturating_add(place.offset())), place.size())))
    };
    let pieces: Vec<_> = structs.iter().flat_map(fields).flatten().collect();
    let mut copies = memory.copies(&pieces)?.into_iter();
    let mut values = |(_, places): &(u64, Places<N>)| {
        let mut is_whole = true;
        let values = places.map(|place| {
            let copy = place.and_then(|_| copies.next())?;
            is_whole &= copy.is_some();
            unsigned(&copy?)
        });
        is_whole.then_some(values)
    };
    Ok(structs.iter().map(&mut values).collect())
}

pub(super) fn read_one(memory: Memory<'_>, base: u64, place: Option<IntField>) -> Option<u64> {
    let [value] = read(memory, base, [place]).ok()?;
    value
}
