//! Takes probes out of the kernel while the recording goes on.

use std::{
    sync::mpsc::{self, Sender},
    thread::JoinHandle,
};

use anyhow::Result;
use rustix::thread::CapabilitySet;

use crate::{
    health::Health,
    kernel::loader::{Link, detach},
};

/// A thread that detaches probes, so that nobody waits: it takes about 0.1 s on Linux 6.12 and later, or,
/// without multi-links, as long for each probe.
pub(super) struct Reaper {
    links: Sender<Vec<Link>>,
    thread: JoinHandle<()>,
}

impl Reaper {
    pub(super) fn start(health: &Health) -> Result<Self> {
        let (sender, links) = mpsc::channel::<Vec<Link>>();
        let work = move || links.into_iter().for_each(|links| detach(links, |_| {}));
        let thread = health.spawn("ncclflow-detach", CapabilitySet::empty(), work)?;
        Ok(Self { links: sender, thread })
    }

    /// Detaches these links, soon.
    pub(super) fn take(&self, links: Vec<Link>) {
        if !links.is_empty() {
            // The thread lives as long as the sender; if it does not, they are dropped here, one by one.
            let _ = self.links.send(links);
        }
    }

    /// Waits until all are detached.
    pub(super) fn end(self) {
        drop(self.links);
        // It only drops links, and cannot panic.
        let _ = self.thread.join();
    }
}
