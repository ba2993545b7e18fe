//! Recordings of a large job, made of a small one's: for what is meant for fleets, and no machine of ours can
//! run.
//!
//! Of each process of the recording there are as many as are wanted, with process IDs, ranks, neighbours in the
//! ring, peers of sends and receives, and times of their own. The recording happens again and again, in the same
//! processes and on the same communicators, until every rank has run as many collectives as are wanted: NCCL's
//! counts go on, and so do the clocks. All the rest is as it was recorded: kinds, sizes and order of calls, how
//! long each message took. Trees stay those of the recording.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result, ensure};
use flow::{
    model::Sampling,
    recording::{Batch, Session},
    wire::ProbeKind,
};
use ncclflow_common::RecordHeader;
use recording::{format::RecordingWriter, sinks::OutputDir};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    job::Job,
    rewrite::{Place, communicator, rewritten},
};
use crate::recorded::{Recorded, bound};

/// How large a job is to be.
#[derive(Debug)]
pub(crate) struct Size {
    pub(crate) ranks: u32,
    /// Processes of a host.
    pub(crate) per_host: u32,
    /// Collectives of each rank, on all its communicators; without it, those of the recording.
    pub(crate) collectives: Option<u64>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Fleet {
    /// That of each host.
    #[serde(skip)]
    pub(crate) folders: Vec<PathBuf>,
    hosts: u32,
    /// Of each rank.
    collectives: u64,
    records: u64,
    bytes: u64,
}

/// Makes a large job of a recording, with a folder for each host in `output`, which must not exist. `keeps`:
/// whether a rank has this record, by the recording's own header. `later`: by how much (ns) a rank does later what it
/// did at this time of the recording.
pub(crate) fn make(
    recorded: &Recorded,
    output: &Path,
    size: &Size,
    keeps: impl Fn(u32, RecordHeader) -> bool,
    later: impl Fn(u32, u64) -> u64,
) -> Result<Fleet> {
    let all = size.ranks;
    let originals = processes(recorded);
    let copied = u32::try_from(originals.len())?;
    ensure!(copied > 0 && all.is_multiple_of(copied), "{all} ranks are no multiple of {copied}");
    let job = Job::of(recorded)?;
    let collectives = size.collectives.unwrap_or(job.collectives);
    let (runs, until_ns) = job.runs(collectives)?;
    // As long as the recording's session was still open.
    let open_ns = open_ns(recorded, &job)?;
    std::fs::create_dir(output)?;
    let mut fleet = Fleet { collectives, ..Fleet::default() };
    for host in 0..all.div_ceil(size.per_host) {
        let name = format!("node-{host:04}");
        // Every host has been up for another time.
        let up_ns = u64::from(host) * 7_000_000_000;
        let ranks = host * size.per_host..((host + 1) * size.per_host).min(all);
        let place = |run: u32, original: u32, rank: u32| Place {
            run,
            original,
            rank,
            ranks: all,
            tgid: 10_000 + rank,
            // Some ranks are always a little late.
            shift_ns: up_ns + u64::from(run) * job.span_ns + u64::from(rank % 97) * 1000,
        };
        let pids: Vec<u32> = ranks.clone().map(|rank| place(0, 0, rank).tgid).collect();
        let latest_ns = until_ns + ranks.clone().map(|rank| later(rank, until_ns)).max().unwrap_or(0);
        let ended_ns = latest_ns + up_ns + u64::from(runs - 1) * job.span_ns + open_ns;
        let session = session(recorded, &name, up_ns, ended_ns, &pids)?;
        let folder = output.join(&name);
        let dir = OutputDir::create(&folder)?;
        let mut writer = RecordingWriter::create(&dir, session.clone())?;
        writer.bind(|known| known.clone_from(&recorded.bindings));
        for run in 0..runs {
            for block in &recorded.blocks {
                let mut batch = Batch::default();
                for record in block.iter().flat_map(|batch| batch.records()) {
                    let Some(header) = RecordHeader::from_bytes(record) else { continue };
                    let Some(original) = originals.get(&header.tgid) else { continue };
                    if run + 1 == runs && header.ts_ns > until_ns {
                        continue;
                    }
                    let copies = ranks.clone().filter(|rank| rank % copied == *original);
                    for rank in copies.filter(|rank| keeps(*rank, header)) {
                        let mut place = place(run, *original, rank);
                        place.shift_ns += later(rank, header.ts_ns);
                        batch.push(&rewritten(record, header, &recorded.bindings, place, &job));
                        if batch.is_full() {
                            writer.push(&Arc::new(std::mem::take(&mut batch)))?;
                        }
                    }
                }
                writer.push(&Arc::new(batch))?;
                writer.close_block()?;
            }
        }
        let totals = writer.totals();
        writer.write_end(&session.report)?;
        fleet.folders.push(folder);
        fleet.hosts += 1;
        fleet.records += totals.records;
        fleet.bytes += totals.bytes;
    }
    Ok(fleet)
}

/// The processes of the recording, numbered by their rank.
fn processes(recorded: &Recorded) -> BTreeMap<u32, u32> {
    let mut ranks = BTreeMap::new();
    for (view, binding) in recorded.records().filter_map(|record| bound(&recorded.bindings, record)) {
        if let Some(spans) = communicator(&binding.kind)
            && let Ok(rank) = view.int(&spans.rank)
            && let Ok(rank) = u32::try_from(rank)
        {
            ranks.entry(view.header.tgid).or_insert(rank);
        }
    }
    ranks
}

/// How long the session was open after its last record; a millisecond at least.
fn open_ns(recorded: &Recorded, job: &Job) -> Result<u64> {
    let report: Value = serde_json::from_str(&recorded.session.report)?;
    let ended = report["clock"]["ended_monotonic_ns"].as_u64().unwrap_or(0);
    Ok(ended.saturating_sub(job.last_ns).max(1_000_000))
}

/// `session.json` of a host.
fn session(recorded: &Recorded, host: &str, up_ns: u64, ended_ns: u64, pids: &[u32]) -> Result<Session> {
    let mut report: Value = serde_json::from_str(&recorded.session.report)?;
    report["host"] = json!(host);
    report["state"] = json!("complete");
    let clock = &mut report["clock"];
    let number = |value: &Value| value.as_u64().context("a clock without a time");
    clock["offset_ns"] = json!(number(&clock["offset_ns"])?.saturating_sub(up_ns));
    clock["started_monotonic_ns"] = json!(number(&clock["started_monotonic_ns"])? + up_ns);
    clock["ended_monotonic_ns"] = json!(ended_ns);
    report["targets"] = pids.iter().map(|pid| json!({"pid": pid, "job": {"name": "4711"}})).collect();
    let steps = recorded.bindings.iter().any(|binding| matches!(binding.kind, ProbeKind::ProxyStep(_)));
    Ok(Session {
        report: serde_json::to_string(&report)?,
        host: Some(host.to_owned()),
        steps,
        sampling: Sampling::default(),
        ..recorded.session.clone()
    })
}
