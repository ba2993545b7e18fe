//! Process groups: their members, and what was enqueued, started and completed last.

use std::collections::BTreeMap;

use cpython::{Reader, Record};

use crate::{
    Offsets, Unknown,
    containers::{Fetch, numbers, string, text, vector_place},
    flight_recorder::{GroupStatus, ProcessGroup, Work},
    maps::values,
    offsets::WorkOffsets,
};

/// Most ranks of a group.
const MAX_RANKS: usize = 1 << 20;

/// Reads the groups. Their numbers and status are not known yet.
pub(crate) fn groups(
    reader: &Reader<'_>,
    offsets: &Offsets,
    recorder: &Record,
) -> Result<Vec<ProcessGroup>, Unknown> {
    let layout = &offsets.group;
    let mut fetch = Fetch::default();
    let found = values(reader, recorder, offsets.recorder.groups, layout.size)?;
    for group in &found {
        fetch.ask(string(group, layout.name, offsets.cxx11)?);
        fetch.ask(string(group, layout.description, offsets.cxx11)?);
        fetch.ask(vector_place(group, layout.ranks, 8, MAX_RANKS)?);
    }
    let fetched = fetch.all(reader)?;
    let mut groups = Vec::new();
    for parts in fetched.as_chunks::<3>().0 {
        let [Some(name), Some(description), Some(ranks)] = parts else { return Err(LOST) };
        groups.push(ProcessGroup {
            name: text(name).into(),
            description: text(description).into(),
            ranks: numbers(ranks, 8).into_iter().map(i64::cast_unsigned).collect(),
            ..ProcessGroup::default()
        });
    }
    groups.sort_by(|a, b| (&a.name, &a.description).cmp(&(&b.name, &b.description)));
    Ok(groups)
}

const LOST: Unknown = Unknown::Contradiction("what a process group leads to is not there");

/// Reads the latest works of process groups, by torch's number of the group in this process. torch's watchdog
/// writes the started and the completed one, the thread that calls writes the enqueued one. Only torch that
/// times its collectives notes the started one (`TORCH_NCCL_ENABLE_TIMING`).
pub(crate) fn statuses(
    reader: &Reader<'_>,
    offsets: &Offsets,
    recorder: &Record,
) -> Result<BTreeMap<u64, GroupStatus>, Unknown> {
    let (Some(map), Some(layout)) = (offsets.recorder.statuses, &offsets.status) else {
        return Ok(BTreeMap::new());
    };
    // The values are a number and a shared pointer.
    let found = values(reader, recorder, map, 24)?;
    let pieces: Vec<(u64, usize)> = found.iter().map(|pair| (pair.u64(8), layout.size as usize)).collect();
    let mut fetch = Fetch::default();
    let mut records = Vec::new();
    for (pair, bytes) in found.iter().zip(reader.gather(&pieces)?) {
        let record = Record { address: pair.u64(8), bytes: bytes.ok_or(LOST)? };
        for work in [&layout.enqueued, &layout.started, &layout.completed] {
            fetch.ask(string(&record, work.name, offsets.cxx11)?);
        }
        records.push((pair.u64(0), record));
    }
    let names = fetch.all(reader)?;
    let mut statuses = BTreeMap::new();
    for ((pg_id, record), names) in records.into_iter().zip(names.as_chunks::<3>().0) {
        let work = |layout: &WorkOffsets, name: &Option<Vec<u8>>| {
            let seq = record.i64(layout.seq);
            // A name is written after its number, and may be replaced while it is read.
            let name = name.as_deref().map(text).unwrap_or_default();
            let elements = |at: Option<u32>| at.filter(|_| seq >= 0).map(|at| record.u64(at));
            let (elements_in, elements_out) = (elements(layout.elements_in), elements(layout.elements_out));
            if seq < -1 {
                return Err(Unknown::Contradiction("a work has a negative number"));
            }
            Ok(Work { seq, name, elements_in, elements_out })
        };
        let [enqueued, started, completed] = names;
        let status = GroupStatus {
            last_enqueued: work(&layout.enqueued, enqueued)?,
            last_started: work(&layout.started, started)?,
            last_completed: work(&layout.completed, completed)?,
        };
        // Of two of one number the first counts.
        statuses.entry(pg_id).or_insert(status);
    }
    Ok(statuses)
}
