//! Who makes a job slow, by what is read without a probe: activity of the GPUs, and processor time. Pure.
//!
//! The job is judged over periods that are longer than some iterations. A rank is blamed when three of them in
//! a row name it, and not any more when three in a row do not. A period in which the job stood, as in an
//! evaluation or a checkpoint of one rank, tells nothing.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use analysis::slow::{Counted, CountedRank, Kind, ProcessorTime, RankName};
use flow::schema::GpuRow;

use crate::{
    communicator::{CommState, RankState},
    reading::{CommKey, GpuState, ProcessKey, ProcessorGrowths},
};

/// Shortest period, and iterations that a period has at least.
const PERIOD: Duration = Duration::from_secs(20);
const ITERATIONS: u32 = 3;
/// Periods in a row: a minute.
const IN_A_ROW: u32 = 3;
/// Part of an iteration from which on somebody is woken. Smaller ones `ncclflow check` tells.
const COSTS_PERCENT: f64 = 5.0;
/// Time for which a communicator may stand within a period. Where iterations are so long that it stands for
/// longer in each, an evaluation of one rank looks the same: such jobs are not judged.
const STANDS: Duration = Duration::from_secs(5);
/// Shortest time for which it may stand at a period's end; an iteration, if that is longer: an evaluation of
/// one rank may have just begun.
const STANDS_AT_END: Duration = Duration::from_secs(2);
/// Collectives that ranks with equal work run: others also go from a rank to others that do other work.
const SYMMETRIC: [&str; 3] = ["AllReduce", "ReduceScatter", "AllGather"];
/// Part of the collectives of a job's busiest communicator that one has that tells of equal work.
const PART: u64 = 10;
/// Most rows of a GPU that are kept.
const MAX_ROWS: usize = 4096;

/// A rank that makes the others wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blame {
    pub(crate) comm: Arc<CommKey>,
    pub(crate) ranks: Vec<u32>,
    /// The verdict, with what shows it.
    pub(crate) text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlowChange {
    /// It is so, and has been for a minute: said at the end of each period.
    Named(Blame),
    Over,
}

/// Collectives and batches of sends that a communicator has launched.
#[derive(Clone, Copy, Debug, Default)]
struct Launched {
    symmetric: u64,
    sends: u64,
}

#[derive(Debug)]
struct Period {
    begun: Duration,
    /// The largest communicator: it names the ranks.
    largest: Arc<CommKey>,
    ranks: Vec<(u32, ProcessKey)>,
    launched: BTreeMap<Arc<CommKey>, Launched>,
    /// Longest time for which a communicator stood.
    stood: BTreeMap<Arc<CommKey>, Duration>,
    rows: BTreeMap<String, Vec<Arc<GpuRow>>>,
    /// Time of threads that launch, and of proxies.
    times: BTreeMap<ProcessKey, [Option<ProcessorTime>; 2]>,
}

#[derive(Debug, Default)]
pub(crate) struct Slowness {
    period: Option<Period>,
    /// What the last period named, and how many in a row did.
    named: Option<(Kind, Vec<u32>, u32)>,
    /// What is open: what was named for a minute, and periods since then that do not name it.
    open: Option<(Kind, Vec<u32>, u32)>,
    is_nobody: bool,
}

impl Slowness {
    /// Tells whether the last period had enough evidence to name somebody, and named nobody.
    pub(crate) fn is_nobody(&self) -> bool {
        self.is_nobody
    }

    /// Takes a reading. `stands`: ranks wait for something else. `slower`: the job's pace before it became
    /// slower, and now.
    pub(crate) fn note(
        &mut self,
        comms: &[&CommState],
        gpus: &[GpuState],
        processors: &ProcessorGrowths,
        stands: bool,
        slower: Option<(f64, f64)>,
        now: Duration,
    ) -> Option<SlowChange> {
        let usual = comms.iter().filter_map(|comm| comm.rhythm.usual()).max();
        // The job is going if some communicator is.
        let still = comms.iter().map(|comm| comm.stands_for(now)).min();
        let is_going = !stands && still.is_some_and(|still| still <= STANDS);
        let (Some(period), Some((largest, ranks)), true) = (&mut self.period, largest_of(comms), is_going)
        else {
            self.period = if is_going { Period::begin(comms, now) } else { None };
            return None;
        };
        if (&period.largest, &period.ranks) != (&largest.key, &ranks) {
            *self = Self { period: Period::begin(comms, now), open: self.open.take(), ..Self::default() };
            return None;
        }
        period.take(comms, gpus, processors, now);
        if now.saturating_sub(period.begun) < PERIOD.max(usual.unwrap_or_default() * ITERATIONS) {
            return None;
        }
        let period = std::mem::replace(&mut self.period, Period::begin(comms, now))?;
        let at_end = usual.unwrap_or_default().clamp(STANDS_AT_END, STANDS);
        self.judge(&period.counted(comms, usual, slower, at_end, now)?, &period.largest)
    }

    fn judge(&mut self, counted: &Counted, comm: &Arc<CommKey>) -> Option<SlowChange> {
        let slow = counted.judge();
        self.is_nobody = slow.first.kind == Kind::Nobody;
        let worst = slow.faults().find(|cause| cause.percent.is_some_and(|percent| percent >= COSTS_PERCENT));
        let ranks = |ranks: &[i32]| -> Vec<u32> {
            ranks.iter().filter_map(|rank| u32::try_from(*rank).ok()).collect()
        };
        self.named = worst.map(|cause| {
            let ranks = ranks(&cause.ranks);
            let before = self.named.take().filter(|(kind, named, _)| *kind == cause.kind && *named == ranks);
            (cause.kind, ranks, before.map_or(1, |(_, _, times)| times + 1))
        });
        if let Some((kind, open, missing)) = &mut self.open {
            // What is open is over when nothing says it any more, however small.
            let is_still = slow.faults().any(|cause| cause.kind == *kind && ranks(&cause.ranks) == *open);
            *missing = if is_still { 0 } else { *missing + 1 };
            if *missing >= IN_A_ROW {
                self.open = None;
                return Some(SlowChange::Over);
            }
        }
        let (kind, ranks, times) = self.named.as_ref()?;
        let cause = worst.filter(|_| *times >= IN_A_ROW)?;
        if self.open.as_ref().is_none_or(|open| (open.0, &open.1) == (*kind, ranks)) {
            self.open = Some((*kind, ranks.clone(), 0));
            let parts = std::iter::once(&cause.text).chain(&cause.evidence);
            let text = format!("{}.", flow::text::joined(parts, "; "));
            return Some(SlowChange::Named(Blame { comm: Arc::clone(comm), ranks: ranks.clone(), text }));
        }
        None
    }
}

/// Returns the largest communicator, and its ranks of this host.
fn largest_of<'c>(comms: &[&'c CommState]) -> Option<(&'c CommState, Vec<(u32, ProcessKey)>)> {
    let largest = comms.iter().max_by_key(|comm| (comm.key.n_ranks, comm.here().count()))?;
    Some((largest, largest.here().map(|rank| (rank.info.rank, rank.process.key)).collect()))
}

impl Launched {
    fn of(comm: &CommState) -> Self {
        let symmetric = |rank: &RankState| {
            let (counts, functions) = (&rank.counts, &rank.info.functions);
            if counts.by_function.is_empty() {
                return counts.launched().unwrap_or_default();
            }
            let of = |name: &str| {
                let number = functions.iter().position(|function| function == name);
                number.and_then(|number| counts.by_function.get(number)).copied().unwrap_or_default()
            };
            SYMMETRIC.into_iter().map(of).fold(0, u64::saturating_add)
        };
        let sends = |rank: &RankState| rank.counts.p2p_op_count.unwrap_or_default();
        Self {
            symmetric: comm.here().map(symmetric).max().unwrap_or_default(),
            sends: comm.here().map(sends).fold(0, u64::saturating_add),
        }
    }
}

impl Period {
    fn begin(comms: &[&CommState], now: Duration) -> Option<Self> {
        let (largest, ranks) = largest_of(comms)?;
        Some(Self {
            begun: now,
            largest: Arc::clone(&largest.key),
            ranks,
            launched: comms.iter().map(|comm| (Arc::clone(&comm.key), Launched::of(comm))).collect(),
            stood: BTreeMap::new(),
            rows: BTreeMap::new(),
            times: BTreeMap::new(),
        })
    }

    fn take(
        &mut self,
        comms: &[&CommState],
        gpus: &[GpuState],
        processors: &ProcessorGrowths,
        now: Duration,
    ) {
        for comm in comms {
            let longest = self.stood.entry(Arc::clone(&comm.key)).or_default();
            *longest = comm.stands_for(now).max(*longest);
        }
        for gpu in gpus.iter().filter(|gpu| !gpu.rows.is_empty()) {
            let rows = self.rows.entry(gpu.bus_id.clone()).or_default();
            rows.extend(gpu.rows.iter().take(MAX_ROWS.saturating_sub(rows.len())).cloned());
        }
        for (_, process) in &self.ranks {
            let Some(growth) = processors.get(process) else { continue };
            let times = self.times.entry(*process).or_default();
            for (time, of) in times.iter_mut().zip([growth.launching, growth.proxy]) {
                let Some([ran, waited]) = of else { continue };
                time.get_or_insert_default().add(ProcessorTime {
                    ran,
                    waited,
                    all: growth.period,
                    periods: growth.throttled.periods,
                    throttled: growth.throttled.throttled,
                });
            }
        }
    }

    fn counted(
        &self,
        comms: &[&CommState],
        usual: Option<Duration>,
        slower: Option<(f64, f64)>,
        at_end: Duration,
        now: Duration,
    ) -> Option<Counted> {
        let largest = comms.iter().find(|comm| comm.key == self.largest)?;
        let here: Vec<&RankState> = largest.here().collect();
        let of_rank = |rank: &&RankState| {
            let [launching, proxy] = self.times.get(&rank.process.key).copied().unwrap_or_default();
            let rows = rank.info.bus_id.as_ref().and_then(|bus_id| self.rows.get(bus_id));
            CountedRank {
                name: RankName {
                    rank: i32::try_from(rank.info.rank).unwrap_or(i32::MAX),
                    pid: rank.process.key.pid,
                    gpu: rank.info.gpu,
                    ..RankName::default()
                },
                gpu: rows.cloned().unwrap_or_default(),
                launching,
                proxy,
            }
        };
        let pace = |pace: f64| Duration::try_from_secs_f64(1.0 / pace).ok();
        Some(Counted {
            ranks: here.iter().map(of_rank).collect(),
            groups: self.groups(comms, &here, at_end, now),
            iteration: usual,
            slower: slower.and_then(|(before, now)| Some((pace(before)?, pace(now)?))),
        })
    }

    /// Returns groups of ranks with equal work, by their place in `here`: those that run the same collectives
    /// all the time, and do not send to each other, as stages of a pipeline do. Where ranks send to those of
    /// other hosts, nothing tells which ranks are one stage: there is no group.
    fn groups(
        &self,
        comms: &[&CommState],
        here: &[&RankState],
        at_end: Duration,
        now: Duration,
    ) -> Vec<Vec<usize>> {
        let place = |rank: &RankState| {
            let same = |other: &&RankState| {
                (other.process.key, &other.info.bus_id) == (rank.process.key, &rank.info.bus_id)
            };
            here.iter().position(same)
        };
        let members: Vec<(&CommState, Launched, Vec<usize>)> = comms
            .iter()
            .filter_map(|comm| {
                let (now, before) = (Launched::of(comm), self.launched.get(&comm.key)?);
                let launched = Launched {
                    symmetric: now.symmetric.saturating_sub(before.symmetric),
                    sends: now.sends.saturating_sub(before.sends),
                };
                Some((*comm, launched, comm.here().filter_map(place).collect()))
            })
            .collect();
        let sends = || members.iter().filter(|(_, launched, _)| launched.sends > 0);
        let is_here = |comm: &CommState| comm.here().count() as u64 == u64::from(comm.key.n_ranks);
        if !sends().all(|(comm, ..)| is_here(comm)) {
            return Vec::new();
        }
        let most = members.iter().map(|(_, launched, _)| launched.symmetric).max().unwrap_or_default();
        let has_stages = |own: &[usize]| {
            let shared = |other: &[usize]| own.iter().filter(|at| other.contains(at)).count();
            sends().any(|(_, _, other)| shared(other) > 1)
        };
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (comm, launched, own) in &members {
            let is_main = launched.symmetric > 0 && launched.symmetric.saturating_mul(PART) >= most;
            let stood = self.stood.get(&comm.key).copied().unwrap_or_default();
            let stands = stood > STANDS || comm.stands_for(now) > at_end;
            if own.len() < 2 || !is_main || stands || has_stages(own) {
                continue;
            }
            let is_apart = |group: &mut Vec<usize>| !group.iter().any(|at| own.contains(at));
            let mut joined = own.clone();
            for group in groups.extract_if(.., |group| !is_apart(group)) {
                joined.extend(group);
            }
            joined.sort_unstable();
            joined.dedup();
            groups.push(joined);
        }
        groups
    }
}
