//! Takes probes out of the kernel while the recording goes on.

use std::{
    io,
    sync::mpsc::{self, Sender},
    thread::{self, JoinHandle},
};

use rustix::thread::CapabilitySet;

use crate::{
    health::Health,
    kernel::loader::{Link, detach},
};
use inspect::privileges;

/// A thread that detaches probes, so that nobody waits: it takes about 0.1 s on Linux 6.12 and later, or,
/// without multi-links, as long for each probe.
pub(super) struct Reaper {
    links: Option<Sender<Vec<Link>>>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    pub(super) fn start(health: &Health) -> io::Result<Self> {
        let (sender, links) = mpsc::channel::<Vec<Link>>();
        let health = health.clone();
        let thread = thread::Builder::new().name("ncclflow-detach".to_owned()).spawn(move || {
            let guard = health.guard("ncclflow-detach");
            privileges::keep_only(CapabilitySet::empty());
            for links in links {
                detach(links, |_| {});
            }
            guard.done();
        })?;
        Ok(Self { links: Some(sender), thread: Some(thread) })
    }

    /// Detaches these links, soon.
    pub(super) fn take(&self, links: Vec<Link>) {
        if let Some(sender) = &self.links
            && !links.is_empty()
        {
            // The thread lives as long as the sender; if it does not, they are dropped here, one by one.
            let _ = sender.send(links);
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.links = None;
        if let Some(thread) = self.thread.take() {
            // It only drops links, and cannot panic.
            let _ = thread.join();
        }
    }
}
