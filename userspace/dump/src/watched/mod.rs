//! Processes whose communicators are known, and whose counters are read again and again: by one copy of
//! memory for each process, from places that were found once. This is what `ncclflow watch` does every
//! second.
//!
//! A library from NCCL 2.24 on counts its communicators itself ([`super::own_list`]): the count is copied,
//! too, and tells when a communicator has come.

mod counts;
mod processor;

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use inspect::{
    memory::{Memory, ReadError, ScanEnd, ScanLimits},
    process::{MappedLibrary, Process, Tenant},
};
use nccl_library::{elf::RuntimeAddr, fields::unsigned, symbols::DebugFiles};

pub use self::counts::Counts;
use self::counts::{CountedPlaces, Pieces, Reads};
pub use self::processor::{Growth, ProcessorWatch};
pub use super::proxy::{ProxyLooks, Steps};
use super::{
    Counting, DumpOptions, Owner, ProcessReport, ProxyReport, RankReport, copies,
    libraries::{Layout, Libraries},
    own_list::base_of,
    places,
    process::Target,
    some_at_once,
};

/// Maximum number of libraries that are remembered; beyond it all are forgotten.
const MAX_LIBRARIES: usize = 256;
/// Maximum number of communicators of one process that are read.
const MAX_COMMUNICATORS: usize = 512;

/// Finds the communicators of processes. Libraries are resolved once.
#[derive(Debug)]
pub struct Finder {
    libraries: Libraries,
    options: DumpOptions,
}

impl Finder {
    pub fn new(debug_files: DebugFiles, limits: ScanLimits) -> Self {
        let options =
            DumpOptions { interval: Duration::ZERO, first_only: false, limits, debug_files, stacks: false };
        Self { libraries: Libraries::new(options.debug_files.clone()), options }
    }

    /// Finds the communicators of these processes by their NCCL libraries: those given, or those that a
    /// process is found to have. Copies of communicators in forked processes are left out. `searches`: memory
    /// is searched where no list of the library's tells of communicators. Several processes are looked at side by
    /// side; after `until` no further one is.
    pub fn find(
        &mut self,
        processes: impl IntoIterator<Item = (Process, Option<Vec<MappedLibrary>>)>,
        searches: bool,
        until: Instant,
    ) -> Vec<WatchedProcess> {
        if self.libraries.count() > MAX_LIBRARIES {
            self.libraries = Libraries::new(self.options.debug_files.clone());
        }
        let mut options = self.options.clone();
        if !searches {
            options.limits.bytes = 0;
        }
        let open = |(process, files)| (Target::open(process, files, &mut self.libraries), None);
        let mut looked: Vec<_> =
            processes.into_iter().take_while(|_| Instant::now() < until).map(open).collect();
        some_at_once(looked.iter_mut(), &|((target, libraries), ranks)| {
            if Instant::now() < until {
                target.search(libraries, &options, &mut |_| {});
                *ranks = Some(target.read());
            }
        });
        let (mut targets, mut ranks) = (Vec::new(), Vec::new());
        for ((target, _), found) in looked {
            let Some(found) = found else { continue };
            ranks.extend(found);
            targets.push(target);
        }
        copies::leave_out(&mut targets, &mut ranks);
        let mut by_process: HashMap<u32, Vec<RankReport>> = HashMap::new();
        for rank in ranks {
            by_process.entry(rank.pid).or_default().push(rank);
        }
        let watched = targets.into_iter().map(|target| {
            let ranks = by_process.remove(&target.report.pid).unwrap_or_default();
            WatchedProcess::new(target, ranks)
        });
        watched.collect()
    }
}

/// A process with the places of its communicators' counters.
#[derive(Debug)]
pub struct WatchedProcess {
    process: Process,
    started: Option<u64>,
    tenant: Option<Tenant>,
    report: ProcessReport,
    communicators: Vec<WatchedCommunicator>,
    reads: Reads,
    /// Lists of communicators that libraries keep: the pieces that have their heads, and the heads as they
    /// were.
    lists: Vec<([usize; 2], [u64; 2])>,
}

/// A communicator of a process.
#[derive(Debug)]
pub struct WatchedCommunicator {
    /// The rank as it was found. Channels, connections and ops are left out.
    pub rank: RankReport,
    /// The rings go through the proxy.
    pub carries_rings: Option<bool>,
    pub counting: Counting,
    layout: Arc<Layout>,
    places: CountedPlaces,
    proxy_state: u64,
}

/// Counters of a process at one moment.
#[derive(Clone, Debug, Default)]
pub struct ProcessCounts {
    /// Counters of each communicator of [`WatchedProcess::communicators`]; `None` for one that has ended.
    pub communicators: Vec<Option<Counts>>,
    /// Communicators have come or gone: the process is to be found again.
    pub is_outdated: bool,
}

impl WatchedProcess {
    fn new(target: Target, ranks: Vec<RankReport>) -> Self {
        let Target { process, mut report, found, started, tenant, .. } = target;
        let memory = Memory::new(&process);
        let mut pieces = Pieces::default();
        let mut communicators = Vec::new();
        let mut libraries: Vec<&Arc<Layout>> = Vec::new();
        for found in &found {
            if !libraries.iter().any(|known| known.library == found.layout.library) {
                libraries.push(&found.layout);
            }
        }
        // A head is read before the communicators are known to be all: one that comes meanwhile is seen.
        let mut lists = Vec::new();
        for layout in libraries {
            let Some((list, library)) = layout.own_list.zip(layout.library) else { continue };
            let Some(base) = base_of(&process, library) else { continue };
            let [at, count] = list.head(base);
            let places = [pieces.add(at, 8), pieces.add(count, 4)];
            let word =
                |at: u64, bytes| memory.bytes(RuntimeAddr(at), bytes).ok().and_then(|all| unsigned(&all));
            lists.push((places, [word(at, 8).unwrap_or(0), word(count, 4).unwrap_or(0)]));
        }
        if let Some(more) = ranks.len().checked_sub(MAX_COMMUNICATORS).filter(|more| *more > 0) {
            let more = format!("{more} of its communicators are not watched: it has too many");
            report.error = report.error.take().or(Some(more));
        }
        for rank in ranks.into_iter().take(MAX_COMMUNICATORS) {
            let Some(found) = found.iter().find(|found| found.address == rank.address) else { continue };
            let shares = rank.shares_resources;
            let (places, proxy_state) =
                CountedPlaces::of(memory, &found.layout, rank.address, shares, &mut pieces);
            let (carries_rings, counting) = (rank.proxy.carries_rings, rank.counting());
            let (channels, connections) = (Vec::new(), Vec::new());
            let rank = RankReport { channels, connections, proxy: ProxyReport::default(), ..rank };
            let layout = Arc::clone(&found.layout);
            communicators.push(WatchedCommunicator {
                rank,
                carries_rings,
                counting,
                layout,
                places,
                proxy_state,
            });
        }
        report.threads = Vec::new();
        Self { process, started, tenant, report, communicators, reads: Reads::of(&pieces), lists }
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns when the process was started, in clock ticks since boot.
    pub fn started(&self) -> Option<u64> {
        self.started
    }

    pub fn owner(&self) -> Option<&Owner> {
        self.report.owner.as_ref()
    }

    pub fn tenant(&self) -> Option<&Tenant> {
        self.tenant.as_ref()
    }

    /// Returns the reason why the process, or one of its libraries, cannot be read.
    pub fn problem(&self) -> Option<&str> {
        let unusable = || self.report.libraries.iter().find_map(|library| library.unusable.as_deref());
        self.report.error.as_deref().or_else(unusable)
    }

    pub fn communicators(&self) -> &[WatchedCommunicator] {
        &self.communicators
    }

    /// Tells whether the communicators are all those of a list that the library keeps.
    pub fn is_listed(&self) -> bool {
        self.report.scan.as_ref().is_some_and(|scan| scan.ended_by == Some(ScanEnd::Listed))
    }

    /// Tells whether there is something to read.
    pub fn has_places(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Copies the counters of all communicators.
    ///
    /// # Errors
    /// The process is gone, or does not let itself be read.
    pub fn read(&self) -> Result<ProcessCounts, ReadError> {
        if self.reads.is_empty() {
            return Ok(ProcessCounts::default());
        }
        let read = self.reads.read(Memory::new(&self.process))?;
        let copies = self.reads.pieces(&read);
        let value = |at: &usize| copies.get(*at).copied()?.and_then(unsigned);
        let mut is_outdated = self
            .lists
            .iter()
            .any(|(places, heads)| places.iter().zip(heads).any(|(at, head)| value(at) != Some(*head)));
        let communicators = self.communicators.iter().map(|known| {
            let counts = known.places.counts(&copies);
            is_outdated |= counts.is_none();
            counts
        });
        let communicators = communicators.collect();
        Ok(ProcessCounts { communicators, is_outdated })
    }

    /// Looks at the processor time of the process's threads. `None` at the first look.
    pub fn processor(&self, watch: &mut ProcessorWatch) -> Option<Growth> {
        let memory = Memory::new(&self.process);
        let handle = |communicator: &WatchedCommunicator| {
            places::read_one(memory, communicator.proxy_state, communicator.layout.proxy.thread)
        };
        let is_there = |communicator: &&WatchedCommunicator| communicator.proxy_state != 0;
        watch.look(&self.process, || self.communicators.iter().filter(is_there).filter_map(handle).collect())
    }

    /// Returns the state of the steps of a communicator's proxy. `None`: it cannot be told at this reading.
    pub fn steps(&self, communicator: &WatchedCommunicator, looks: &mut ProxyLooks) -> Option<Steps> {
        looks.steps(Memory::new(&self.process), &communicator.layout.proxy, communicator.proxy_state)
    }
}

impl WatchedCommunicator {
    /// Returns the name of a function by NCCL's number of it.
    pub fn function(&self, number: usize) -> Option<String> {
        let number = i64::try_from(number).ok()?;
        self.layout.comm.names.function(number).map(ToString::to_string)
    }

    /// Returns the name of an `ncclResult_t`.
    pub fn result(&self, value: u64) -> String {
        self.layout.comm.result(Some(value)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_further_process_is_looked_at_when_the_time_is_over() {
        let mut finder = Finder::new(DebugFiles::default(), ScanLimits::default());
        let mut count = |until| {
            let own = || (Process::open(std::process::id()).unwrap(), Some(Vec::new()));
            finder.find([own(), own()], false, until).len()
        };
        let now = Instant::now();
        assert_eq!((count(now), count(now + Duration::from_secs(60))), (0, 2));
    }
}
