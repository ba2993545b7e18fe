//! Jobs that the programs are tried on.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::Result;

use crate::job::Job;

/// Two jobs of two ranks each, which run until this is dropped.
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
        let start = |more: &str, states: &[&str]| {
            let fixed = "--mode processes --ranks 2 --bytes 4096 --sync --channels 1 --timeout 3000";
            let arguments = fixed.split(' ').chain(more.split(' ')).chain(states.iter().copied());
            Job::start(programs, library, &arguments.collect::<Vec<_>>(), Stdio::inherit())
        };
        Ok(Self {
            running: start("--iters 1000000 --interval-ms 20", &[])?,
            hung: start("--iters 8 --absent 1@3", &["--gpu-states", &states])?,
            gpu_states,
        })
    }
}
