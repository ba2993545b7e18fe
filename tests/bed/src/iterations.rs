//! The begin of an iteration, as in a training job: the host prepares the step, the GPU computes, and the
//! collectives come behind that in the same stream.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::call_log;
use crate::emulator::Shared;
use crate::faults::Faults;
use crate::options::Options;
use crate::runtime::stream::Stream;

/// The iterations of one rank.
#[derive(Debug)]
pub(crate) struct Iterations {
    rank: u32,
    compute: Duration,
    faults: Faults,
    log: Option<Arc<File>>,
}

impl Iterations {
    pub(crate) fn new(options: &Options, emulator: &Shared, rank: u32) -> Result<Self> {
        if options.compute_ms > 0.0 {
            emulator.tell(rank);
        }
        let log = options.iteration_log.as_ref().map(|path| {
            let path = format!("{}.rank{rank}", path.display());
            File::create_new(&path).with_context(|| format!("making `{path}`")).map(Arc::new)
        });
        Ok(Self {
            rank,
            compute: Duration::from_secs_f64(options.compute_ms / 1e3),
            faults: Faults::new(options.faults.clone()),
            log: log.transpose()?,
        })
    }

    /// Begins the next iteration: in `stream`, the GPU computes.
    pub(crate) fn begin(&mut self, emulator: &Shared, stream: &Arc<Stream>) -> Result<()> {
        let slowed = self.faults.next(self.rank)?;
        thread::sleep(slowed.pause);
        if self.compute.is_zero() {
            return Ok(());
        }
        let (emulator, rank, log) = (emulator.clone(), self.rank, self.log.clone());
        let time = self.compute.mul_f64(slowed.times);
        stream.submit(Box::new(move || {
            if let Some(mut log) = log.as_deref()
                && let Err(error) = log.write_all(format!("{}\n", call_log::now()).as_bytes())
            {
                crate::say(&format!("the log of iterations: {error}"));
            }
            let _kernel = emulator.compute(rank);
            thread::sleep(time);
        }));
        Ok(())
    }
}
