//! The dictionary of interned strings of CPython 3.8 to 3.11, and how it is found.
//!
//! The pointer to it is a variable of one file, `interned` (Objects/unicodeobject.c), which stripped
//! interpreters have no symbol of. Its target is unlike all others of such variables: a dictionary whose keys
//! are strings, and each key its own value.

use std::{collections::BTreeSet, ops::Range};

use crate::{Memory, Offsets};

/// Addresses in a process's memory, of an interpreter's file, that lead to the dictionary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statics {
    /// Address of `PyDict_Type`, which every interpreter exports.
    pub dict_type: u64,
    /// Addresses of the variables that begin as zero.
    pub zeroed: Range<u64>,
}

/// Most bytes of such variables; an interpreter has some 200 KB.
const MAX_BYTES: u64 = 8 << 20;
/// Most variables of different values that can be pointers; an interpreter has some thousand.
const MAX_POINTERS: usize = 32_768;
/// Fewest strings of the dictionary: each interpreter interns several thousand before it runs a program.
const FEWEST_STRINGS: u64 = 256;
const MOST_STRINGS: u64 = 1 << 28;
/// Entries that are compared.
const ENTRIES: usize = 64;

/// Offset of a dictionary's version (`ma_version_tag` of `PyDictObject`, Include/cpython/dictobject.h, 3.6 to
/// 3.11). It is another one after each change, and no two dictionaries ever have the same.
pub const DICT_VERSION: u32 = 24;

/// Offsets in `PyObject` (Include/object.h) and the rest of `PyDictObject`: `ob_type`, `ma_used`, `ma_keys`,
/// `ma_values`. Since before 3.8, to 3.11.
const TYPE: usize = 8;
const USED: usize = 16;
const KEYS: usize = 32;
const VALUES: usize = 40;
const DICT_BYTES: usize = 48;
/// Bytes of `PyDictKeysObject` before its indices, Objects/dict-common.h to 3.10,
/// Include/internal/pycore_dict.h in 3.11.
const KEYS_BYTES: usize = 40;
/// Bits of a string's state that are not 0 if it is interned: `PyASCIIObject`,
/// Include/cpython/unicodeobject.h.
const IS_INTERNED: u64 = 3;

/// Finds the address of the variable `interned`; `None` if it is not found, or not beyond doubt. 3.12 and
/// later intern otherwise.
pub fn interned(offsets: &Offsets, memory: &dyn Memory, statics: &Statics) -> Option<u64> {
    if offsets.version.since(3, 12) {
        return None;
    }
    let bytes = statics.zeroed.end.checked_sub(statics.zeroed.start).filter(|bytes| *bytes <= MAX_BYTES)?;
    let first = statics.zeroed.start.checked_next_multiple_of(8)?;
    let length = usize::try_from(bytes.checked_sub(first - statics.zeroed.start)?).ok()?;
    let variables = memory.copies(&[(first, length)]).pop()??;
    let words = variables.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let in_itself = |at: &u64| statics.zeroed.contains(at);
    // Objects are aligned, and none is on the first page or in the kernel's half.
    let is_pointer = |at: &u64| at.is_multiple_of(8) && (4096..1 << 56).contains(at) && !in_itself(at);
    let pointers: BTreeSet<u64> = words.clone().filter(is_pointer).take(MAX_POINTERS).collect();
    let pieces: Vec<_> = pointers.iter().map(|at| (*at, DICT_BYTES)).collect();
    let copies = memory.copies(&pieces);
    let is_it = |(at, copy): (&u64, &Option<Vec<u8>>)| {
        let dict = copy.as_deref()?;
        let fits = word(dict, TYPE)? == statics.dict_type
            && (FEWEST_STRINGS..MOST_STRINGS).contains(&word(dict, USED)?)
            && word(dict, DICT_VERSION as usize)? != 0
            && word(dict, VALUES)? == 0;
        (fits && maps_strings_to_themselves(offsets, memory, word(dict, KEYS)?)?).then_some(*at)
    };
    let mut found = pointers.iter().zip(&copies).filter_map(is_it);
    let (Some(dict), None) = (found.next(), found.next()) else { return None };
    let mut places = words.enumerate().filter(|(_, value)| *value == dict);
    let (Some((place, _)), None) = (places.next(), places.next()) else { return None };
    first.checked_add(8 * place as u64)
}

/// Tells whether each of the first entries has an interned string as its key, and the same as its value.
fn maps_strings_to_themselves(offsets: &Offsets, memory: &dyn Memory, keys: u64) -> Option<bool> {
    let mut head = [0; KEYS_BYTES];
    memory.read(keys, &mut head).ok()?;
    let (behind_head, index_bytes, key_at) = if offsets.version.since(3, 11) {
        // `dk_log2_index_bytes` and `dk_kind`: `DICT_KEYS_UNICODE` has no hash in its entries.
        let [log2_index_bytes, kind] = [*head.get(9)?, *head.get(10)?];
        (32, 1_u64.checked_shl(log2_index_bytes.into())?, if kind == 1 { 0 } else { 8 })
    } else {
        // `dk_size`; an index takes as many bytes as it needs.
        let size = word(&head, 8)?;
        let bytes_each = match size {
            ..0x100 => 1,
            0x100..0x1_0000 => 2,
            0x1_0000..0x1_0000_0000 => 4,
            _ => return None,
        };
        (40, size.checked_mul(bytes_each)?, 8)
    };
    let entry_bytes = key_at + 16;
    let mut entries = vec![0; entry_bytes * ENTRIES];
    memory.read(keys.checked_add(behind_head)?.checked_add(index_bytes)?, &mut entries).ok()?;
    let mut strings = Vec::new();
    for entry in entries.chunks_exact(entry_bytes) {
        let (key, value) = (word(entry, key_at)?, word(entry, key_at + 8)?);
        if key != value {
            return Some(false);
        }
        // A deleted entry has neither.
        if key != 0 {
            strings.push((key.checked_add(u64::from(offsets.text.state))?, 8));
        }
    }
    let states = memory.copies(&strings);
    let are_interned = states.iter().all(|state| {
        state.as_deref().and_then(|state| word(state, 0)).is_some_and(|state| state & IS_INTERNED != 0)
    });
    Some(are_interned && strings.len() >= ENTRIES / 4)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}
