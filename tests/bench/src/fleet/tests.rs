//! A small fleet, of the beginning of a recording: `check` finds what was put into it, and nothing else.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use analysis::check::{CheckReport, FindingKind, check};
use anyhow::{Context as _, Result};
use flow::{
    decode::{Event, PlanPart},
    recording::Batch,
};
use ncclflow_common::RecordHeader;
use serde_json::{Value, json};

use super::{RECORDING, Size, make};
use crate::recorded::{Recorded, event_of};

const S: u64 = 1_000_000_000;

/// The recording until its processes do nothing for 2 ms: 16 sends of each rank. Both have launched the same.
const QUIET_NS: u64 = 55_155_000_000;

/// The beginning of the recording, in a session that was open for two more seconds before it and after: so no
/// send can have its receive outside.
fn beginning() -> Result<Recorded> {
    let mut recorded = Recorded::read(Path::new(RECORDING))?;
    let mut batch = Batch::default();
    let early =
        |record: &&[u8]| RecordHeader::from_bytes(record).is_some_and(|header| header.ts_ns < QUIET_NS);
    recorded.records().filter(early).for_each(|record| batch.push(record));
    recorded.blocks = vec![vec![Arc::new(batch)]];
    let mut report: Value = serde_json::from_str(&recorded.session.report)?;
    let clock = &mut report["clock"];
    let started = clock["started_monotonic_ns"].as_u64().context("no beginning")?;
    clock["started_monotonic_ns"] = json!(started - 2 * S);
    clock["ended_monotonic_ns"] = json!(QUIET_NS + 2 * S);
    recorded.session.report = serde_json::to_string(&report)?;
    Ok(recorded)
}

/// `check` of a fleet of two hosts.
fn checked(
    recorded: &Recorded,
    ranks: u32,
    keeps: impl Fn(u32, RecordHeader) -> bool,
) -> Result<CheckReport> {
    let folder = tempfile::tempdir()?;
    let size = Size { ranks, per_host: ranks / 2, collectives: None };
    let fleet = make(recorded, &folder.path().join("fleet"), &size, keeps, |_, _| 0)?;
    assert_eq!(fleet.folders.len(), 2);
    check(&fleet.folders, &mut |_, _| ())
}

/// Findings, but for what the recording itself has: its GPUs are behind at any time, with messages on their way.
fn found(report: &CheckReport) -> Vec<(FindingKind, Vec<i32>)> {
    let all = report.communicators.iter().flat_map(|communicator| &communicator.findings);
    all.filter(|finding| finding.kind != FindingKind::Unfinished)
        .map(|finding| (finding.kind, finding.ranks.clone()))
        .collect()
}

/// When rank 1 of the recording sent to rank 0: threads and times of these launches.
fn sends(recorded: &Recorded) -> Vec<(u32, u64)> {
    let mut threads = BTreeMap::new();
    for record in recorded.records() {
        if let Some(Event::PlanPart(part)) = event_of(&recorded.bindings, record)
            && let PlanPart::P2pTask(task) = part.part
            && task.function.as_deref() == Some("Send")
            && task.peer == 0
        {
            threads.insert(part.origin.ts_ns, part.origin.tid);
        }
    }
    threads.into_iter().map(|(ts_ns, tid)| (tid, ts_ns)).collect()
}

#[test]
fn a_fleet_is_consistent() -> Result<()> {
    let recorded = beginning()?;
    let (recording, report) = (checked(&recorded, 2, |_, _| true)?, checked(&recorded, 4, |_, _| true)?);
    assert_eq!((found(&recording), found(&report)), (vec![], vec![]));
    // Twice as many ranks have twice as many ops with messages, and these end as in the recording.
    for (of_2, of_4) in recording.communicators.iter().zip(&report.communicators) {
        let twice: BTreeMap<_, _> = of_2.measured.iter().map(|(outcome, ops)| (*outcome, 2 * ops)).collect();
        assert_eq!((of_4.collectives, &of_4.measured), (of_2.collectives, &twice));
    }
    let most = report.communicators.iter().max_by_key(|of| of.collectives).context("no communicator")?;
    assert_eq!((most.n_ranks, &most.ranks[..]), (4, &[0, 1, 2, 3][..]));
    // All messages go around the ring: from the rank before, and to the one after.
    for waits in &most.verdict.ranks {
        let of = |waits: &BTreeMap<i32, u64>| waits.keys().copied().collect::<Vec<_>>();
        assert_eq!(of(&waits.for_data_ns), [(waits.rank + 3) % 4], "{waits:?}");
        assert_eq!(of(&waits.in_network_ns), [(waits.rank + 1) % 4], "{waits:?}");
    }
    Ok(())
}

#[test]
fn a_send_that_is_missing_is_found() -> Result<()> {
    let recorded = beginning()?;
    let (tid, ts_ns) = *sends(&recorded).get(7).context("too few sends")?;
    // NCCL launched the send together with a receive.
    let report =
        checked(&recorded, 4, |rank, header| rank != 1 || (header.tid, header.ts_ns) != (tid, ts_ns))?;
    let unmatched = [(FindingKind::UnmatchedSend, vec![0, 1]), (FindingKind::UnmatchedRecv, vec![1, 2])];
    assert_eq!(found(&report), unmatched);
    Ok(())
}
