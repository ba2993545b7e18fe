//! The ring as a whole.

use std::{collections::HashMap, sync::Arc};

use cpython::{Memory, Python, Reader, Record};
use serde::{Deserialize, Serialize};

use crate::{
    Offsets, Patience, Unknown,
    containers::{Fetch, alone, string, text, vector},
    entry,
    flight_recorder::{Entry, ProcessGroup},
    maps::is_map,
    status,
    traceback::{self, Names},
};

/// Most entries of a ring; 2,000 are usual.
pub const MAX_ENTRIES: usize = 65_536;
/// Most readings until the ring stands still for a moment.
const MAX_READINGS: usize = 4;
/// Bytes of an entry that no real one exceeds: 2.11 has 616.
const MAX_ENTRY: u32 = 4096;

/// A ring of torch's flight recorder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RingReport {
    /// Backend: `nccl`, `nccl2`, `gloo`; by the names of its entries, or by torch's own table.
    pub backend: Option<String>,
    /// torch takes notes in this ring. If not, there are no entries, and no more than that is known.
    pub enabled: bool,
    pub max_entries: u64,
    /// Number of entries so far, also those that were overwritten (torch 2.10 and later: since the ring was
    /// reset).
    pub recorded: u64,
    /// NCCL's version, as torch has it: `2.28.9` (2.8 and later).
    pub library_version: Option<String>,
    /// Number of entries that were overwritten while they were read, and are left out.
    pub torn: usize,
    /// Unix time in ns of the latest start or completion that torch's watchdog has noticed: the states of
    /// entries are of that time.
    pub noticed_ns: Option<i64>,
    /// The process's rank in the job, where torch has noted it (2.15 and later).
    pub rank: Option<u32>,
    pub groups: Vec<ProcessGroup>,
    /// Latest entries, oldest first.
    pub entries: Vec<Entry>,
}

const NO_RING: Unknown = Unknown::Contradiction("what should be a flight recorder cannot be one");
const MOVES: Unknown = Unknown::Contradiction("the flight recorder changed each time it was read");

/// Words of a ring that say where its entries are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    enabled: bool,
    begin: u64,
    count: usize,
    pub(crate) max_entries: u64,
    id: u64,
    epoch: u64,
}

/// Takes apart what may be a ring. Everything in it has to be possible: so other memory, other layouts and
/// rings that are not constructed yet are told from one.
pub(crate) fn head(offsets: &Offsets, record: &Record) -> Option<Head> {
    let layout = &offsets.recorder;
    let enabled = record.bool(layout.enabled)?;
    record.bool(layout.capture_cpp_stack)?;
    let (begin, count) = vector(record, layout.entries, offsets.entry.size, MAX_ENTRIES).ok()?;
    let [max_entries, next, id] = [layout.max_entries, layout.next, layout.id].map(|at| record.u64(at));
    let epoch = layout.reset_epoch.map_or(0, |at| record.u64(at));
    let most = MAX_ENTRIES as u64;
    // A ring begins to overwrite at its end. Before 2.10 `next` stays 0 until then.
    let fits = enabled == (max_entries > 0)
        && max_entries <= most
        && count as u64 <= max_entries
        && (next < max_entries || next == 0)
        && (next == 0 || next <= count as u64)
        && (epoch > 0 || id >= count as u64)
        && (epoch > 0 || id <= max_entries || count as u64 == max_entries)
        && offsets.entry.size <= MAX_ENTRY
        && is_mutex(record, layout.mutex)
        && is_map(record, layout.groups)
        && layout.statuses.is_none_or(|at| is_map(record, at));
    fits.then_some(Head { enabled, begin, count, max_entries, id, epoch })
}

/// Tells whether a `std::mutex` is there, by the `pthread_mutex_t` that it begins with (glibc,
/// sysdeps/x86/nptl/bits/struct_mutex.h): free or taken, of the plain kind, in no list.
fn is_mutex(record: &Record, offset: u32) -> bool {
    let [lock, count, _owner, users, kind, _spins] =
        [0, 4, 8, 12, 16, 20].map(|word| record.u32(offset + word));
    lock <= 2
        && count <= 1
        && users <= 1
        && kind == 0
        && record.u64(offset + 24) == 0
        && record.u64(offset + 32) == 0
}

/// Reads the ring at `address`. With `python`, the interpreter of the process, frames have names.
///
/// # Errors
/// When it is no ring, or one that never stands still.
pub fn read(
    memory: &dyn Memory,
    address: u64,
    offsets: &Offsets,
    python: Option<Python>,
    patience: Patience,
) -> Result<RingReport, Unknown> {
    let reader = patience.reader(memory);
    let mut result = Err(MOVES);
    for _ in 0..MAX_READINGS {
        result = read_once(&reader, address, offsets, python);
        if !matches!(result, Err(Unknown::Contradiction(_) | Unknown::Unreadable(_))) {
            break;
        }
    }
    result
}

fn read_once(
    reader: &Reader<'_>,
    address: u64,
    offsets: &Offsets,
    python: Option<Python>,
) -> Result<RingReport, Unknown> {
    let layout = &offsets.recorder;
    let record = reader.record(address, layout.size)?;
    let head = head(offsets, &record).ok_or(NO_RING)?;
    let mut groups = status::groups(reader, offsets, &record)?;
    let statuses = status::statuses(reader, offsets, &record)?;
    let library_version = match layout.library_version {
        Some(at) => Some(alone(reader, string(&record, at, offsets.cxx11)?)?).map(|bytes| text(&bytes)),
        None => None,
    };
    let rank = layout.rank.and_then(|at| u32::try_from(record.i32(at)).ok());
    let (entries, torn) = entries(reader, address, offsets, head, python)?;
    // Numbers of groups, as entries tell them.
    let numbers: HashMap<_, u64> =
        entries.iter().map(|entry| (entry.process_group.clone(), entry.pg_id)).collect();
    for group in &mut groups {
        group.pg_id = numbers.get(&[&group.name, &group.description].map(Arc::clone)).copied();
        group.status = group.pg_id.and_then(|id| statuses.get(&id).cloned());
    }
    let named = entries.last().and_then(|entry| entry.profiling_name.split_once(':'));
    let noticed = |entry: &Entry| entry.time_discovered_completed_ns.max(entry.time_discovered_started_ns);
    Ok(RingReport {
        backend: named.map(|(backend, _)| backend.to_owned()),
        enabled: head.enabled,
        max_entries: head.max_entries,
        recorded: head.id,
        library_version: library_version.filter(|version| !version.is_empty()),
        torn,
        noticed_ns: entries.iter().filter_map(noticed).max(),
        rank,
        groups,
        entries,
    })
}

/// Reads the structs of all entries, by place in the ring.
fn structs(reader: &Reader<'_>, offsets: &Offsets, head: Head) -> Result<Vec<Record>, Unknown> {
    let size = offsets.entry.size as usize;
    let bytes = reader.bytes(head.begin, head.count * size)?;
    let record = |(number, bytes): (usize, &[u8])| Record {
        address: head.begin.wrapping_add((number * size) as u64),
        bytes: bytes.to_vec(),
    };
    Ok(bytes.chunks_exact(size.max(1)).enumerate().map(record).collect())
}

/// Reads the entries, oldest first, and counts those that were overwritten while they were read.
///
/// The structs are read before and after everything that they lead to. A struct that has not changed owned
/// that all the time, and so did one whose state alone has changed.
fn entries(
    reader: &Reader<'_>,
    address: u64,
    offsets: &Offsets,
    head: Head,
    python: Option<Python>,
) -> Result<(Vec<Entry>, usize), Unknown> {
    if head.count == 0 {
        return Ok((Vec::new(), 0));
    }
    let layout = &offsets.entry;
    let before = structs(reader, offsets, head)?;
    let (mut fetch, mut wrong) = (Fetch::default(), HashMap::new());
    let mut asked = Vec::new();
    for (place, record) in before.iter().enumerate() {
        match entry::ask(&mut fetch, offsets, record) {
            Ok(()) => asked.push(place),
            Err(why) => _ = wrong.insert(place, why),
        }
    }
    let fetched = fetch.all(reader)?;
    let tracebacks: Vec<u64> =
        before.iter().map(|record| record.u64(layout.traceback)).filter(|at| *at != 0).collect();
    let tracebacks = match python {
        Some(_) => traceback::read(reader, offsets, &tracebacks)?,
        None => HashMap::new(),
    };
    let mut stacks = python.map(|python| Names::new(reader.memory(), python));
    let after = structs(reader, offsets, head)?;
    let record = reader.record(address, offsets.recorder.size)?;
    let now = self::head(offsets, &record).ok_or(NO_RING)?;
    // The vector grew into another place, or the ring was reset: the entries that were read were freed, or
    // are of another time.
    if (now.begin, now.epoch, now.max_entries) != (head.begin, head.epoch, head.max_entries) {
        return Err(MOVES);
    }

    let (mut found, mut names): (Vec<Entry>, _) = (Vec::new(), entry::Names::new());
    let (mut torn, mut shift) = (0, None);
    let mut numbers: HashMap<usize, usize> =
        asked.iter().enumerate().map(|(at, place)| (*place, at)).collect();
    for (place, (old, new)) in before.iter().zip(&after).enumerate() {
        let same_entry = [layout.id, layout.time_created].iter().all(|at| old.u64(*at) == new.u64(*at))
            && layout.reset_epoch.is_none_or(|at| old.u64(at) == new.u64(at));
        if !same_entry {
            torn += 1;
            continue;
        }
        if layout.reset_epoch.is_some_and(|at| old.u64(at) != head.epoch) {
            continue;
        }
        if let Some(why) = wrong.remove(&place) {
            return Err(why);
        }
        let parts = numbers.remove(&place).and_then(|number| entry::parts(&fetched, number)).ok_or(MOVES)?;
        let mut entry = entry::entry(offsets, new, parts, &mut names)?;
        // Where an entry stands follows from its number.
        let here = (place as u64 + head.max_entries).checked_sub(entry.record_id % head.max_entries);
        let here = here.ok_or(NO_RING)? % head.max_entries;
        if *shift.get_or_insert(here) != here || entry.record_id >= now.id {
            return Err(Unknown::Contradiction("the entries of the ring are not in their order"));
        }
        if let (Some(stacks), Some(raw)) = (&mut stacks, tracebacks.get(&old.u64(layout.traceback))) {
            entry.frames = stacks.of(raw);
        }
        found.push(entry);
    }
    found.sort_by_key(|entry| entry.record_id);
    if head.epoch == 0 && offsets.recorder.reset_epoch.is_none() && shift.is_some_and(|shift| shift != 0) {
        return Err(Unknown::Contradiction("the entries of the ring are not in their order"));
    }
    Ok((found, torn))
}
