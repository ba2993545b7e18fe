//! Variables of a frame, as far as their values are plain: texts, numbers, and lists of texts.

use crate::{
    Offsets, Unknown,
    memory::{Reader, add},
    text::string,
};

/// Most variables of a frame that are looked at; CPython has no limit, people have.
const MAX_VARIABLES: usize = 256;
/// Most variables of which the values are read.
const MAX_WANTED: usize = 16;
/// Most elements of a list that are read.
const MAX_ELEMENTS: usize = 8;
/// Bits of a digit of a number (Include/cpython/longintrepr.h; builds with digits of 15 bits are for other
/// machines).
const DIGIT_BITS: u32 = 30;

/// Value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Number(i64),
    /// A list or tuple of texts, and the number of its elements, of which only the first are read.
    Texts(Vec<String>, usize),
}

/// Reads the wanted variables of the frame at `frame`, which runs the code object at `code`, as far as they
/// are set and of a type that is known here.
pub(crate) fn read(
    reader: &Reader<'_>,
    offsets: &Offsets,
    frame: u64,
    code: u64,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<(String, Value)>, Unknown> {
    let names = elements(reader, offsets, reader.u64(code, offsets.code.local_names)?, MAX_VARIABLES)?;
    let (names, _) = names.ok_or(Unknown::Contradiction("the names of variables are no tuple"))?;
    let mut found = Vec::new();
    for (at, name) in (0u32..).zip(names) {
        let name = string(reader, offsets, name)?;
        if !is_wanted(&name) || found.len() >= MAX_WANTED {
            continue;
        }
        let slot = offsets.frame.locals.saturating_add(at.saturating_mul(8));
        let value = reader.u64(frame, slot)? & !offsets.code_tags();
        match value_at(reader, offsets, value) {
            Ok(Some(value)) => found.push((name, value)),
            Err(limit @ Unknown::TooMuch(_)) => return Err(limit),
            // From 3.14 on a number can stand in place of an object.
            Ok(None) | Err(_) => {}
        }
    }
    Ok(found)
}

/// Reads the object at `address`; `None` if there is none, or it is of no type that is known here.
fn value_at(reader: &Reader<'_>, offsets: &Offsets, address: u64) -> Result<Option<Value>, Unknown> {
    if address == 0 {
        return Ok(None);
    }
    Ok(match &*type_of(reader, offsets, address)? {
        b"str" => Some(Value::Text(string(reader, offsets, address)?)),
        b"int" => number(reader, offsets, address)?.map(Value::Number),
        _ => match elements(reader, offsets, address, MAX_ELEMENTS)? {
            None => None,
            Some((elements, length)) => {
                let mut texts = Vec::new();
                for element in elements {
                    if element == 0 || &*type_of(reader, offsets, element)? != b"str" {
                        return Ok(None);
                    }
                    texts.push(string(reader, offsets, element)?);
                }
                Some(Value::Texts(texts, length))
            }
        },
    })
}

/// Reads the name of an object's type, as far as it can be one of those that are known here.
fn type_of(reader: &Reader<'_>, offsets: &Offsets, address: u64) -> Result<Vec<u8>, Unknown> {
    const LONGEST: usize = 5;
    if !address.is_multiple_of(8) {
        return Err(Unknown::Contradiction("a variable is no object"));
    }
    let kind = reader.u64(address, offsets.object.kind)?;
    let name = reader.u64(kind, offsets.object.type_name)?;
    // A short name can be the last of a page.
    let mut read = Vec::new();
    for at in 0..=LONGEST {
        match reader.bytes(name.saturating_add(at as u64), 1)?.first() {
            Some(0) | None => break,
            Some(byte) => read.push(*byte),
        }
    }
    Ok(read)
}

/// Reads the addresses of the first elements of a tuple or list, and how many it has; `None` for any other
/// object.
fn elements(
    reader: &Reader<'_>,
    offsets: &Offsets,
    address: u64,
    max: usize,
) -> Result<Option<(Vec<u64>, usize)>, Unknown> {
    let sequence = &offsets.sequence;
    let items = match &*type_of(reader, offsets, address)? {
        b"tuple" => add(address, sequence.tuple_items)?,
        b"list" => reader.u64(address, sequence.list_items)?,
        _ => return Ok(None),
    };
    let length = usize::try_from(reader.u64(address, sequence.length)?).unwrap_or(usize::MAX);
    let bytes = reader.bytes(items, 8 * length.min(max))?;
    let words = bytes.as_chunks::<8>().0.iter();
    Ok(Some((words.map(|word| u64::from_le_bytes(*word)).collect(), length)))
}

/// Reads a number of at most two digits.
fn number(reader: &Reader<'_>, offsets: &Offsets, address: u64) -> Result<Option<i64>, Unknown> {
    let size = reader.u64(address, offsets.integer.size)?;
    let (digits, is_negative) = if offsets.version.since(3, 12) {
        // Two bits are the sign: 0 positive, 1 zero, 2 negative; one more is a flag.
        (if size & 0b11 == 1 { 0 } else { size >> 3 }, size & 0b11 == 2)
    } else {
        (size.cast_signed().unsigned_abs(), size.cast_signed() < 0)
    };
    let mut value = 0i64;
    for at in (0..digits).rev() {
        if digits > 2 {
            return Ok(None);
        }
        let at = u32::try_from(at).unwrap_or(0);
        let digit = reader.array::<4>(address, offsets.integer.digits.saturating_add(4 * at))?;
        value = (value << DIGIT_BITS) | i64::from(u32::from_le_bytes(digit));
    }
    Ok(Some(if is_negative { -value } else { value }))
}
