//! Rows of a folder, gathered for the verdict.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use flow::{
    schema::{
        CommunicatorReport, GpuRow, LaunchThreadRow, MessageRow, NicRow, Op, RankKey, StackId, StackRow,
    },
    session::SessionReport,
};
use nccl_library::nccl::Name;

use super::{
    activity::Activity, launches::Launches, longest_waits::RankWaits, shares::Shares, transits::Transits,
};
use crate::{
    code_lines::{place, users_line},
    in_order::Firsts,
    iterations::Iterations,
    not_recorded::how_to_measure,
    sources::Who,
};

/// Most launches of a communicator on one host that are kept.
const MAX_LAUNCHES: usize = 1 << 20;

/// Most messages that are kept for the hosts at their other ends, by communicator and host.
const MAX_UNMATCHED: usize = 1 << 13;

/// Most call stacks whose lines are kept.
const MAX_LINES: usize = 1 << 14;

/// Most pairs of ranks with sends and receives that are kept, for each communicator.
const MAX_PAIRS: usize = 4096;

/// A process with a GPU, which takes part in a job. Index into [`Gathered::members`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Member(usize);

/// Data on what takes part in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberFacts {
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) job_rank: Option<u32>,
    /// NVML's number of its GPU on the host, if that is known.
    pub(super) gpu: Option<u32>,
    pub(super) gpu_uuid: Option<String>,
    pub(super) bus_id: Option<String>,
    pub(super) job: Option<String>,
}

/// Ranks of a communicator in a folder.
#[derive(Clone, Debug, Default)]
pub(super) struct CommunicatorRows {
    /// Number among those of the folder.
    number: usize,
    pub(super) n_ranks: i32,
    pub(super) members: BTreeMap<i32, Member>,
    pub(super) launches: Launches,
    /// Pairs of ranks that send to each other: sender and receiver.
    pub(super) pairs: BTreeSet<(i32, i32)>,
    pub(super) waits: Vec<(RankWaits, Shares)>,
    pub(super) transits: Transits,
    /// An op has a peer with a proxy.
    pub(super) has_proxy: bool,
    /// Network devices of ranks, with the host that each is on.
    pub(super) nics: BTreeMap<i32, (String, Vec<NicRow>)>,
    firsts: BTreeMap<i32, Firsts>,
}

/// Processor time of a thread while it was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessorTime {
    pub ran: Duration,
    pub waited: Duration,
    pub all: Duration,
    /// Periods of the process's limit of processor time, and those in which it was used up.
    pub periods: u64,
    pub throttled: u64,
}

impl ProcessorTime {
    /// Adds the time of a later look.
    pub fn add(&mut self, later: Self) {
        self.ran = self.ran.saturating_add(later.ran);
        self.waited = self.waited.saturating_add(later.waited);
        self.all = self.all.saturating_add(later.all);
        self.periods = self.periods.saturating_add(later.periods);
        self.throttled = self.throttled.saturating_add(later.throttled);
    }

    /// Returns the parts of the time, in percent, in which it ran, and in which it waited for a processor.
    /// `None`: it was not looked at.
    pub(super) fn percents(&self) -> Option<(f64, f64)> {
        let share = |part: Duration| part.div_duration_f64(self.all) * 100.0;
        (!self.all.is_zero()).then(|| (share(self.ran), share(self.waited)))
    }
}

/// Rows of a folder.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    who: Who,
    /// Jobs of its processes.
    jobs: BTreeMap<u32, String>,
    offset_ns: u64,
    has_clock: bool,
    /// How to measure messages that were not; `None`: all were.
    pub(super) how_to_measure: Option<String>,
    pub(super) members: Vec<MemberFacts>,
    by_process: HashMap<u32, Vec<Member>>,
    pub(super) communicators: BTreeMap<String, CommunicatorRows>,
    iterations: Iterations,
    /// Mean length of the sequence of collectives that recurs in a process.
    pub(super) sequences: HashMap<u32, u64>,
    /// Activity of GPUs: NVML's number, UUID and PCI address, as rows have them.
    pub(super) gpus: BTreeMap<(u32, Option<String>, Option<String>), Activity>,
    /// Processor time of threads, by process, and thread: those that launch, and proxies.
    threads: [HashMap<(u32, u32), ProcessorTime>; 2],
    /// Lines of code of call stacks, by process.
    lines: HashMap<(u32, StackId), String>,
    /// Wall times of the first and the last launch.
    pub(super) span_ns: Option<(u64, u64)>,
}

impl Gathered {
    pub(crate) fn new(session: &SessionReport, jobs: BTreeMap<u32, String>) -> Self {
        let clock = session.known_clock();
        Self {
            who: Who::of(session),
            jobs,
            offset_ns: clock.map_or(0, |clock| clock.offset_ns),
            has_clock: clock.is_some(),
            how_to_measure: how_to_measure(session),
            ..Self::default()
        }
    }

    /// Adds a communicator if it is new.
    fn add(&mut self, communicator: &str) {
        if !self.communicators.contains_key(communicator) {
            let rows = CommunicatorRows { number: self.communicators.len(), ..CommunicatorRows::default() };
            self.communicators.insert(communicator.to_owned(), rows);
        }
    }

    /// Takes an op on a channel of a rank of this communicator.
    pub(crate) fn op(&mut self, communicator: &str, op: &Op) {
        let row = &op.row;
        self.add(communicator);
        let Some(rows) = self.communicators.get_mut(communicator) else { return };
        rows.has_proxy |= row.needed;
        let is_new = !rows.members.contains_key(&row.rank);
        if row.pattern.is_p2p() {
            let pair =
                if row.called().is_some_and(is_send) { (row.rank, row.root) } else { (row.root, row.rank) };
            if rows.pairs.len() < MAX_PAIRS && pair.0 != pair.1 {
                rows.pairs.insert(pair);
            }
        } else if row.pattern.has_no_ops() || row.graph_launch.is_some() {
            // Nothing says which of these belong together: ranks number them by themselves, and replays that only
            // a launch tells have the numbers of what was captured.
        } else if rows.firsts.entry(row.rank).or_default().is_first(row.seq / 2) {
            if self.has_clock {
                let wall_ns = row.ts_ns.saturating_add(self.offset_ns);
                rows.launches.add(row.rank, row.seq / 2, wall_ns, MAX_LAUNCHES);
                if let Some(stack) = row.stack {
                    rows.launches.add_stack(row.rank, row.seq / 2, stack);
                }
                let (first, last) = self.span_ns.unwrap_or((wall_ns, wall_ns));
                self.span_ns = Some((first.min(wall_ns), last.max(wall_ns)));
            }
            self.iterations.add(0, rows.number, op.rank, op, self.offset_ns);
        }
        if is_new {
            let facts = self.who.rank(op.rank);
            rows.n_ranks = row.n_ranks;
            let nics = facts.map(|facts| facts.nics.clone()).unwrap_or_default();
            rows.nics.insert(row.rank, (row.host.to_string(), nics));
            let job = self.jobs.get(&op.rank.pid).cloned();
            let facts = MemberFacts { job, ..MemberFacts::of(&self.who, facts, op.rank, &row.host) };
            let member = self.member(op.rank.pid, facts, communicator);
            if let Some(rows) = self.communicators.get_mut(communicator) {
                rows.members.insert(row.rank, member);
            }
        }
    }

    /// Takes a measured message of a rank of this communicator.
    pub(crate) fn message(&mut self, communicator: &str, row: &MessageRow) {
        self.add(communicator);
        if let Some(rows) = self.communicators.get_mut(communicator) {
            rows.transits.add(row);
        }
    }

    /// Takes the waits of a rank, when all messages have come.
    pub(crate) fn waits(&mut self, communicator: &str, waits: &RankWaits, shares: Shares) {
        if let Some(rows) = self.communicators.get_mut(communicator) {
            rows.waits.push((waits.clone(), shares));
        }
    }

    /// Completes what was gathered, when all rows have come.
    pub(crate) fn end(&mut self) {
        let mut iterations = std::mem::take(&mut self.iterations);
        let lengths = iterations.processes().filter_map(|((_, pid), of)| Some((*pid, of.mean_ns()?)));
        self.sequences.extend(lengths);
        self.thin(MAX_UNMATCHED);
        // Folders of a large job wait for each other: what only further rows need goes.
        (self.who, self.jobs, self.by_process) = Default::default();
        for rows in self.communicators.values_mut() {
            rows.firsts = BTreeMap::new();
            rows.launches.shrink();
        }
    }

    /// Leaves out messages whose other ends are on other hosts, until there are no more than so many.
    pub(super) fn thin(&mut self, most: usize) {
        for rows in self.communicators.values_mut() {
            rows.transits.thin(most);
            rows.transits.shrink();
        }
    }

    pub(super) fn has_clock(&self) -> bool {
        self.has_clock
    }

    /// Returns the wall time at a time of the host.
    pub(super) fn wall_ns(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_add(self.offset_ns)
    }

    /// Returns the host's time at a wall time.
    pub(super) fn monotonic_ns(&self, wall_ns: u64) -> u64 {
        wall_ns.saturating_sub(self.offset_ns)
    }

    pub(crate) fn gpu(&mut self, row: &GpuRow) {
        let gpu = (row.gpu, row.gpu_uuid.clone(), row.bus_id.clone());
        let wall_ns = self.wall_ns(row.ts_ns);
        self.gpus.entry(gpu).or_default().add(row, wall_ns);
    }

    pub(crate) fn stack(&mut self, row: &StackRow) {
        if self.lines.len() < MAX_LINES
            && let Some(frame) = users_line(&row.frames)
        {
            let line = format!("{} ({})", place(frame), frame.function);
            self.lines.insert((row.pid, row.stack), line);
        }
    }

    /// Returns the line of code of a call stack: the innermost that is of no library.
    pub(super) fn line(&self, pid: u32, stack: StackId) -> Option<String> {
        self.lines.get(&(pid, stack)).cloned()
    }

    pub(crate) fn launch_thread(&mut self, row: &LaunchThreadRow) {
        let [launching, proxies] = &mut self.threads;
        let threads = if row.is_proxy { proxies } else { launching };
        threads.entry((row.pid, row.tid)).or_default().add(ProcessorTime {
            ran: Duration::from_nanos(row.ran_ns),
            waited: Duration::from_nanos(row.waited_ns),
            all: Duration::from_nanos(row.period_ns),
            periods: row.periods,
            throttled: row.throttled,
        });
    }

    /// Returns the processor times of the launching thread and the proxy of a process that asked for most.
    pub(super) fn processor_times(&self, pid: u32) -> [Option<ProcessorTime>; 2] {
        self.threads.each_ref().map(|threads| {
            let of_process = threads.iter().filter(|((of, _), _)| *of == pid).map(|(_, time)| *time);
            of_process.max_by_key(|time| time.ran.saturating_add(time.waited))
        })
    }

    /// Returns what a rank is of: known from another communicator, by process and GPU, or new.
    fn member(&mut self, pid: u32, facts: MemberFacts, communicator: &str) -> Member {
        let of_process = self.by_process.entry(pid).or_default();
        let taken = |member: &Member| {
            let rows = self.communicators.get(communicator);
            rows.is_some_and(|rows| rows.members.values().any(|other| other == member))
        };
        let known = of_process.iter().copied().find(|member| {
            let same = |known: &MemberFacts| facts.is_same_gpu(known);
            self.members.get(member.0).is_some_and(same) && !taken(member)
        });
        known.unwrap_or_else(|| {
            let member = Member(self.members.len());
            of_process.push(member);
            self.members.push(facts);
            member
        })
    }

    pub(super) fn facts(&self, member: Member) -> Option<&MemberFacts> {
        self.members.get(member.0)
    }

    /// Returns the activity of a member's GPU, by UUID, PCI address or number.
    pub(super) fn activity(&self, facts: &MemberFacts) -> Option<&Activity> {
        let same = |one: &Option<String>, other: &Option<String>| one.is_some() && one == other;
        let mut gpus = self.gpus.iter();
        let by_name =
            gpus.find(|((_, uuid, bus), _)| same(uuid, &facts.gpu_uuid) || same(bus, &facts.bus_id));
        let by_number = || {
            let is_unknown = facts.gpu_uuid.is_none() && facts.bus_id.is_none();
            self.gpus.iter().find(|((number, ..), _)| is_unknown && Some(*number) == facts.gpu)
        };
        by_name.or_else(by_number).map(|(_, activity)| activity)
    }
}

fn is_send(function: &Name) -> bool {
    function.as_str() == "Send"
}

impl MemberFacts {
    fn of(who: &Who, facts: Option<&CommunicatorReport>, key: RankKey, host: &Name) -> Self {
        let of_process = who.job_ranks(key.pid);
        let job_rank = facts.and_then(|facts| facts.job_rank);
        Self {
            host: host.to_string(),
            pid: key.pid,
            job_rank: job_rank.or_else(|| of_process.first().copied().filter(|_| of_process.len() == 1)),
            gpu: facts.and_then(|facts| facts.nvml_dev),
            gpu_uuid: facts.and_then(|facts| facts.gpu_uuid.clone()),
            bus_id: facts.and_then(|facts| facts.bus_id.clone()),
            job: None,
        }
    }

    fn is_same_gpu(&self, other: &Self) -> bool {
        match (&self.bus_id, &other.bus_id) {
            (Some(own), Some(other)) => own == other,
            _ => self.gpu == other.gpu,
        }
    }
}
