//! Large jobs with a host that launches each iteration late, made of the recording of a small one without a
//! fault: later by so much is what the host does, and, from iteration to iteration, what all others do.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use ncclflow_common::RecordHeader;
use serde_json::Value;

use super::{
    draw::{Fault, FaultKind, Truth, percent, random},
    traced,
    trial::check,
};
use crate::{
    fleet::{PER_HOST, Size, make},
    recorded::Recorded,
};

/// The job that larger ones are made of.
const JOB: &str = "none";

/// A recording, and the times between its iterations.
pub(super) struct Fleets {
    recorded: Recorded,
    between_ns: Vec<u64>,
    pub(super) iteration_ms: f64,
}

/// A large job's fault, and what is true of it.
pub(super) struct Large {
    pub(super) fault: Fault,
    pub(super) truth: Truth,
    pub(super) check: Value,
}

impl Fleets {
    pub(super) fn read(traces: &Path) -> Result<Self> {
        let job = traces.join(JOB);
        let recorded = Recorded::read(&job.join("recording"))?;
        let iteration_ms = traced::iteration_ms(&job)?;
        let headers = || recorded.records().filter_map(RecordHeader::from_bytes);
        let of = headers().next().context("no record")?.tgid;
        let mut times: Vec<u64> =
            headers().filter(|header| header.tgid == of).map(|header| header.ts_ns).collect();
        times.sort_unstable();
        // All of an iteration's launches come at its beginning.
        let gap = std::time::Duration::from_secs_f64(iteration_ms / 2e3);
        let gaps = times.windows(2).filter(|pair| u128::from(pair[1] - pair[0]) > gap.as_nanos());
        let between_ns = gaps.map(|pair| u64::midpoint(pair[0], pair[1])).collect();
        Ok(Self { recorded, between_ns, iteration_ms })
    }

    /// Makes a job of so many ranks in a folder that is not there, and has it checked.
    pub(super) fn run(
        &self,
        ncclflow: &Path,
        folder: &Path,
        ranks: u32,
        [seed, run]: [u64; 2],
    ) -> Result<Large> {
        let mut random = random(seed, run);
        let is_healthy = random.below(4) == 0;
        let kind = if is_healthy { FaultKind::None } else { FaultKind::Host };
        let rank = u32::try_from(random.number() % u64::from(ranks))?;
        let percent = if is_healthy { 0.0 } else { percent(&mut random, 2.0) };
        let fault = Fault { kind, rank, percent, every: 1 };
        let late = std::time::Duration::from_secs_f64(self.iteration_ms * percent / 1e5);
        let late_ns = u64::try_from(late.as_nanos())?;
        let later = |of: u32, at_ns: u64| {
            let iterations = self.between_ns.partition_point(|between_ns| *between_ns <= at_ns) as u64;
            late_ns * (iterations + u64::from(of == rank))
        };
        let size = Size { ranks, per_host: PER_HOST, collectives: None };
        let made = make(&self.recorded, folder, &size, |_, _| true, later)?;
        let folders: Vec<PathBuf> = made.folders;
        Ok(Large { truth: fault.truth(ranks), fault, check: check(ncclflow, &folders)? })
    }
}
