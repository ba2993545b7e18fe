//! The begin of an iteration, as in a training job: the host prepares the step, the GPU computes, and the
//! collectives come behind that in the same stream.

use std::fs::File;
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::call_log;
use crate::emulator::Shared;
use crate::faults::Faults;
use crate::options::Options;
use crate::runtime::{lock, stream::Stream};

/// The iterations of one rank.
#[derive(Debug)]
pub(crate) struct Iterations {
    rank: u32,
    compute: Duration,
    /// What holds for the host when it prepares an iteration, and for the GPU when it begins one.
    faults: [Arc<Mutex<Faults>>; 2],
    log: Option<Arc<File>>,
}

impl Iterations {
    pub(crate) fn new(options: &Options, emulator: &Shared, rank: u32) -> Result<Self> {
        if options.compute_ms > 0.0 {
            emulator.counts(rank);
        }
        let log = options.iteration_log.as_ref().map(|path| {
            let path = format!("{}.rank{rank}", path.display());
            File::create_new(&path).with_context(|| format!("making `{path}`")).map(Arc::new)
        });
        Ok(Self {
            rank,
            compute: Duration::from_secs_f64(options.compute_ms / 1e3),
            faults: std::array::from_fn(|_| Arc::new(Mutex::new(Faults::new(options.faults.clone())))),
            log: log.transpose()?,
        })
    }

    /// Begins the next iteration: in `stream`, the GPU computes.
    pub(crate) fn begin(&mut self, emulator: &Shared, stream: &Arc<Stream>) -> Result<()> {
        let [of_host, of_gpu] = self.faults.each_ref();
        thread::sleep(lock(of_host).next(self.rank)?.pause);
        if self.compute.is_zero() {
            return Ok(());
        }
        let (emulator, rank, log) = (emulator.clone(), self.rank, self.log.clone());
        let (faults, compute) = (Arc::clone(of_gpu), self.compute);
        stream.submit(Box::new(move || {
            if let Some(mut log) = log.as_deref()
                && let Err(error) = log.write_all(format!("{}\n", call_log::now()).as_bytes())
            {
                crate::say(&format!("the log of iterations: {error}"));
            }
            let slowed = lock(&faults).next(rank);
            let times = slowed.map_or_else(
                |error| {
                    crate::say(&format!("faults: {error:#}"));
                    1.0
                },
                |slowed| slowed.times,
            );
            let time = compute.mul_f64(times);
            let _kernel = emulator.compute(rank, time);
            thread::sleep(time);
        }));
        Ok(())
    }
}
