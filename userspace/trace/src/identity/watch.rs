//! Looks at processes and communicators as they come, without keeping anybody waiting: a thread of its own
//! reads communicators.

use crate::{
    health::Health,
    launch_threads::{LaunchThreads, LaunchWatch},
};
use flow::{
    decode::{Decoder, RecordView},
    identity::{CommunicatorFacts, ProcessFacts},
    recording::{Binding, Event, MAX_KNOWN, communicator_spans},
    session::{TargetList, TargetReport},
};
use inspect::{
    failpoint,
    identity::{Seen, WhoOptions, read_communicator, read_process, with_driver},
    memory::Memory,
    privileges,
    process::{Process, Users},
};
use recording::format::{Facts, WhoFacts};
use std::{
    collections::HashSet,
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use super::{nics::NicReaders, registry::Registry};

/// Most communicators that may wait to be looked at. Further ones have no facts.
const MAX_WAITING: usize = 4096;

/// Finds the facts of a recording's processes and communicators.
#[derive(Debug)]
pub(crate) struct Who {
    options: WhoOptions,
    host: String,
    /// Names of users, read when they are first asked for: attaching does not wait for them.
    users: OnceLock<Users>,
    pub(crate) registry: Registry,
    to_thread: Option<SyncSender<Look>>,
    /// Threads that launch, which records tell of, too.
    pub(crate) threads: LaunchThreads,
}

/// A communicator to look at.
#[derive(Debug)]
struct Look {
    seen: Seen,
    /// Process, as ncclflow sees it.
    pid: u32,
    decoder: Arc<Decoder>,
}

impl Who {
    /// Starts the thread. Where that fails, communicators have no facts.
    pub(crate) fn new(options: WhoOptions, host: String, health: &Health) -> Self {
        let registry = Registry::default();
        let (to_thread, looks) = sync_channel(MAX_WAITING);
        let found = registry.clone();
        let work = move || look_at_communicators(&looks, &found);
        let thread = health.spawn("ncclflow-who", privileges::READS_PROCESSES, work);
        let to_thread = thread.is_ok().then_some(to_thread);
        let threads = LaunchThreads::start(&host, health);
        Self { options, host, users: OnceLock::new(), registry, to_thread, threads }
    }

    /// Finds the facts of a process, for its report and for those who write recordings.
    pub(crate) fn describe(&self, target: &mut TargetReport) {
        let users = self.users.get_or_init(Users::read);
        let facts = read_process(target.pid, target.started_ticks, &self.host, users, &self.options);
        if let Some(facts) = &facts {
            self.registry.push(Event::Process(Box::new(facts.clone())));
        }
        target.whose = facts.map(|facts| facts.whose);
    }

    /// Notes that the process that had this number has ended. Its facts are kept for those who may still ask.
    pub(crate) fn ended(&self, pid: u32) {
        self.registry.ended(pid);
    }

    /// Reads the rank map again if its file has changed, and notes the new ranks of these processes. Returns
    /// whether there are any.
    ///
    /// # Errors
    /// See [`RankMapFile::refresh`](super::RankMapFile::refresh).
    pub(crate) fn refresh_ranks(&mut self, targets: &mut TargetList) -> Result<bool, String> {
        let Some(file) = &mut self.options.rank_map else { return Ok(false) };
        if !file.refresh()? {
            return Ok(false);
        }
        let (known, mut has_changed) = (self.registry.known(), false);
        for target in targets.iter_mut().filter(|target| !target.exited) {
            let rank = self.options.rank(&self.host, target.pid);
            let Some(whose) = target.whose.as_mut().filter(|whose| whose.mapped_rank != rank) else {
                continue;
            };
            whose.mapped_rank = rank;
            has_changed = true;
            let facts = known.process(target.pid);
            if let Some(facts) = facts.filter(|facts| facts.started_ticks == target.started_ticks) {
                let facts = ProcessFacts { whose: whose.clone(), ..facts.clone() };
                self.registry.push(Event::Process(Box::new(facts)));
            }
        }
        Ok(has_changed)
    }

    /// Makes a watch for a thread that writes a recording: it has communicators looked at as they come, and
    /// gets the facts.
    pub(crate) fn watch(&self) -> CommunicatorWatch {
        CommunicatorWatch {
            threads: self.threads.watch(),
            registry: self.registry.clone(),
            to_thread: self.to_thread.clone(),
            seen: HashSet::new(),
            last: None,
        }
    }
}

/// Watch of a recording's records for communicators that were not seen before.
#[derive(Debug)]
pub(crate) struct CommunicatorWatch {
    threads: LaunchWatch,
    registry: Registry,
    to_thread: Option<SyncSender<Look>>,
    seen: HashSet<Seen>,
    last: Option<Seen>,
}

impl Facts<(u64, Event)> for CommunicatorWatch {
    fn since(&self, first: u64) -> (Vec<(u64, Event)>, u64) {
        self.registry.since(first)
    }
}

impl WhoFacts for CommunicatorWatch {
    fn retain_known(&self, pids: &mut HashSet<u32>) {
        self.registry.retain_known(pids);
    }

    fn note(&mut self, binding: &Binding, record: &RecordView<'_>) {
        self.threads.note(binding, record);
        let Some(seen) = seen(binding, record) else { return };
        if self.last == Some(seen) {
            return;
        }
        self.last = Some(seen);
        if self.seen.len() >= MAX_KNOWN {
            self.seen.clear();
        }
        let Some(to_thread) = &self.to_thread else { return };
        if !self.seen.insert(seen) || !self.registry.is_new(seen) {
            return;
        }
        let pid = binding.host.as_ref().map_or(seen.tgid, |host| host.pid);
        let look = Look { seen, pid, decoder: Arc::clone(&binding.decoder) };
        if to_thread.try_send(look).is_err() {
            self.registry.looked();
        }
    }
}

fn seen(binding: &Binding, record: &RecordView<'_>) -> Option<Seen> {
    let spans = communicator_spans(&binding.kind)?;
    let hash = spans.hash.as_ref().map(|hash| record.unsigned(hash)).transpose().ok()?;
    let (rank, n_ranks) = (record.int(&spans.rank).ok()?, record.int(&spans.n_ranks).ok()?);
    let pointer = record.unsigned(&spans.pointer).ok()?;
    // All values are zero where the memory could not be read.
    (n_ranks > 0 && (0..n_ranks).contains(&rank)).then_some(Seen {
        tgid: record.header.tgid,
        pointer,
        hash,
        rank,
        n_ranks,
    })
}

/// Looks at communicators until nobody can ask any more.
fn look_at_communicators(looks: &Receiver<Look>, registry: &Registry) {
    let mut nics = NicReaders::default();
    for Look { seen, pid, decoder } in looks {
        // A look that fails counts as one that finds nothing.
        let _ = failpoint::here("who");
        // Where the process has ended, or freed the communicator, no facts are noted.
        if let Some(places) = &decoder.communicator
            && let Ok(process) = Process::open(pid)
            && let Some(facts) = read_communicator(Memory::new(&process), places, &seen, pid)
        {
            let nics = nics.read(&process, seen.pointer, &facts);
            let facts = CommunicatorFacts { nics, ..with_driver(facts) };
            registry.push(Event::Communicator(Box::new(facts)));
        }
        registry.looked();
    }
}
