//! How often the kernel has run a process's BPF programs, by the kernel's own count.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, ensure};
use aya::{
    programs::{ProgramFd, loaded_programs},
    sys::{Stats, enable_stats},
};

use super::kernel_objects;

/// Counts runs while it exists. To be made before the programs run.
#[derive(Debug)]
pub struct RunCounts {
    ids: Vec<u32>,
    /// They keep the programs from vanishing with their process.
    _programs: Vec<ProgramFd>,
    _counting: OwnedFd,
}

impl RunCounts {
    /// Of the programs that the process holds.
    pub fn of_process(pid: u32) -> Result<Self> {
        let counting = enable_stats(Stats::RunTime).context("asking the kernel to count")?;
        let wanted = kernel_objects::of_process(pid)?.programs;
        let (mut ids, mut programs) = (Vec::new(), Vec::new());
        // Others' can vanish while they are listed.
        for program in loaded_programs().filter_map(Result::ok) {
            if wanted.contains(&program.id()) {
                ids.push(program.id());
                programs.push(program.fd().context("opening a BPF program")?);
            }
        }
        Ok(Self { ids, _programs: programs, _counting: counting })
    }

    /// Runs until now.
    pub fn total(&self) -> Result<u64> {
        let (mut total, mut seen) = (0, 0);
        for program in loaded_programs().filter_map(Result::ok) {
            if self.ids.contains(&program.id()) {
                (total, seen) = (total + program.run_count(), seen + 1);
            }
        }
        ensure!(seen == self.ids.len(), "{seen} of {} BPF programs are listed", self.ids.len());
        Ok(total)
    }
}
