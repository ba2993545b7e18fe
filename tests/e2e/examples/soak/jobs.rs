//! Whole jobs on the bed, one after the other. Their data is compared with what it must be.

use std::{collections::BTreeSet, fs, path::Path, time::Instant};

use anyhow::{Result, bail};
use ncclflow_e2e::harness::bed::Bed;

use super::ledger::{Ledger, Slot};

const RANKS: u64 = 2;
const ITERATIONS: u64 = 20;

#[derive(Debug, Default)]
pub(crate) struct Jobs {
    pub(crate) right: u64,
    pub(crate) failed: Vec<String>,
    /// Processes of all of them.
    pub(crate) pids: BTreeSet<u32>,
    number: u64,
}

impl Jobs {
    /// One job after the other, until it is time.
    pub(crate) fn run(&mut self, bed: &Path, library: &Path, folder: &Path, ledger: &Ledger, until: Instant) {
        while Instant::now() < until {
            self.number += 1;
            let place = folder.join(self.number.to_string());
            let mode = if self.number.is_multiple_of(2) { "threads" } else { "processes" };
            match self.one(bed, library, &place, mode, ledger) {
                Ok(()) => self.right += 1,
                Err(error) => self.failed.push(format!("{mode}: {error:#}")),
            }
            let _ = fs::remove_dir_all(&place);
            std::thread::sleep(std::time::Duration::from_secs(4).min(until - Instant::now().min(until)));
        }
    }

    fn one(&mut self, bed: &Path, library: &Path, place: &Path, mode: &str, ledger: &Ledger) -> Result<()> {
        let workload = format!("--mode {mode} --iters {ITERATIONS} --bytes 4096 --channels 1 --sync");
        let mut bed = Bed::of_words(bed, library, place, &workload)?;
        self.pids.extend(bed.ready.pids.iter().copied());
        // Each rank calls once an iteration. If the job fails, its calls are begun and not ended.
        ledger.add(Slot::Begun, RANKS * ITERATIONS);
        bed.go()?;
        let (status, summary) = bed.finish()?;
        if !summary.ok || !status.success() {
            bail!("{status}: {summary:?}");
        }
        ledger.add(Slot::Ended, RANKS * ITERATIONS);
        Ok(())
    }
}
