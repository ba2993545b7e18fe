//! What a recording's job counts: how it goes on when it happens again.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Result, ensure};
use flow::{
    decode::{Event, PlanPart},
    wire::{PlanList, ProbeKind},
};

use crate::recorded::{Recorded, bound};

/// From the first count that was seen until behind the last one.
#[derive(Clone, Copy, Debug)]
struct Counted {
    first: u64,
    end: u64,
}

impl Counted {
    const NONE: Self = Self { first: u64::MAX, end: 0 };

    fn note(&mut self, first: u64, count: u64) {
        self.first = self.first.min(first);
        self.end = self.end.max(first.saturating_add(count));
    }

    fn count(self) -> u64 {
        self.end.saturating_sub(self.first)
    }
}

/// How far the job has come at the end of the recording.
#[derive(Debug)]
pub(super) struct Job {
    /// How long the recording is, and a second.
    pub(super) span_ns: u64,
    /// Of a rank, on all communicators.
    pub(super) collectives: u64,
    /// By communicator: collectives that NCCL counts on it.
    launched: HashMap<Option<u64>, Counted>,
    /// `collOpCount` and the largest of `p2pOpCount`, from which final opCounts follow.
    posted: [Counted; 2],
    /// When a process had launched so many collectives.
    launches: Vec<(u64, u64)>,
    /// When the last record was made.
    pub(super) last_ns: u64,
}

impl Job {
    pub(super) fn of(recorded: &Recorded) -> Result<Self> {
        let mut job = Self {
            span_ns: 0,
            collectives: 0,
            launched: HashMap::new(),
            posted: [Counted::NONE; 2],
            launches: Vec::new(),
            last_ns: 0,
        };
        let (mut first_ns, mut of_processes) = (u64::MAX, BTreeMap::<u32, u64>::new());
        // Ops that were recorded call by call, and name their peers elsewhere.
        let mut has_calls = false;
        for (view, binding) in recorded.records().filter_map(|record| bound(&recorded.bindings, record)) {
            let at_ns = view.header.ts_ns;
            (first_ns, job.last_ns) = (first_ns.min(at_ns), job.last_ns.max(at_ns));
            has_calls |= matches!(binding.kind, ProbeKind::ProxyOp(_));
            let Ok(event) = binding.decoder.decode(&binding.kind, &view) else { continue };
            let [collectives, p2p] = &mut job.posted;
            match event {
                Event::Plan(plan) if !plan.in_callback => {
                    let tasks = plan.nodes.iter().find(|(list, ..)| *list == PlanList::CollTasks);
                    let tasks = tasks.map_or(0, |(_, nodes, _)| *nodes);
                    if let Some(launched) = plan.comm.launched {
                        job.launched.entry(plan.comm.hash).or_insert(Counted::NONE).note(launched, tasks);
                    }
                    let of_process = of_processes.entry(plan.origin.tgid).or_default();
                    *of_process += tasks;
                    job.launches.push((at_ns, *of_process));
                }
                Event::PlanPart(part) => {
                    if let PlanPart::OpCounts(counts) = part.part {
                        collectives.note(counts.collectives, 1);
                        counts.p2p.iter().for_each(|count| p2p.note(*count, 1));
                    }
                }
                Event::ProxyStep(step) => {
                    let counted = if step.op_count % 2 == 0 { collectives } else { p2p };
                    counted.note(step.op_count / 2, 1);
                }
                _ => {}
            }
        }
        ensure!(!has_calls, "only recordings of whole plans (NCCL 2.23 and later) are made larger");
        job.collectives = job.launched.values().map(|launched| launched.count()).sum();
        ensure!(job.last_ns > 0, "a recording without records");
        job.span_ns = job.last_ns - first_ns + 1_000_000_000;
        Ok(job)
    }

    /// How often the recording happens until every rank has so many collectives, and when the last time is over, by
    /// the recording's own clock.
    pub(super) fn runs(&self, collectives: u64) -> Result<(u32, u64)> {
        if collectives <= self.collectives && self.collectives == collectives {
            return Ok((1, self.last_ns));
        }
        ensure!(self.collectives > 0, "a recording without collectives cannot go on");
        let before = (collectives - 1) / self.collectives;
        let left = collectives - before * self.collectives;
        let reached = self.launches.iter().find(|(_, launched)| *launched >= left);
        let until_ns = reached.map_or(self.last_ns, |(at_ns, _)| *at_ns);
        Ok((u32::try_from(before)? + 1, until_ns))
    }

    /// What NCCL has counted on the communicator in one time.
    pub(super) fn launched(&self, hash: Option<u64>) -> u64 {
        self.launched.get(&hash).map_or(0, |launched| launched.count())
    }

    /// Collectives and batches of sends and receives that were posted in one time.
    pub(super) fn posted(&self) -> [u64; 2] {
        self.posted.map(Counted::count)
    }
}
