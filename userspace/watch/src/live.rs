//! Processes that are read again and again, and their readings in the form that [`crate::Book`] takes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use dump::watched::{
    Growth, ProcessCounts, ProcessorWatch, ProxyLooks, Steps, WatchedCommunicator, WatchedProcess,
};
use inspect::{gpu::GpuSamples, process::Tenant};
use recording::format::Facts as _;

use crate::{
    book::Book,
    readers::{Answer, Readers, Source, Task},
    reading::{
        CommKey, GpuState, ProcessInfo, ProcessKey, ProcessReading, RankCounts, RankInfo, RankReading,
    },
};

/// Time for which a communicator stands before the steps of its proxy are looked at, which takes some copies
/// for each op, and readings between two such looks.
const STEPS_AFTER: Duration = Duration::from_secs(3);
const STEPS_EVERY: u64 = 2;
/// Time between two looks at the processor time of a process's threads: some small files for each.
const PROCESSOR_EVERY: Duration = Duration::from_secs(10);
/// Most functions that are named.
const MAX_FUNCTIONS: usize = 64;

/// A process that is read.
#[derive(Debug)]
struct Live {
    watched: Arc<WatchedProcess>,
    info: Arc<ProcessInfo>,
    ranks: Vec<Arc<RankInfo>>,
    /// Another look at its communicators was asked for.
    is_asked: bool,
    /// Communicators in their set-up: places of their counters are found when that is done.
    coming: usize,
    /// Looks at its processor time; with the reader while that has it.
    processor: Option<ProcessorWatch>,
    processor_due: Duration,
}

impl Source for WatchedProcess {
    fn counts(&self) -> Option<ProcessCounts> {
        self.read().ok()
    }

    fn steps(&self, communicator: usize, looks: &mut ProxyLooks) -> Option<Steps> {
        Self::steps(self, self.communicators().get(communicator)?, looks)
    }

    fn processor(&self, watch: &mut ProcessorWatch) -> Option<Growth> {
        Self::processor(self, watch)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Processes {
    live: BTreeMap<ProcessKey, Live>,
    readers: Readers<WatchedProcess, Option<Tenant>>,
    /// Last readings of processes that are watched no more.
    given_up: Vec<ProcessReading>,
    readings: u64,
    next_gpu_row: u64,
    /// Processes that did not let themselves be read at the last reading.
    pub(crate) unread: usize,
    /// Processes with NCCL whose communicators cannot be read, with the reason of one.
    pub(crate) unknown: Option<(usize, String)>,
}

impl Processes {
    /// Counts the processes of which something can be read.
    pub(crate) fn watched(&self) -> usize {
        self.live.values().filter(|live| live.watched.problem().is_none() || !live.ranks.is_empty()).count()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Puts processes in the place of what was known of them.
    pub(crate) fn put(&mut self, found: Vec<WatchedProcess>) {
        for watched in found {
            let key = key_of(&watched);
            let mut live = Live::new(key, watched);
            if let Some(known) = self.live.remove(&key) {
                (live.processor, live.processor_due) = (known.processor, known.processor_due);
            }
            self.live.insert(key, live);
        }
        let problems = self.live.values().filter_map(|live| live.watched.problem());
        let (count, last) = problems.fold((0, None), |(count, _), why| (count + 1, Some(why)));
        self.unknown = last.map(|why| (count, why.to_owned()));
    }

    /// Forgets processes that are watched no more. Their ranks count as ended: nobody is to wait for them.
    pub(crate) fn give_up(&mut self, pids: &[u32]) {
        let Self { live, given_up, .. } = self;
        live.retain(|key, live| {
            let stays = !pids.contains(&key.pid);
            if !stays {
                given_up.push(live.ended());
            }
            stays
        });
    }

    /// Reads all processes. Those that have ended are read for the last time. `again` is told of processes
    /// whose communicators have come or gone.
    pub(crate) fn read(
        &mut self,
        book: &Book,
        now: Duration,
        mut again: impl FnMut(u32),
    ) -> Vec<ProcessReading> {
        self.readings += 1;
        self.unread = 0;
        let mut read = self.ask(book, now);
        let (mut readings, mut ended) = (std::mem::take(&mut self.given_up), Vec::new());
        for (key, live) in &mut self.live {
            // What was read before it was found again is of other places.
            let answer = read.remove(key).filter(|answer| Arc::ptr_eq(&answer.source, &live.watched));
            let is_live = !live.watched.process().has_exited();
            if !is_live {
                ended.push(*key);
            }
            let nothing = ProcessCounts::default();
            let has_nothing = !live.watched.has_places();
            let (mut counts, mut steps, mut growth) = (has_nothing.then_some(&nothing), &[][..], None);
            if let Some(answer) = &answer {
                (counts, steps) = (answer.counts.as_ref(), &answer.steps);
                growth = answer.processor.as_ref().and_then(|(_, growth)| *growth);
            }
            if is_live && counts.is_none() {
                self.unread += 1;
                if live.watched.process().needs_another_thread() {
                    again(key.pid);
                }
            }
            if let Some(counts) = counts.filter(|_| is_live) {
                let coming = counts.communicators.iter().flatten().filter(|one| !one.is_set_up).count();
                let is_outdated = counts.is_outdated | (coming < std::mem::replace(&mut live.coming, coming));
                if !std::mem::replace(&mut live.is_asked, is_outdated) && is_outdated {
                    again(key.pid);
                }
            }
            let ranks = live.ranks(counts, steps);
            readings.push(ProcessReading { info: Arc::clone(&live.info), is_live, ranks, processor: growth });
            if let Some((processor, _)) = answer.and_then(|answer| answer.processor) {
                live.processor = Some(processor);
            }
        }
        for key in ended {
            self.live.remove(&key);
        }
        readings
    }

    /// Has the processes read of which something can be. Returns what was read of each.
    fn ask(&mut self, book: &Book, now: Duration) -> HashMap<ProcessKey, Answer<WatchedProcess>> {
        let with_steps = self.readings.is_multiple_of(STEPS_EVERY);
        let mut tasks: HashMap<Option<Tenant>, Vec<Task<WatchedProcess>>> = HashMap::new();
        for live in self.live.values_mut().filter(|live| live.watched.has_places()) {
            let stands = |rank: &Arc<RankInfo>| with_steps && book.stands(&rank.comm, STEPS_AFTER, now);
            let mut processor = None;
            if !live.ranks.is_empty() && now >= live.processor_due {
                live.processor_due = now + PROCESSOR_EVERY;
                processor = Some(live.processor.take().unwrap_or_default());
            }
            let wants_steps = live.ranks.iter().map(stands).collect();
            let task = Task { source: Arc::clone(&live.watched), wants_steps, processor };
            tasks.entry(live.watched.tenant().cloned()).or_default().push(task);
        }
        let Self { readers, live, .. } = self;
        let put_back = |tasks: Vec<Task<WatchedProcess>>| {
            for Task { source, processor, .. } in tasks {
                if let Some((live, processor)) = live.get_mut(&key_of(&source)).zip(processor) {
                    live.processor = Some(processor);
                }
            }
        };
        readers.read(tasks, put_back).into_iter().map(|answer| (key_of(&answer.source), answer)).collect()
    }

    /// Returns the state of the GPUs, and their errors since the call before.
    pub(crate) fn gpus(&mut self, samples: &GpuSamples) -> Vec<GpuState> {
        let (rows, next) = samples.since(self.next_gpu_row);
        self.next_gpu_row = next;
        let mut gpus: BTreeMap<String, GpuState> = BTreeMap::new();
        for row in samples.latest().iter().chain(&rows) {
            let Some(bus_id) = row.bus_id.clone() else { continue };
            let gpu =
                gpus.entry(bus_id.clone()).or_insert_with(|| GpuState { bus_id, ..GpuState::default() });
            gpu.busy_percent = row.sm_percent;
        }
        for row in &rows {
            if let Some(gpu) = row.bus_id.as_ref().and_then(|bus_id| gpus.get_mut(bus_id)) {
                gpu.xids.extend(&row.xids);
                gpu.rows.push(Arc::clone(row));
            }
        }
        gpus.into_values().collect()
    }
}

impl Live {
    fn new(key: ProcessKey, watched: WatchedProcess) -> Self {
        let owner = watched.owner().cloned().unwrap_or_default();
        let uid = owner.uid;
        let info = ProcessInfo {
            key,
            name: watched.process().name().to_owned(),
            user: owner.user,
            job: owner.job,
            container: owner.container,
            pod: owner.pod,
        };
        let ranks = watched.communicators().iter().map(|known| Arc::new(rank_info(known, uid)));
        Self {
            ranks: ranks.collect(),
            info: Arc::new(info),
            watched: Arc::new(watched),
            is_asked: false,
            coming: 0,
            processor: Some(ProcessorWatch::default()),
            processor_due: Duration::ZERO,
        }
    }

    /// Returns a reading in which all communicators have ended.
    fn ended(&self) -> ProcessReading {
        let communicators = vec![None; self.ranks.len()];
        let counts = ProcessCounts { communicators, ..ProcessCounts::default() };
        let ranks = self.ranks(Some(&counts), &[]);
        ProcessReading { info: Arc::clone(&self.info), is_live: true, ranks, processor: None }
    }

    fn ranks(&self, counts: Option<&ProcessCounts>, steps: &[Option<Steps>]) -> Vec<RankReading> {
        let mut ranks = Vec::with_capacity(self.ranks.len());
        for (at, (info, known)) in self.ranks.iter().zip(self.watched.communicators()).enumerate() {
            let state = match counts.map(|counts| counts.communicators.get(at)) {
                Some(Some(Some(counts))) => RankCounts::Read(counts.clone()),
                Some(Some(None)) => RankCounts::Ended,
                Some(None) | None => RankCounts::Unread,
            };
            let failure = match &state {
                RankCounts::Read(counts) => counts.failure.map(|failure| known.result(failure)),
                RankCounts::Ended | RankCounts::Unread => None,
            };
            let steps = steps.get(at).copied().flatten();
            ranks.push(RankReading { info: Arc::clone(info), state, steps, failure });
        }
        ranks
    }
}

fn key_of(watched: &WatchedProcess) -> ProcessKey {
    ProcessKey { pid: watched.process().pid(), started: watched.started().unwrap_or_default() }
}

fn rank_info(known: &WatchedCommunicator, uid: u32) -> RankInfo {
    let rank = &known.rank;
    RankInfo {
        comm: Arc::new(CommKey { hash: rank.comm_hash.clone(), n_ranks: rank.n_ranks, uid, tenant: None }),
        name: rank.comm_name.clone(),
        rank: rank.rank,
        gpu: rank.nvml_dev,
        bus_id: rank.bus_id.clone(),
        has_proxy: known.carries_rings,
        counting: known.counting,
        functions: (0..MAX_FUNCTIONS).map_while(|number| known.function(number)).collect(),
    }
}
