//! Jobs that the programs are tried on.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::job::Job;

/// Two jobs of two ranks each, which begin at one word and run until this is dropped.
#[derive(Debug)]
pub(super) struct Jobs {
    /// Job that runs small collectives, one after the other.
    pub(super) running: Job,
    /// Job whose last rank does not come to the fourth operation.
    pub(super) hung: Job,
    /// File with the states of the second job's GPUs, for the NVML double.
    pub(super) gpu_states: PathBuf,
}

impl Jobs {
    pub(super) fn start(programs: &Path, library: &Path, scratch: &Path) -> Result<Self> {
        let gpu_states = scratch.join("gpu-states");
        let states = gpu_states.display().to_string();
        let go = scratch.join("go");
        let start = |more: &str, states: &[&str]| {
            let fixed = "--mode processes --ranks 2 --bytes 4096 --sync --channels 1 --timeout 3000";
            let arguments = fixed.split(' ').chain(more.split(' ')).chain(states.iter().copied());
            Job::start(programs, library, go.clone(), &arguments.collect::<Vec<_>>())
        };
        let running = start("--iters 1000000 --interval-ms 20", &[])?;
        let hung = start("--iters 8 --absent 1@3", &["--gpu-states", &states])?;
        running.go()?;
        Ok(Self { running, hung, gpu_states })
    }
}
