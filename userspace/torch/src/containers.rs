//! Strings, vectors and small vectors, as libstdc++ and c10 lay them out. Their layouts are part of
//! libstdc++'s ABI: they have not changed since GCC 5, but for the two kinds of strings.
//!
//! A container's words stand in the struct that has it; its elements may stand elsewhere. So the containers
//! of several structs are first [looked at](Place), and then the elements of all are read at once
//! ([`Fetch`]).

use std::collections::{BTreeSet, HashMap};

use cpython::{Reader, Record};
use flow::text::plain;

use crate::Unknown;

/// Most bytes of a string: names of groups, collectives and threads.
pub(crate) const MAX_STRING: u64 = 4096;

const WRONG_STRING: Unknown = Unknown::Contradiction("a string has an impossible length or place");
const WRONG_VECTOR: Unknown = Unknown::Contradiction("a vector ends before it begins");

/// Place of a container's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Elements within the struct itself.
    Here(Vec<u8>),
    There {
        address: u64,
        bytes: usize,
    },
    /// Characters of a string of the older kind (`_GLIBCXX_USE_CXX11_ABI=0`): its length stands before them.
    Counted(u64),
}

/// Looks at a `std::string` at `offset` of a struct.
pub(crate) fn string(record: &Record, offset: u32, cxx11: bool) -> Result<Place, Unknown> {
    let pointer = record.u64(offset);
    if !cxx11 {
        return if pointer < 4096 { Err(WRONG_STRING) } else { Ok(Place::Counted(pointer)) };
    }
    let length = record.u64(offset + 8);
    let inline = record.address.checked_add(u64::from(offset) + 16);
    if Some(pointer) == inline {
        let bytes = usize::try_from(length).ok().filter(|length| *length < 16);
        let bytes = bytes.and_then(|length| record.slice(offset + 16, length)).ok_or(WRONG_STRING)?;
        return Ok(Place::Here(bytes.to_vec()));
    }
    let capacity = record.u64(offset + 16);
    if pointer == 0 || length > capacity || capacity < 16 {
        return Err(WRONG_STRING);
    }
    if length > MAX_STRING {
        return Err(Unknown::TooMuch("a name is longer than 4,096 bytes"));
    }
    Ok(Place::There { address: pointer, bytes: usize::try_from(length).unwrap_or(0) })
}

/// Looks at a `std::vector` of elements of `size` bytes, at most `most` of them: returns address and number
/// of elements.
pub(crate) fn vector(record: &Record, offset: u32, size: u32, most: usize) -> Result<(u64, usize), Unknown> {
    let [begin, end, limit] = [0, 8, 16].map(|word| record.u64(offset + word));
    let (size, bytes) = (u64::from(size.max(1)), end.wrapping_sub(begin));
    if begin > end || end > limit || (begin == 0) != (end == 0) || bytes % size != 0 {
        return Err(WRONG_VECTOR);
    }
    let count = usize::try_from(bytes / size).unwrap_or(usize::MAX);
    if count > most {
        return Err(Unknown::TooMuch("a list is longer than any real one"));
    }
    Ok((begin, count))
}

/// Looks at a `std::vector` as [`vector`] does: returns a [`Place`].
pub(crate) fn vector_place(record: &Record, offset: u32, size: u32, most: usize) -> Result<Place, Unknown> {
    let (address, count) = vector(record, offset, size, most)?;
    Ok(if count == 0 {
        Place::Here(Vec::new())
    } else {
        Place::There { address, bytes: count * size as usize }
    })
}

/// Looks at a `c10::SmallVector` (c10/util/SmallVector.h): pointer, size and capacity of 32 bits each, then
/// room for the first elements.
pub(crate) fn small_vector(record: &Record, offset: u32, size: u32, most: u32) -> Result<Place, Unknown> {
    let (pointer, count, capacity) = (record.u64(offset), record.u32(offset + 8), record.u32(offset + 12));
    if count > capacity {
        return Err(WRONG_VECTOR);
    }
    if count > most {
        return Err(Unknown::TooMuch("a list of sizes is longer than any real one"));
    }
    let bytes = count as usize * size as usize;
    if Some(pointer) == record.address.checked_add(u64::from(offset) + 16) {
        let here = record.slice(offset + 16, bytes).ok_or(WRONG_VECTOR)?;
        return Ok(Place::Here(here.to_vec()));
    }
    if pointer == 0 {
        return Err(WRONG_VECTOR);
    }
    Ok(if bytes == 0 { Place::Here(Vec::new()) } else { Place::There { address: pointer, bytes } })
}

/// Elements that many structs have elsewhere, read together.
#[derive(Debug, Default)]
pub(crate) struct Fetch(Vec<Place>);

/// Elements that were asked for, as far as they could be read.
pub(crate) type Fetched = Vec<Option<Vec<u8>>>;

impl Fetch {
    /// Asks for the elements at a place. [`Self::all`] has them in the same order.
    pub(crate) fn ask(&mut self, place: Place) {
        self.0.push(place);
    }

    pub(crate) fn all(self, reader: &Reader<'_>) -> Result<Fetched, Unknown> {
        let counted = self.counted(reader)?;
        let there = self.0.iter().filter_map(|place| match place {
            Place::There { address, bytes } => Some((*address, *bytes)),
            _ => None,
        });
        let mut there = reader.gather(&there.collect::<Vec<_>>())?.into_iter();
        let given = self.0.into_iter().map(|place| match place {
            Place::Here(bytes) => Some(bytes),
            Place::There { .. } => there.next().flatten(),
            Place::Counted(pointer) => counted.get(&pointer).cloned().flatten(),
        });
        Ok(given.collect())
    }

    /// Reads strings of the older kind. Many structs share one.
    fn counted(&self, reader: &Reader<'_>) -> Result<HashMap<u64, Option<Vec<u8>>>, Unknown> {
        /// Bytes of length, capacity, and how many share it (`_Rep_base`).
        const HEAD: u64 = 24;
        let pointers: BTreeSet<u64> = self
            .0
            .iter()
            .filter_map(|place| if let Place::Counted(pointer) = place { Some(*pointer) } else { None })
            .collect();
        let heads: Vec<(u64, usize)> = pointers.iter().map(|pointer| (pointer - HEAD, 24)).collect();
        let mut lengths = Vec::new();
        for (pointer, head) in pointers.iter().zip(reader.gather(&heads)?) {
            let Some(head) = head else { continue };
            let head = Record { address: pointer - HEAD, bytes: head };
            let (length, capacity) = (head.u64(0), head.u64(8));
            if length <= capacity && length <= MAX_STRING {
                lengths.push((*pointer, usize::try_from(length).unwrap_or(0)));
            }
        }
        let texts = reader.gather(&lengths)?;
        Ok(lengths.into_iter().map(|(pointer, _)| pointer).zip(texts).collect())
    }
}

/// Reads one string, or vector, alone.
pub(crate) fn alone(reader: &Reader<'_>, place: Place) -> Result<Vec<u8>, Unknown> {
    Fetch(vec![place])
        .all(reader)?
        .pop()
        .flatten()
        .ok_or(Unknown::Contradiction("what a pointer leads to is not there"))
}

/// Makes text of a string's bytes, without what terminals obey.
pub(crate) fn text(bytes: &[u8]) -> String {
    plain(&String::from_utf8_lossy(bytes)).into_owned()
}

/// Splits bytes into numbers of `size` bytes, 4 or 8.
pub(crate) fn numbers(bytes: &[u8], size: u32) -> Vec<i64> {
    if size == 4 {
        bytes.as_chunks::<4>().0.iter().map(|word| i64::from(i32::from_le_bytes(*word))).collect()
    } else {
        bytes.as_chunks::<8>().0.iter().map(|word| i64::from_le_bytes(*word)).collect()
    }
}
