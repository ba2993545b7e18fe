//! Process groups: their members, and what was enqueued, started and completed last.

use crate::{
    Offsets, Unknown,
    containers::{Fetch, numbers, string, text, vector_place},
    maps::values,
    memory::{Reader, Record},
    offsets::WorkOffsets,
};

/// Most ranks of a group.
const MAX_RANKS: usize = 1 << 20;

/// A process group that torch recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// torch's name, a number or a hash: the same on all ranks.
    pub name: String,
    /// Name that a program gave it; `undefined` if none.
    pub description: String,
    /// Ranks in the job, in the order of the group's own.
    pub ranks: Vec<u64>,
}

/// Latest works of a process group. torch's watchdog writes the started and the completed one, the thread
/// that calls writes the enqueued one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// torch's number of the group in this process: [`Entry::pg_id`](crate::Entry::pg_id).
    pub pg_id: u64,
    pub enqueued: Work,
    /// Work that was started last. Only torch that times its collectives notes it
    /// (`TORCH_NCCL_ENABLE_TIMING`).
    pub started: Work,
    pub completed: Work,
}

/// A work of a process group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of the collective in its group; -1: none yet.
    pub seq: i64,
    /// Name such as `ALLREDUCE`; empty if there is none yet.
    pub name: String,
    /// Elements that go in and come out; `None` if there is no work yet, as torch has set nothing then.
    pub elements_in: Option<u64>,
    pub elements_out: Option<u64>,
}

pub(crate) fn groups(
    reader: &Reader<'_>,
    offsets: &Offsets,
    recorder: &Record,
) -> Result<Vec<Group>, Unknown> {
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
        groups.push(Group {
            name: text(name),
            description: text(description),
            ranks: numbers(ranks, 8).into_iter().map(i64::cast_unsigned).collect(),
        });
    }
    groups.sort_by(|a, b| (&a.name, &a.description).cmp(&(&b.name, &b.description)));
    Ok(groups)
}

const LOST: Unknown = Unknown::Contradiction("what a process group leads to is not there");

pub(crate) fn statuses(
    reader: &Reader<'_>,
    offsets: &Offsets,
    recorder: &Record,
) -> Result<Vec<Status>, Unknown> {
    let (Some(map), Some(layout)) = (offsets.recorder.statuses, &offsets.status) else {
        return Ok(Vec::new());
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
    let mut statuses = Vec::new();
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
        statuses.push(Status {
            pg_id,
            enqueued: work(&layout.enqueued, enqueued)?,
            started: work(&layout.started, started)?,
            completed: work(&layout.completed, completed)?,
        });
    }
    statuses.sort_by_key(|status| status.pg_id);
    Ok(statuses)
}
