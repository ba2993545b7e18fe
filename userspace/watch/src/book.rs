//! All jobs of this host, from reading to reading: which processes are a job, and what happens to it. Pure:
//! time is a value.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use crate::{
    communicator::CommState,
    event::{AlertKind, CommOfEvent, EventBody, EventType, JobOfEvent},
    job::{HostState, Job, Steps, Turn},
    look::Look,
    reading::{CommKey, HostReading, ProcessInfo, ProcessKey, ProcessReading},
    settings::Settings,
    standing::LOOK_AHEAD,
};

/// Time between two statuses of a job.
const STATUS_EVERY: Duration = Duration::from_mins(1);

/// A dump of these processes of a job is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedLook {
    pub job: u64,
    /// Tenant for whom alone the verdict is; `None`: for the job.
    pub of: Option<String>,
    /// Tenant of the job.
    pub whose: String,
    pub pids: Vec<u32>,
}

/// Events of a reading, and dumps that it makes wanted.
#[derive(Debug, Default)]
pub struct News {
    pub events: Vec<EventBody>,
    pub looks: Vec<WantedLook>,
}

/// A job, for tables and metrics.
#[derive(Debug)]
pub struct JobView<'b> {
    pub job: JobOfEvent,
    pub open: BTreeSet<AlertKind>,
    /// Communicators in which ranks wait, and the ranks that they wait for.
    pub waited_for: Vec<(&'b CommOfEvent, &'b [u32])>,
    /// Usual time of an iteration; `None` where it is shorter than about two readings.
    pub iteration: Option<Duration>,
    pub comms: Vec<&'b CommState>,
}

/// State of all jobs.
#[derive(Debug, Default)]
pub struct Book {
    settings: Settings,
    comms: BTreeMap<Arc<CommKey>, CommState>,
    /// Communicators of which two tenants claim one rank: there each tenant's ranks are a communicator of their own.
    apart: BTreeSet<Arc<CommKey>>,
    /// Job of each process.
    jobs_of: BTreeMap<ProcessKey, u64>,
    jobs: BTreeMap<u64, Job>,
    /// Numbers given to jobs and alerts.
    job_numbers: u64,
    alert_numbers: u64,
    /// Alerts that began, by kind.
    begun: BTreeMap<AlertKind, u64>,
}

impl Book {
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Takes a reading of all processes at a moment, given as the time since some beginning.
    pub fn take(&mut self, readings: &[ProcessReading], host: &HostReading, now: Duration) -> News {
        let is_regrouped = self.take_readings(readings, now);
        if is_regrouped {
            self.group(now);
        }
        let mut news = News::default();
        let processors =
            readings.iter().filter_map(|reading| Some((reading.info.key, reading.processor?))).collect();
        let host = HostState { gpus: &host.gpus, ports: host.ports.as_deref(), processors: &processors };
        let comms = &self.comms;
        for job in self.jobs.values_mut() {
            let own = comms_of(comms, &self.jobs_of, job.number);
            let turn = Turn { comms: &own, settings: &self.settings, now, numbers: &mut self.alert_numbers };
            let steps = job.step(&host, turn);
            if steps.look {
                let is_coming = own.iter().any(|comm| comm.is_coming());
                let others = readings.iter().filter(|reading| is_coming && is_of_job(reading, job));
                let infos = job.processes.iter().chain(others.map(|reading| &reading.info));
                let only = job.looked_at_alone(&own, self.settings.least.saturating_sub(LOOK_AHEAD), now);
                let infos = infos.filter(|info| only.as_deref().is_none_or(|only| info.whose() == only));
                let pids = infos.map(|process| process.key.pid).collect();
                let whose = only.unwrap_or_else(|| job.whose());
                news.looks.push(WantedLook { job: job.number, of: None, whose, pids });
            }
            for whose in steps.looks_of {
                let own = job.processes.iter().filter(|process| process.whose() == whose);
                let pids = own.map(|process| process.key.pid).collect();
                news.looks.push(WantedLook { job: job.number, of: Some(whose.clone()), whose, pids });
            }
            news.events.extend(steps.events);
        }
        self.end_jobs(now, &mut news);
        self.count(&news.events);
        news
    }

    /// Takes the verdict of a dump of a job, which was wanted for it, or for a tenant alone.
    pub fn looked(
        &mut self,
        job: u64,
        of: Option<&str>,
        look: Result<Look, String>,
        now: Duration,
    ) -> Vec<EventBody> {
        let Some(job) = self.jobs.get_mut(&job) else { return Vec::new() };
        let own = comms_of(&self.comms, &self.jobs_of, job.number);
        let turn = Turn { comms: &own, settings: &self.settings, now, numbers: &mut self.alert_numbers };
        let Steps { events, .. } = job.looked(of, look, turn);
        self.count(&events);
        events
    }

    /// Takes note of an alert on ncclflow itself that begins. Returns its number.
    pub(crate) fn begin(&mut self, kind: AlertKind) -> u64 {
        self.alert_numbers += 1;
        *self.begun.entry(kind).or_default() += 1;
        self.alert_numbers
    }

    /// Returns the statuses that are due.
    pub fn statuses(&mut self, now: Duration) -> Vec<EventBody> {
        let mut events = Vec::new();
        for job in self.jobs.values_mut().filter(|job| job.is_status_due(STATUS_EVERY, now)) {
            let jobs_of = &self.jobs_of;
            let of_job = |state: &&mut CommState| is_of(state, jobs_of, job.number);
            let mut own: Vec<&mut CommState> = self.comms.values_mut().filter(of_job).collect();
            events.push(job.status(&own, now));
            for rank in own.iter_mut().flat_map(|state| state.ranks.values_mut()) {
                rank.last_of_all = 0;
            }
        }
        events
    }

    /// Returns all jobs as they are.
    pub fn view(&self) -> impl Iterator<Item = JobView<'_>> {
        self.jobs.values().map(|job| {
            let comms = comms_of(&self.comms, &self.jobs_of, job.number);
            JobView {
                job: job.described(comms.len()),
                open: job.open(),
                waited_for: job.waited_for(),
                iteration: comms.iter().filter_map(|comm| comm.rhythm.usual()).max(),
                comms,
            }
        })
    }

    /// Returns the number of alerts that began, by kind.
    pub fn begun(&self, kind: AlertKind) -> u64 {
        self.begun.get(&kind).copied().unwrap_or_default()
    }

    /// Tells which communicators stand for so long that the steps of their proxies are worth a look.
    pub fn stands(&self, key: &CommKey, longer_than: Duration, now: Duration) -> bool {
        let mut alike = self.comms.range::<CommKey, _>(key..).take_while(|(other, _)| other.is_like(key));
        alike.any(|(_, state)| state.has_moved && now.saturating_sub(state.still_since()) >= longer_than)
    }

    /// Finds communicators of which two tenants claim one rank. A tenant can write any hash and rank into its own
    /// memory, and tenants can have one user. Without such a claim they are one job, as pods of one host can be.
    fn tell_apart(&mut self, readings: &[ProcessReading]) {
        let mut claims: BTreeMap<&Arc<CommKey>, BTreeMap<u32, &str>> = BTreeMap::new();
        let mut found: BTreeSet<Arc<CommKey>> = BTreeSet::new();
        for process in readings {
            for rank in &process.ranks {
                let (key, number) = (&rank.info.comm, rank.info.rank);
                let state = self.comms.get(key);
                let is_known =
                    state.is_some_and(|state| state.ranks.contains_key(&(number, process.info.key)));
                if is_known || self.apart.contains(key) {
                    continue;
                }
                let of_comm = claims.entry(key).or_insert_with(|| {
                    let ranks = state.into_iter().flat_map(|state| state.ranks.values());
                    ranks.map(|rank| (rank.info.rank, rank.process.whose())).collect()
                });
                if *of_comm.entry(number).or_insert(process.info.whose()) != process.info.whose() {
                    found.insert(Arc::clone(key));
                }
            }
        }
        for key in found {
            let parts = self.comms.remove(&key).map(CommState::apart).unwrap_or_default();
            self.comms.extend(parts.into_iter().map(|part| (Arc::clone(&part.key), part)));
            self.apart.insert(key);
        }
    }

    /// Takes the readings. Tells whether a process or a communicator has come or gone.
    fn take_readings(&mut self, readings: &[ProcessReading], now: Duration) -> bool {
        let mut is_regrouped = false;
        self.tell_apart(readings);
        for state in self.comms.values_mut() {
            state.was_seen = false;
        }
        for process in readings {
            for rank in &process.ranks {
                let mut key = Arc::clone(&rank.info.comm);
                if self.apart.contains(&key) {
                    let tenant = Some(process.info.whose().to_owned());
                    key = Arc::new(CommKey { tenant, ..(*key).clone() });
                }
                let state = self.comms.entry(key);
                is_regrouped |= matches!(state, Entry::Vacant(_));
                let state = state.or_insert_with_key(|key| CommState::new(Arc::clone(key), now));
                state.was_seen = true;
                is_regrouped |= !state.ranks.contains_key(&(rank.info.rank, process.info.key));
                state.take(&process.info, process.is_live, rank, now);
            }
        }
        let read: BTreeSet<ProcessKey> = readings.iter().map(|process| process.info.key).collect();
        for state in self.comms.values_mut() {
            state.settle(&read, now);
        }
        let before = self.comms.len();
        self.comms.retain(|_, state| state.was_seen && !state.is_over());
        let comms = &self.comms;
        self.apart.retain(|key| {
            let next = comms.range::<CommKey, _>(&**key..).next();
            next.is_some_and(|(other, _)| other.is_like(key))
        });
        is_regrouped | (self.comms.len() != before)
    }

    /// Puts processes that share a communicator into one job. A job keeps its number while it has a process.
    fn group(&mut self, now: Duration) {
        let mut processes: BTreeMap<ProcessKey, Arc<ProcessInfo>> = BTreeMap::new();
        let mut groups: Vec<BTreeSet<ProcessKey>> = Vec::new();
        for state in self.comms.values() {
            let mut group: BTreeSet<ProcessKey> = BTreeSet::new();
            for rank in state.ranks.values() {
                processes.insert(rank.process.key, Arc::clone(&rank.process));
                group.insert(rank.process.key);
            }
            let (joined, apart): (Vec<_>, Vec<_>) =
                groups.into_iter().partition(|other: &BTreeSet<ProcessKey>| !other.is_disjoint(&group));
            group.extend(joined.into_iter().flatten());
            groups = apart;
            groups.push(group);
        }
        let (mut jobs_of, mut taken) = (BTreeMap::new(), BTreeSet::new());
        for job in self.jobs.values_mut() {
            job.processes.clear();
        }
        for group in groups {
            let known = group.iter().filter_map(|process| self.jobs_of.get(process)).copied();
            let number = known.filter(|number| !taken.contains(number)).min().unwrap_or_else(|| {
                self.job_numbers += 1;
                self.job_numbers
            });
            taken.insert(number);
            let job = self.jobs.entry(number).or_insert_with(|| Job::new(number, now));
            job.processes = group.iter().filter_map(|key| processes.get(key).cloned()).collect();
            jobs_of.extend(group.into_iter().map(|key| (key, number)));
        }
        self.jobs_of = jobs_of;
    }

    fn end_jobs(&mut self, now: Duration, news: &mut News) {
        let ended: Vec<Job> =
            self.jobs.extract_if(.., |_, job| job.processes.is_empty()).map(|(_, job)| job).collect();
        for mut job in ended {
            news.events.extend(job.end(&self.settings, now));
        }
    }

    fn count(&mut self, events: &[EventBody]) {
        let begins = events.iter().filter(|event| event.event == EventType::Begin);
        for kind in begins.filter_map(|event| event.kind) {
            *self.begun.entry(kind).or_default() += 1;
        }
    }
}

/// Tells whether a process without communicators can be one that a job waits for.
fn is_of_job(reading: &ProcessReading, job: &Job) -> bool {
    let info = &reading.info;
    let is_like = |other: &Arc<ProcessInfo>| {
        (&other.name, &other.user, &other.job, &other.container)
            == (&info.name, &info.user, &info.job, &info.container)
    };
    reading.is_live && reading.ranks.is_empty() && job.processes.iter().any(is_like)
}

fn is_of(state: &CommState, jobs_of: &BTreeMap<ProcessKey, u64>, job: u64) -> bool {
    state.ranks.keys().next().is_some_and(|(_, process)| jobs_of.get(process) == Some(&job))
}

fn comms_of<'c>(
    comms: &'c BTreeMap<Arc<CommKey>, CommState>,
    jobs_of: &BTreeMap<ProcessKey, u64>,
    job: u64,
) -> Vec<&'c CommState> {
    comms.values().filter(|state| is_of(state, jobs_of, job)).collect()
}
