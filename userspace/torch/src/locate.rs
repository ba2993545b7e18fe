//! The search for rings.
//!
//! `FlightRecorder<…>::get()` keeps a pointer to its ring in a variable of its own, which no wheel exports:
//! torch is built with hidden inline functions, and stripped of other symbols (2.15's FlightRecorder.hpp says
//! so, too). But such a variable stands in the part of a library's data that begins as zeros (`.bss`). So
//! each word there that can be a pointer is followed, and its target is a ring if all of its fields and maps
//! can be one's.
//!
//! 2.15 keeps more rings, one for each backend without its own, in a `std::unordered_map` in libtorch_cpu.so
//! (`getFlightRecorder`, FlightRecorder.cpp): such tables are looked for in the same place. `nccl` of 2.15 is
//! such a backend.

use std::collections::BTreeSet;

use cpython::{Memory, Reader, Record};

use crate::{
    Offsets, Patience, Unknown,
    containers::{alone, string},
    maps::{TABLE_BYTES, table, table_nodes},
    recorder::head,
};

/// A ring that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Address of the ring's struct.
    pub address: u64,
    /// Backend that a table names: `nccl2`.
    pub backend: Option<String>,
}

/// Most bytes of data that are searched; libtorch_cuda.so of 2.15 has 15 MB.
const MAX_DATA: u64 = 64 << 20;
/// Words after which the time limit is checked.
const WORDS_AT_ONCE: usize = 1 << 16;
/// Most pointers that are followed.
const MAX_CANDIDATES: usize = 1 << 19;
/// Candidates whose bytes are kept at a time.
const CANDIDATES_AT_ONCE: usize = 1024;
/// Most tables that are taken apart.
const MAX_TABLES: usize = 256;
/// Most rings of one library.
const MAX_RINGS: usize = 16;

/// Reason for which a torch that is loaded has no notes.
pub const NO_RECORDER: Unknown = Unknown::NotThere(
    "it has no flight recorder: no process group was made yet, or torch was built in another way",
);

const NO_ELF: Unknown = Unknown::Contradiction("a library of torch does not begin as one");

/// Finds the rings of a library, which begins at `base`. `may_be_data` tells whether the process has its own
/// data at an address; it spares reading elsewhere.
pub fn find(
    memory: &dyn Memory,
    base: u64,
    offsets: &Offsets,
    may_be_data: &dyn Fn(u64) -> bool,
    patience: Patience,
) -> Result<Vec<Found>, Unknown> {
    let reader = patience.reader(memory);
    let mut pointers = BTreeSet::new();
    let mut tables = Vec::new();
    for (start, length) in zeroed(&reader, base)? {
        // Parts of it may not be readable any more; the rest still counts.
        let Ok(bytes) = reader.bytes(start, length) else { continue };
        for (number, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            if number % WORDS_AT_ONCE == 0 {
                reader.has_time()?;
            }
            let value = u64::from_le_bytes(*word);
            if value < 4096 || !value.is_multiple_of(8) || value >= 1 << 56 || !may_be_data(value) {
                continue;
            }
            // malloc aligns to 16 bytes.
            if value.is_multiple_of(16) && pointers.len() < MAX_CANDIDATES {
                pointers.insert(value);
            }
            if offsets.recorder.rank.is_some()
                && tables.len() < MAX_TABLES
                && let Some(found) = bytes.get(8 * number..8 * number + TABLE_BYTES).and_then(table)
            {
                tables.push(found);
            }
        }
    }
    let mut found = rings(&reader, offsets, &pointers.into_iter().collect::<Vec<u64>>())?;
    for (first, count) in tables {
        let Ok(nodes) = table_nodes(&reader, first, count) else { continue };
        for (node, value) in nodes {
            let Some(backend) = backend(&reader, &node, offsets) else { continue };
            let known = found.iter().any(|found| found.address == value);
            if !known && !rings(&reader, offsets, &[value])?.is_empty() && found.len() < MAX_RINGS {
                found.push(Found { address: value, backend: Some(backend) });
            }
        }
    }
    Ok(found)
}

/// Reads the key of a table's node.
fn backend(reader: &Reader<'_>, node: &Record, offsets: &Offsets) -> Option<String> {
    let name = String::from_utf8(alone(reader, string(node, 8, offsets.cxx11).ok()?).ok()?).ok()?;
    let is_name = !name.is_empty() && name.len() <= 64 && name.chars().all(|c| c.is_ascii_graphic());
    is_name.then_some(name)
}

/// Returns the rings among the candidates.
fn rings(reader: &Reader<'_>, offsets: &Offsets, candidates: &[u64]) -> Result<Vec<Found>, Unknown> {
    let mut found = Vec::new();
    let size = offsets.recorder.size as usize;
    for candidates in candidates.chunks(CANDIDATES_AT_ONCE) {
        let pieces: Vec<(u64, usize)> = candidates.iter().map(|address| (*address, size)).collect();
        for (address, bytes) in candidates.iter().zip(reader.gather(&pieces)?) {
            let Some(bytes) = bytes else { continue };
            let is_ring = head(offsets, &Record { address: *address, bytes }).is_some();
            if is_ring && found.len() < MAX_RINGS {
                found.push(Found { address: *address, backend: None });
            }
        }
    }
    Ok(found)
}

/// Finds the parts of a library that begin as zeros, by its program headers in memory: address and bytes of
/// each.
fn zeroed(reader: &Reader<'_>, base: u64) -> Result<Vec<(u64, usize)>, Unknown> {
    const HEADER: u32 = 64;
    const PROGRAM_HEADER: u32 = 56;
    const PT_LOAD: u32 = 1;
    const PF_W: u32 = 2;
    let header = reader.record(base, HEADER)?;
    // Magic, 64 bits, little-endian.
    if header.bytes.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err(NO_ELF);
    }
    let (at, size) = (header.u64(32), header.u32(54) & 0xffff);
    let count = header.u32(56) & 0xffff;
    if size != PROGRAM_HEADER || count > 64 || at > 1 << 20 {
        return Err(NO_ELF);
    }
    let headers = reader.record(base.checked_add(at).ok_or(NO_ELF)?, size * count)?;
    let (mut parts, mut first, mut left) = (Vec::new(), None, MAX_DATA);
    for number in 0..count {
        let at = number * size;
        let (kind, flags) = (headers.u32(at), headers.u32(at + 4));
        let [virtual_address, in_file, in_memory] = [16, 32, 40].map(|word| headers.u64(at + word));
        if kind != PT_LOAD {
            continue;
        }
        // The first one begins at the library's first byte.
        let begin = *first.get_or_insert(virtual_address & !0xfff);
        if flags & PF_W == 0 || in_memory <= in_file {
            continue;
        }
        let zeros = (in_memory - in_file).min(left);
        left -= zeros;
        let start = virtual_address.wrapping_sub(begin).wrapping_add(in_file).wrapping_add(base);
        let end = start.saturating_add(zeros) & !7;
        if let Some(start) = start.checked_next_multiple_of(8)
            && start < end
        {
            parts.push((start, usize::try_from(end - start).unwrap_or(0)));
        }
    }
    Ok(parts)
}
