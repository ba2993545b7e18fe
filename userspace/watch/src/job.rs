//! A job of this host: processes that share communicators. Makes the events of one job. Pure.

mod errors;
mod paces;
mod stands;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use inspect::adapters::Port;

use crate::{
    communicator::{CommState, RankState},
    crawl::Crawl,
    event::{AlertKind, CommOfEvent, Culprit, EventBody, EventType, JobOfEvent, JobRates},
    look::Look,
    reading::{CommKey, GpuState, ProcessInfo, ProcessorGrowths},
    settings::Settings,
    slow::Slowness,
    slower::Pace,
};

use self::{
    errors::{ErrorOf, OpenError},
    stands::Stands,
};

/// An alert on ranks that are waited for.
#[derive(Debug)]
struct StandingAlert {
    alert: u64,
    kind: AlertKind,
    begun: Duration,
    communicator: CommOfEvent,
    waited_for: Vec<u32>,
}

/// Outcome of a step of a job.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    pub(crate) events: Vec<EventBody>,
    /// A dump of the job's processes is wanted.
    pub(crate) look: bool,
    /// Dumps of the processes of these tenants alone are wanted.
    pub(crate) looks_of: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) number: u64,
    pub(crate) processes: Vec<Arc<ProcessInfo>>,
    whole: Stands,
    /// The same of tenants that share the job, while something is open in which they do not stand.
    alone: BTreeMap<String, Stands>,
    errors: BTreeMap<ErrorOf, OpenError>,
    /// Ranks that report a failure, and since when.
    failing: BTreeMap<(Arc<CommKey>, u32), Duration>,
    /// Ports that have been up since the job was first seen.
    ports_up: BTreeSet<String>,
    pace: Pace,
    crawl: Crawl,
    slower: Option<(u64, Duration)>,
    slowness: Slowness,
    slow: Option<StandingAlert>,
    /// When the last alert began: of the job, and of each tenant that shares it.
    last_alerts: BTreeMap<Option<String>, Duration>,
    /// When the last status was made, collectives launched since then, and the same at the reading before.
    status_at: Duration,
    since_status: u64,
    readings: u32,
    launched: BTreeMap<Arc<CommKey>, u64>,
}

impl Job {
    pub(crate) fn new(number: u64, now: Duration) -> Self {
        Self {
            number,
            processes: Vec::new(),
            whole: Stands::default(),
            alone: BTreeMap::new(),
            errors: BTreeMap::new(),
            failing: BTreeMap::new(),
            ports_up: BTreeSet::new(),
            pace: Pace::default(),
            crawl: Crawl::default(),
            slower: None,
            slowness: Slowness::default(),
            slow: None,
            last_alerts: BTreeMap::new(),
            status_at: now,
            since_status: 0,
            readings: 0,
            launched: BTreeMap::new(),
        }
    }

    /// Returns the name of the job: Slurm's number, or its program and first process.
    pub(crate) fn name(&self) -> String {
        let named = self.processes.iter().find_map(|process| process.job.clone());
        named.unwrap_or_else(|| {
            let first = self.processes.first();
            first.map_or_else(String::new, |first| format!("{}-{}", first.name, first.key.pid))
        })
    }

    fn tenants(&self) -> BTreeSet<&str> {
        self.processes.iter().map(|process| process.whose()).collect()
    }

    /// Returns the tenant; several together are one of their own.
    pub(crate) fn whose(&self) -> String {
        flow::text::joined(self.tenants(), "+")
    }

    /// Returns the tenant of whose processes alone the next dump is; `None`: of all. After a dump of all that did not
    /// confirm what counters say, those take turns whose ranks stand: ranks of another one may be forged, so that all
    /// seems well.
    pub(crate) fn looked_at_alone(
        &self,
        comms: &[&CommState],
        least: Duration,
        now: Duration,
    ) -> Option<String> {
        let stands = |whose: &&str| comms.iter().any(|comm| comm.stands_of(whose, now) >= least);
        let tenants: Vec<&str> = self.tenants().into_iter().filter(stands).collect();
        let turn = self.whole.standing.looks_in_vain().checked_rem(tenants.len() + 1)?;
        tenants.get(turn.checked_sub(1)?).map(|whose| (*whose).to_owned())
    }

    pub(crate) fn described(&self, communicators: usize) -> JobOfEvent {
        self.described_of(None, communicators)
    }

    /// Describes the job, or what a tenant has of it.
    fn described_of(&self, of: Option<&str>, communicators: usize) -> JobOfEvent {
        let own = || self.processes.iter().filter(|process| of.is_none_or(|of| process.whose() == of));
        let first = own().next();
        JobOfEvent {
            number: self.number,
            name: self.name(),
            user: first.map(|first| first.user.clone()).unwrap_or_default(),
            container: first.and_then(|first| first.container.clone()),
            pod: first.and_then(|first| first.pod.clone()),
            whose: of.map_or_else(|| self.whose(), str::to_owned),
            pids: own().map(|process| process.key.pid).collect(),
            communicators,
        }
    }

    /// Returns the kinds that are open.
    pub(crate) fn open(&self) -> BTreeSet<AlertKind> {
        let standing = self.stands().filter_map(|stands| stands.standing.open()).map(|(kind, _)| kind);
        let slower = self.slower.map(|_| AlertKind::Slower);
        let slow = self.slow.as_ref().map(|_| AlertKind::Slow);
        let error = (!self.errors.is_empty()).then_some(AlertKind::Error);
        standing.chain(slower).chain(slow).chain(error).collect()
    }

    /// Returns the ranks that are waited for, with their communicators.
    pub(crate) fn waited_for(&self) -> Vec<(&CommOfEvent, &[u32])> {
        let open = self.stands().filter_map(|stands| stands.alert.as_ref()).chain(&self.slow);
        open.map(|open| (&open.communicator, open.waited_for.as_slice())).collect()
    }

    /// Takes a reading.
    pub(crate) fn step(&mut self, host: &HostState<'_>, mut turn: Turn<'_>) -> Steps {
        let mut steps = Steps::default();
        let collectives = self.count(turn.comms);
        self.step_standings(host.gpus, &mut turn, &mut steps);
        self.watch_errors(host, &mut turn, &mut steps);
        self.watch_pace(collectives, &mut turn, &mut steps);
        self.watch_slowness(host, &mut turn, &mut steps);
        steps
    }

    /// Takes the verdict of a dump that was asked for: of the job, or of a tenant alone.
    pub(crate) fn looked(
        &mut self,
        of: Option<&str>,
        look: Result<Look, String>,
        mut turn: Turn<'_>,
    ) -> Steps {
        let mut steps = Steps::default();
        let crawling = look.as_ref().ok().filter(|_| of.is_none() && self.crawl.confirms(&look, turn.now));
        let crawling = crawling.cloned();
        self.looked_at_standing(of, look, &mut turn, &mut steps);
        if let Some(look) = crawling.filter(|_| !self.stands().any(Stands::is_open)) {
            self.tell_crawl(look, &mut turn, &mut steps);
        }
        steps
    }

    /// Ends all that is open: the job has no process left.
    pub(crate) fn end(&mut self, settings: &Settings, now: Duration) -> Vec<EventBody> {
        let mut steps = Steps::default();
        self.end_standings(&Turn { comms: &[], settings, now, numbers: &mut 0 }, &mut steps);
        let errors = std::mem::take(&mut self.errors)
            .into_values()
            .map(|error| (error.alert, error.begun, AlertKind::Error));
        let slower = self.slower.take().map(|(alert, begun)| (alert, begun, AlertKind::Slower));
        let slow = self.slow.take().map(|open| (open.alert, open.begun, AlertKind::Slow));
        for (alert, begun, kind) in errors.chain(slower).chain(slow).collect::<Vec<_>>() {
            steps.events.push(self.ended(kind, alert, begun, now, 0, "the job has ended"));
        }
        steps.events
    }

    /// Returns the job's state since the last status.
    pub(crate) fn status(&mut self, comms: &[&mut CommState], now: Duration) -> EventBody {
        let seconds = now.saturating_sub(self.status_at).as_secs_f64();
        let mut last: BTreeMap<u32, u32> = BTreeMap::new();
        for rank in comms.iter().flat_map(|comm| comm.ranks.values()) {
            let most = last.entry(rank.process.key.pid).or_default();
            *most = rank.last_of_all.max(*most);
        }
        let last =
            last.into_iter().max_by_key(|(_, readings)| *readings).filter(|(_, readings)| *readings > 0);
        let usual = comms.iter().filter_map(|comm| comm.rhythm.usual()).max();
        let still = comms.iter().map(|comm| comm.stands_for(now)).min();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rates = JobRates {
            seconds,
            collectives_per_second: if seconds > 0.0 { self.since_status as f64 / seconds } else { 0.0 },
            iteration_seconds: usual.map(|usual| usual.as_secs_f64()),
            still_seconds: still.unwrap_or_default().as_secs_f64(),
            last_pid: last.map(|(pid, _)| pid),
            last_share: last
                .map_or(0.0, |(_, readings)| f64::from(readings) / f64::from(self.readings.max(1))),
        };
        (self.status_at, self.since_status, self.readings) = (now, 0, 0);
        let mut event = EventBody::new(EventType::Status, self.sentence(&rates));
        event.job = Some(self.described(comms.len()));
        event.rates = Some(rates);
        event
    }

    /// Tells whether the last status is so long ago.
    pub(crate) fn is_status_due(&self, every: Duration, now: Duration) -> bool {
        now.saturating_sub(self.status_at) >= every
    }

    fn sentence(&self, rates: &JobRates) -> String {
        let iteration = rates
            .iteration_seconds
            .map_or_else(String::new, |seconds| format!(", an iteration in {seconds:.0} s"));
        let still = if rates.still_seconds < 3.0 {
            String::new()
        } else {
            format!("; nothing has moved for {:.0} s", rates.still_seconds)
        };
        let last = rates.last_pid.filter(|_| rates.last_share >= 0.5).map_or_else(String::new, |pid| {
            format!("; process {pid} was the last at {:.0} % of the readings", rates.last_share * 100.0)
        });
        let open: Vec<&str> = self.open().into_iter().map(AlertKind::name).collect();
        let open = if open.is_empty() { String::new() } else { format!(" [{}]", open.join(", ")) };
        format!(
            "{} collectives/s{iteration}{still}{last}{open}",
            flow::text::number(rates.collectives_per_second)
        )
    }

    /// Tells whether an alert may begin: of the job, or of a tenant, where several share it.
    fn may_begin(&self, whose: Option<&str>, turn: &Turn<'_>) -> bool {
        turn.is_long_since(self.last_alerts.get(&turn.sharer(whose)).copied())
    }

    /// Returns the collectives launched since the reading before.
    fn count(&mut self, comms: &[&CommState]) -> u64 {
        self.readings += 1;
        let mut sum = 0_u64;
        let mut launched = BTreeMap::new();
        for comm in comms {
            let count = comm.launched();
            if let Some(before) = self.launched.get(&comm.key) {
                sum = sum.saturating_add(count.saturating_sub(*before));
            }
            launched.insert(Arc::clone(&comm.key), count);
        }
        self.launched = launched;
        self.since_status = self.since_status.saturating_add(sum);
        sum
    }

    /// Begins an alert: of the job, or of a tenant, where several share it.
    fn begun(&mut self, kind: AlertKind, whose: Option<&str>, turn: &mut Turn<'_>) -> EventBody {
        *turn.numbers += 1;
        if kind.is_alert() {
            self.last_alerts.insert(turn.sharer(whose), turn.now);
            let tenants: BTreeSet<&str> = self.processes.iter().map(|process| process.whose()).collect();
            self.last_alerts.retain(|whose, _| whose.as_ref().is_none_or(|whose| tenants.contains(&**whose)));
        }
        let mut event = EventBody::new(EventType::Begin, String::new());
        (event.kind, event.alert) = (Some(kind), Some(*turn.numbers));
        event.job = Some(self.described(turn.comms.len()));
        event
    }

    fn ended(
        &self,
        kind: AlertKind,
        alert: u64,
        begun: Duration,
        now: Duration,
        communicators: usize,
        why: &str,
    ) -> EventBody {
        let mut event = EventBody::new(EventType::End, format!("The alert {} is over: {why}.", kind.name()));
        (event.kind, event.alert) = (Some(kind), Some(alert));
        event.job = Some(self.described(communicators));
        event.seconds = Some(now.saturating_sub(begun).as_secs_f64());
        event
    }
}

/// What a reading tells beside communicators.
#[derive(Debug)]
pub(crate) struct HostState<'a> {
    pub(crate) gpus: &'a [GpuState],
    pub(crate) ports: Option<&'a [Port]>,
    pub(crate) processors: &'a ProcessorGrowths,
}

/// What an event begins by: communicators of its job, and the number of the last alert.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) comms: &'a [&'a CommState],
    pub(crate) settings: &'a Settings,
    pub(crate) now: Duration,
    pub(crate) numbers: &'a mut u64,
}

impl Turn<'_> {
    /// Returns the tenant, if several share the job: none of them holds back alerts of another.
    fn sharer(&self, whose: Option<&str>) -> Option<String> {
        whose.filter(|_| self.comms.iter().any(|comm| comm.is_shared())).map(str::to_owned)
    }

    fn is_long_since(&self, alert: Option<Duration>) -> bool {
        alert.is_none_or(|last| self.now.saturating_sub(last) >= self.settings.between_alerts)
    }
}

fn of_comm(key: &CommKey, name: Option<String>) -> CommOfEvent {
    CommOfEvent { comm_hash: key.hash.clone(), name, n_ranks: key.n_ranks }
}

fn of_rank(rank: &RankState) -> Culprit {
    let pid = Some(rank.process.key.pid);
    Culprit { rank: rank.info.rank, pid, gpu: rank.info.gpu, ..Culprit::default() }
}

/// Returns a culprit with what was known of its process, where that has ended.
fn known(culprit: Culprit, state: Option<&CommState>) -> Culprit {
    let mut ranks = state.into_iter().flat_map(|state| state.ranks.values());
    let known = ranks.find(|rank| rank.info.rank == culprit.rank).map(of_rank);
    let (pid, gpu) = known.map_or((None, None), |known| (known.pid, known.gpu));
    Culprit { pid: culprit.pid.or(pid), gpu: culprit.gpu.or(gpu), ..culprit }
}

/// Tells an alert by counters alone, as no dump does.
fn by_counters(event: &mut EventBody, state: Option<&CommState>) {
    let behind = state.map(CommState::behind).unwrap_or_default();
    let gone = state.map(CommState::gone).unwrap_or_default();
    let culprits = if gone.is_empty() { &behind } else { &gone };
    event.culprits = culprits.iter().map(|rank| of_rank(rank)).collect();
    let numbers = flow::text::joined(culprits.iter().map(|rank| rank.info.rank), ", ");
    let seconds = event.seconds.unwrap_or_default();
    event.sentence = match (gone.is_empty(), culprits.is_empty()) {
        (false, _) => {
            format!("The processes of ranks {numbers} have ended, and nothing has moved for {seconds:.0} s.")
        }
        (true, false) => format!(
            "Nothing has moved for {seconds:.0} s, and ranks {numbers} have launched fewer collectives."
        ),
        (true, true) => format!("Operations are in flight, and nothing has moved for {seconds:.0} s."),
    };
    event.sentence.push_str(" (By NCCL's counters alone: no dump tells more.)");
}
