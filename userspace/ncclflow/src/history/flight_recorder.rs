//! The history as files of torch's flight recorder, as each process would have dumped them itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use anyhow::{Result, bail};

use super::report::{HistoryReport, ProcessHistory};
use crate::{
    flight_recorder::{Entry, Frame, GroupStatus, ProcessGroup, RankFiles, State},
    python::PythonFrame,
    torch_notes::{EntryReport, ProcessGroupReport, RingReport},
};

/// Writes a file for each rank, named by `prefix` and the rank in the job. Returns the ranks that were
/// written.
///
/// # Errors
/// No process has notes; one that has notes has no rank; two have the same rank; a file cannot be made or
/// written.
pub fn write_flight_recorder(report: &HistoryReport, prefix: &Path) -> Result<Vec<u64>> {
    let mut chosen: Vec<(u64, &RingReport)> = Vec::new();
    let mut ranks = BTreeSet::new();
    for process in &report.processes {
        let Some(ring) = ring(process) else { continue };
        let Some(rank) = process.rank else {
            bail!(
                "the rank of process {} in its job is not known, and torch's files are named by it: set \
                 RANK where the job is started",
                process.pid
            );
        };
        if !ranks.insert(rank) {
            bail!("two processes are rank {rank}: they are of two jobs; choose those of one with -p");
        }
        chosen.push((rank, ring));
    }
    if chosen.is_empty() {
        bail!("no process has a flight recorder of torch's to write");
    }
    let files = RankFiles::at(prefix)?;
    for (rank, ring) in chosen {
        let mut file = files.create(rank)?;
        let mut stacks = Stacks::default();
        for entry in &ring.entries {
            file.writer.entry(&of(entry, &mut stacks))?;
        }
        file.finish(&groups(ring), ring.library_version.as_deref())?;
    }
    Ok(ranks.into_iter().collect())
}

/// Returns the ring of NCCL's collectives: torch writes no other into these files.
fn ring(process: &ProcessHistory) -> Option<&RingReport> {
    let rings = process.notes.iter().flat_map(|notes| &notes.rings);
    rings
        .filter(|ring| ring.enabled && ring.backend.as_deref() != Some("gloo"))
        .max_by_key(|ring| ring.entries.len())
}

fn groups(ring: &RingReport) -> Vec<ProcessGroup> {
    let of = |group: &ProcessGroupReport| ProcessGroup {
        id: group.pg_id.unwrap_or_default(),
        name: (*group.name).into(),
        desc: (*group.description).into(),
        ranks: group.ranks.clone(),
        status: group.status.as_ref().map(|status| GroupStatus {
            last_enqueued: status.last_enqueued.seq,
            last_started: status.last_started.seq,
            last_completed: status.last_completed.seq,
        }),
    };
    ring.groups.iter().map(of).collect()
}

/// Stacks by their address in the report: entries share them.
type Stacks = BTreeMap<usize, Arc<[Frame]>>;

fn of(entry: &EntryReport, stacks: &mut Stacks) -> Entry {
    let time = |at: Option<i64>| at.and_then(|at| u64::try_from(at).ok());
    let frames = entry.frames.as_ref().map(|frames| {
        let known = stacks.entry(frames.as_ptr().addr());
        Arc::clone(known.or_insert_with(|| frames.iter().map(frame).collect()))
    });
    let [name, description] = &entry.process_group;
    Entry {
        record_id: entry.record_id,
        pg_id: entry.pg_id,
        process_group: (Arc::clone(name), Arc::clone(description)),
        collective_seq_id: entry.collective_seq_id,
        p2p_seq_id: entry.p2p_seq_id,
        op_id: entry.op_id,
        profiling_name: entry.profiling_name.clone(),
        time_created_ns: u64::try_from(entry.time_created_ns).unwrap_or(0),
        duration_ms: entry.duration_ms.map(f64::from),
        input_sizes: entry.input_sizes.clone(),
        input_dtypes: entry.input_dtypes.clone(),
        output_sizes: entry.output_sizes.clone(),
        output_dtypes: entry.output_dtypes.clone(),
        state: match &*entry.state {
            "completed" => State::Completed,
            "started" => State::Started,
            _ => State::Scheduled,
        },
        time_discovered_started_ns: time(entry.time_discovered_started_ns),
        time_discovered_completed_ns: time(entry.time_discovered_completed_ns),
        retired: entry.retired,
        timeout_ms: entry.timeout_ms,
        is_p2p: entry.is_p2p,
        thread_id: entry.thread_id.map(|id| id.to_string()),
        thread_name: entry.thread_name.clone(),
        frames,
    }
}

fn frame(frame: &PythonFrame) -> Frame {
    Frame { name: frame.function.clone(), filename: frame.file.clone(), line: frame.line.unwrap_or(0) }
}
