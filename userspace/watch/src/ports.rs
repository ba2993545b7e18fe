//! Ports of network adapters for RDMA, read again and again by a thread that can be lost; nobody waits for it.

use std::{
    io,
    path::Path,
    sync::mpsc::{self, Receiver, SyncSender},
    thread,
    time::{Duration, Instant},
};

use inspect::{
    adapters::{self, ADAPTERS, Port},
    privileges,
};
use rustix::thread::CapabilitySet;

/// Time between two readings.
const PERIOD: Duration = Duration::from_secs(2);
/// Time without a reading after which the thread is said to be lost.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Ports {
    readings: Receiver<Vec<Port>>,
    latest: Option<Vec<Port>>,
    at: Instant,
}

impl Ports {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start() -> io::Result<Self> {
        let (tell, readings) = mpsc::sync_channel(1);
        thread::Builder::new().name("ncclflow-ports".to_owned()).spawn(move || {
            privileges::keep_only(CapabilitySet::empty());
            read_on(Path::new(ADAPTERS), &tell);
        })?;
        Ok(Self { readings, latest: None, at: Instant::now() })
    }

    /// Returns the latest reading. `None`: there is none, or none for long.
    pub(crate) fn latest(&mut self) -> Option<Vec<Port>> {
        while let Ok(reading) = self.readings.try_recv() {
            (self.latest, self.at) = (Some(reading), Instant::now());
        }
        self.latest.clone().filter(|_| !self.is_lost())
    }

    /// Tells whether the thread has not answered for long.
    pub(crate) fn is_lost(&self) -> bool {
        self.at.elapsed() > PATIENCE
    }
}

/// Reads on until nobody listens.
fn read_on(adapters: &Path, tell: &SyncSender<Vec<Port>>) {
    while tell.send(adapters::read(adapters, false)).is_ok() {
        thread::sleep(PERIOD);
    }
}
