//! Recordings of a large job, made of a small one's: for what is meant for fleets, and no machine of ours can
//! run.
//!
//! Of each process of the capture there are as many as are wanted, with process IDs, ranks, neighbours in the
//! ring and times of their own; all the rest is as it was recorded: kinds, sizes and order of calls, how long
//! each message took. The job is run several times, one run after the other, with communicators and processes
//! of its own.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use flow::{
    decode::RecordView,
    model::Sampling,
    wire::{CommunicatorSpans, ProbeKind, Span},
};
use ncclflow::{
    capture::Binding,
    kernel::stream::Batch,
    recording::{RecordingWriter, Session},
    sinks::OutputDir,
};
use ncclflow_common::{LOSS_MARK, RecordHeader};
use serde::Serialize;
use serde_json::{Value, json};

use crate::volume::{Captured, read_capture};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    capture: PathBuf,

    /// Folder for a folder of each host; must not exist
    output: PathBuf,

    #[arg(long, default_value_t = 1024)]
    ranks: u32,

    /// Processes of a host in a run
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    per_host: u32,

    /// How often all of the capture happens
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Fleet {
    hosts: u32,
    records: u64,
    bytes: u64,
}

/// A process of the job that is made.
#[derive(Clone, Copy, Debug)]
struct Place {
    run: u32,
    rank: u32,
    ranks: u32,
    tgid: u32,
    shift_ns: u64,
}

pub(crate) fn run(args: &Args) -> Result<Fleet> {
    let captured = read_capture(&args.capture)?;
    let originals = processes(&captured);
    let copied = u32::try_from(originals.len())?;
    ensure!(
        copied > 0 && args.ranks.is_multiple_of(copied),
        "{} ranks are no multiple of {copied}",
        args.ranks
    );
    let span_ns = span(&captured)?;
    std::fs::create_dir(&args.output)?;
    let mut fleet = Fleet::default();
    for host in 0..args.ranks.div_ceil(args.per_host) {
        let name = format!("node-{host:04}");
        // Every host has been up for another time.
        let up_ns = u64::from(host) * 7_000_000_000;
        let ranks = host * args.per_host..((host + 1) * args.per_host).min(args.ranks);
        let place = |run: u32, rank: u32| Place {
            run,
            rank,
            ranks: args.ranks,
            tgid: 10_000 * (run + 1) + rank,
            // Some ranks are always a little late.
            shift_ns: up_ns + u64::from(run) * span_ns + u64::from(rank % 97) * 1000,
        };
        let pids: Vec<u32> =
            (0..args.runs).flat_map(|run| ranks.clone().map(move |rank| place(run, rank).tgid)).collect();
        let session = session(&captured, &name, up_ns, &pids)?;
        let dir = OutputDir::create(&args.output.join(&name))?;
        let mut writer = RecordingWriter::create(&dir, session.clone())?;
        writer.bind(|known| known.clone_from(&captured.bindings));
        for run in 0..args.runs {
            for block in &captured.blocks {
                let mut batch = Batch::default();
                for record in block.iter().flat_map(|batch| batch.records()) {
                    let Some(header) = RecordHeader::from_bytes(record) else { continue };
                    let Some(original) = originals.get(&header.tgid) else { continue };
                    for rank in ranks.clone().filter(|rank| rank % copied == *original) {
                        batch.push(&rewritten(record, header, &captured.bindings, place(run, rank)));
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
        fleet.hosts += 1;
        fleet.records += totals.records;
        fleet.bytes += totals.bytes;
    }
    Ok(fleet)
}

/// The processes of the capture, numbered by their rank.
fn processes(captured: &Captured) -> BTreeMap<u32, u32> {
    let mut ranks = BTreeMap::new();
    for record in captured.blocks.iter().flatten().flat_map(|batch| batch.records()) {
        let Ok(view) = RecordView::new(record) else { continue };
        let binding = captured.bindings.get(usize::from(view.header.probe));
        if let Some(spans) = binding.and_then(|binding| communicator(&binding.kind))
            && let Ok(rank) = view.int(&spans.rank)
            && let Ok(rank) = u32::try_from(rank)
        {
            ranks.entry(view.header.tgid).or_insert(rank);
        }
    }
    ranks
}

/// How long the capture is, and a second.
fn span(captured: &Captured) -> Result<u64> {
    let records = captured.blocks.iter().flatten().flat_map(|batch| batch.records());
    let times = records
        .filter_map(RecordHeader::from_bytes)
        .filter(|header| header.probe != LOSS_MARK)
        .map(|header| header.ts_ns);
    let (first, last) = times.fold((u64::MAX, 0), |(first, last), at| (first.min(at), last.max(at)));
    Ok(last.checked_sub(first).context("a capture without records")? + 1_000_000_000)
}

/// `session.json` of a host.
fn session(captured: &Captured, host: &str, up_ns: u64, pids: &[u32]) -> Result<Session> {
    let mut report: Value = serde_json::from_str(&captured.session.report)?;
    report["host"] = json!(host);
    report["state"] = json!("complete");
    let clock = &mut report["clock"];
    let number = |value: &Value| value.as_u64().context("a clock without a time");
    clock["offset_ns"] = json!(number(&clock["offset_ns"])?.saturating_sub(up_ns));
    clock["started_monotonic_ns"] = json!(number(&clock["started_monotonic_ns"])? + up_ns);
    report["targets"] = pids.iter().map(|pid| json!({"pid": pid, "job": {"name": "4711"}})).collect();
    let steps = captured.bindings.iter().any(|binding| matches!(binding.kind, ProbeKind::ProxyStep(_)));
    Ok(Session {
        report: serde_json::to_string(&report)?,
        host: Some(host.to_owned()),
        steps,
        sampling: Sampling::default(),
        ..captured.session.clone()
    })
}

fn communicator(kind: &ProbeKind) -> Option<&CommunicatorSpans> {
    match kind {
        ProbeKind::Plan(spans) => Some(&spans.comm),
        ProbeKind::ProxyOp(spans) => Some(&spans.comm),
        ProbeKind::ApiCall(spans) => Some(&spans.comm),
        ProbeKind::ApiLine(spans) => Some(&spans.comm),
        _ => None,
    }
}

/// The record as that process would have sent it.
fn rewritten(record: &[u8], header: RecordHeader, bindings: &[Binding], place: Place) -> Vec<u8> {
    let Place { run, rank, ranks, tgid, shift_ns } = place;
    let mut record = record.to_vec();
    let header = RecordHeader {
        tgid,
        tid: header.tid.wrapping_sub(header.tgid).wrapping_add(tgid),
        ts_ns: header.ts_ns + shift_ns,
        // Hits are counted by CPU: each process has its own here.
        cpu: header.cpu + 64 * (rank + ranks * run),
        ..header
    };
    record[..RecordHeader::SIZE].copy_from_slice(&header.to_bytes());
    let (before, after) = ((rank + ranks - 1) % ranks, (rank + 1) % ranks);
    let Some(binding) = bindings.get(usize::from(header.probe)) else { return record };
    if let Some(spans) = communicator(&binding.kind) {
        put(&mut record, spans.rank, rank);
        put(&mut record, spans.n_ranks, ranks);
        if let Some(byte) = spans.hash.and_then(|hash| record.get_mut(usize::from(hash.at))) {
            // Another communicator in each run, the same on all hosts.
            *byte = byte.wrapping_add(u8::try_from(run % 256).unwrap_or(0));
        }
    }
    match &binding.kind {
        ProbeKind::Channel(spans) => {
            for (span, value) in spans.ring.iter().zip([before, after, rank]) {
                put(&mut record, *span, value);
            }
        }
        ProbeKind::ProxyOp(spans) => {
            for (span, value) in spans.ring.iter().zip([before, after, rank]) {
                put(&mut record, *span, value);
            }
        }
        ProbeKind::Connectors(spans) => {
            for connector in &spans.connectors {
                put(&mut record, connector.peer, if connector.sends { after } else { before });
            }
        }
        _ => {}
    }
    record
}

/// A 32-bit number of the target's.
fn put(record: &mut [u8], span: Span, value: u32) {
    let at = usize::from(span.at);
    if let Some(place) = record.get_mut(at..at + 4).filter(|_| span.len == 4) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}
