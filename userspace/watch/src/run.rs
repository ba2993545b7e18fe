//! The loop: reads counters once a second, has suspicions looked at, and tells what happens. It waits for
//! nobody: searches, dumps, disks, the GPUs' driver and programs have threads or processes of their own.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::mpsc::TryRecvError,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use dump::{Choice, DumpReport};
use inspect::{clock::now_ns, gpu::GpuSamples, host::host_name, privileges};
use nccl_library::symbols::DebugFiles;
use rustix::time::ClockId;

use crate::{
    blind::{BlindChange, Blindness},
    book::{Book, News, WantedLook},
    dumps::{Answer, Ask, Dumps},
    event::{AlertKind, Event, EventBody, EventType, JobOfEvent, SCHEMA},
    exec::Exec,
    find::{Find, Found, Round},
    live::Processes,
    look::Look,
    own::OwnState,
    ports::Ports,
    reading::HostReading,
    settings::Settings,
    store::{self, Budget, Store},
};

/// Why the loop ends without the thread that finds processes: nothing new would be seen.
const FIND_HAS_ENDED: &str = "the thread `ncclflow-find` has ended";
/// Longest time between two looks whether the end is asked for.
const PATIENCE: Duration = Duration::from_millis(200);
/// Time that an event waits for its dump to be written.
const KEPT_WITHIN: Duration = Duration::from_secs(20);
/// Time after which a thread that takes dumps is given up for a new one, and how many may be.
const DUMPS_WITHIN: Duration = Duration::from_mins(3);
const MAX_LOST_THREADS: u32 = 4;
/// Time between two readings from which on they are late, and readings that may be left out.
const LATE: Duration = Duration::from_secs(5);
const LATE_READINGS: u32 = 3;
/// Longest time that the first reading waits for the processes of the host.
const FIRST_ROUND: Duration = Duration::from_secs(10);
/// Time for which new processes are said not to be found after a round that failed.
const BLIND_ROUND: Duration = Duration::from_secs(8);
/// Time that the end waits for programs of `--exec`.
const EXEC_AT_END: Duration = Duration::from_secs(2);

/// Choice of what is watched, and how.
#[derive(Debug)]
pub struct WatchOptions {
    pub choice: Choice,
    pub interval: Duration,
    pub settings: Settings,
    pub debug_files: DebugFiles,
    /// Samples of the GPUs; empty without.
    pub gpus: GpuSamples,
    /// Folder in which dumps are kept, with its bounds.
    pub dump_to: Option<(PathBuf, Budget)>,
    /// Program that is told of alerts, and its time limit.
    pub exec: Option<(PathBuf, Duration)>,
}

/// Whoever started the loop: is told, and asked.
pub trait Observer {
    /// An event.
    fn event(&mut self, event: &Event);
    /// A reading is done, and was taken at this moment. The first one comes when all processes are known, or
    /// finding them takes long.
    fn reading(&mut self, book: &Book, own: &OwnState, now: Duration);
    /// Tells of what runs beside the loop and was lost since the call before.
    fn lost(&mut self) -> Option<String> {
        None
    }
    /// Waits so long, or less. `true`: the loop is to end.
    fn wait(&mut self, longest: Duration) -> bool;
}

/// Watches until the end is asked for; processes that were named, until all have ended.
///
/// # Errors
/// A named process is not there, the folder or the program cannot be used, or no thread can be started.
pub fn watch(options: WatchOptions, observer: &mut dyn Observer) -> Result<()> {
    let mut missing = Vec::new();
    if let Choice::Pids(_) = options.choice {
        // Says what is wrong where none is there.
        missing = dump::chosen(&options.choice)?.refused;
    }
    let missing = missing.last().map(|(_, why)| (missing.len(), why.to_string()));
    let store = options.dump_to.as_ref().map(|(path, budget)| Store::open(path, *budget)).transpose()?;
    let keeps = store.is_some();
    let exec = options.exec.as_ref().map(|(path, limit)| Exec::new(path, *limit)).transpose()?;
    privileges::keep_only(privileges::DUMPS.union(privileges::WRITES_ELSEWHERE));
    let find =
        Find::start(options.choice.clone(), options.debug_files.clone()).context("starting a thread")?;
    let dumps = Dumps::start(options.debug_files.clone(), store).context("starting a thread")?;
    let ports = Ports::start().context("starting a thread")?;
    let running = Running {
        begun: Instant::now(),
        book: Book::new(options.settings),
        processes: Processes::default(),
        ports,
        find,
        dumps,
        exec,
        keeps,
        looking: BTreeSet::new(),
        held: BTreeMap::new(),
        outstanding: None,
        has_lost_dumps: false,
        events: 0,
        lost_threads: 0,
        blindness: Blindness::default(),
        blind_alert: 0,
        read_at: None,
        find_failed: None,
        round: Default::default(),
        missing,
        said: BTreeMap::new(),
        own: OwnState::default(),
        options,
        observer,
    };
    running.run()
}

/// An event whose dump is being written.
#[derive(Debug)]
struct Held {
    body: EventBody,
    unix_time_ns: u64,
    since: Duration,
}

struct Running<'o> {
    options: WatchOptions,
    observer: &'o mut dyn Observer,
    begun: Instant,
    book: Book,
    processes: Processes,
    ports: Ports,
    find: Find,
    dumps: Dumps,
    exec: Option<Exec>,
    /// Dumps are kept.
    keeps: bool,
    /// Jobs, and tenants of them, of which a dump was asked for.
    looking: BTreeSet<(u64, Option<String>)>,
    /// Events that wait for their dump.
    held: BTreeMap<u64, Held>,
    /// Since when the thread that takes dumps owes an answer, and whether it has ended.
    outstanding: Option<Duration>,
    has_lost_dumps: bool,
    events: u64,
    lost_threads: u32,
    blindness: Blindness,
    /// Number of the alert that ncclflow does not see all.
    blind_alert: u64,
    /// When the reading before was taken, and when and why new processes could not be found.
    read_at: Option<Duration>,
    find_failed: Option<(Duration, String)>,
    /// The last round of finding, and when it was done.
    round: (Duration, Round),
    /// Processes that were named and were not there at the beginning, with the reason of one.
    missing: Option<(usize, String)>,
    /// Notices, by subject, and when each was said.
    said: BTreeMap<&'static str, (Duration, String)>,
    own: OwnState,
}

impl Running<'_> {
    fn run(mut self) -> Result<()> {
        // The first reading is of all processes that are there now, unless a tenant's take long.
        while matches!(self.options.choice, Choice::Pids(_)) || self.now() < FIRST_ROUND {
            match self.find.found.recv_timeout(PATIENCE) {
                Ok(found) => {
                    let is_round = matches!(found, Found::Round(_));
                    self.take_found(found);
                    if is_round {
                        break;
                    }
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    bail!(FIND_HAS_ENDED)
                }
            }
            if self.observer.wait(Duration::ZERO) {
                return Ok(());
            }
        }
        if let Choice::Pids(_) = self.options.choice
            && self.processes.watched() == 0
            && let Some(why) = self.not_watched()
        {
            bail!(why);
        }
        let mut next = Instant::now();
        loop {
            self.tick()?;
            if self.is_over() {
                break;
            }
            // A reading that was late is not made up for.
            next = (next + self.options.interval).max(Instant::now());
            let mut ends = false;
            while !ends && Instant::now() < next {
                let left = next.saturating_duration_since(Instant::now());
                ends = self.observer.wait(left.min(PATIENCE));
                self.between();
            }
            if ends {
                break;
            }
        }
        for number in self.held.keys().copied().collect::<Vec<_>>() {
            self.release(number, None);
        }
        if let Some(exec) = &mut self.exec {
            exec.end(EXEC_AT_END);
        }
        Ok(())
    }

    /// Says that processes cannot be watched, and why.
    fn not_watched(&self) -> Option<String> {
        let all = || self.missing.iter().chain(&self.processes.unknown);
        let (_, why) = all().last()?;
        let count: usize = all().map(|(count, _)| count).sum();
        Some(match count {
            1 => format!("a process cannot be watched: {why}"),
            _ => format!("{count} processes cannot be watched, one of them because {why}"),
        })
    }

    /// Tells whether all processes that were named have ended.
    fn is_over(&self) -> bool {
        let Choice::Pids(pids) = &self.options.choice else { return false };
        self.processes.is_empty() && pids.iter().all(|pid| inspect::process::Process::open(*pid).is_err())
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn tick(&mut self) -> Result<()> {
        let has_ended = loop {
            match self.find.found.try_recv() {
                Ok(found) => self.take_found(found),
                Err(why) => break why == TryRecvError::Disconnected,
            }
        };
        ensure!(!has_ended, FIND_HAS_ENDED);
        let now = self.now();
        let find = &self.find;
        let readings = self.processes.read(&self.book, now, |pid| find.again(pid));
        let host = HostReading { gpus: self.processes.gpus(&self.options.gpus), ports: self.ports.latest() };
        let News { events, looks } = self.book.take(&readings, &host, now);
        self.tell_all(events, None);
        for WantedLook { job, of, whose, pids } in looks {
            self.looking.insert((job, of.clone()));
            self.ask(whose, Ask::Look { job, of, pids });
        }
        let statuses = self.book.statuses(now);
        self.tell_all(statuses, None);
        self.check_own(now)?;
        self.between();
        self.own.readings += 1;
        self.own.processes = self.processes.watched();
        self.own.unread = self.processes.unread;
        self.observer.reading(&self.book, &self.own, now);
        Ok(())
    }

    /// Does what cannot wait for the next reading.
    fn between(&mut self) {
        loop {
            match self.dumps.answers.try_recv() {
                Ok(answer) => {
                    self.outstanding = None;
                    self.take_answer(answer);
                }
                Err(why) => {
                    self.has_lost_dumps |= why == TryRecvError::Disconnected && self.outstanding.is_some();
                    break;
                }
            }
        }
        if let Some(why) = self.observer.lost() {
            self.notice("recording", why);
        }
        if let Some(exec) = &mut self.exec {
            let said = exec.tick();
            (self.own.exec_failed, self.own.exec_left_out) = (exec.failed, exec.left_out);
            for why in said {
                self.notice("exec", why);
            }
        }
    }

    fn take_found(&mut self, found: Found) {
        match found {
            Found::Processes(found) => self.processes.put(found),
            Found::GivenUp(pids) => self.processes.give_up(&pids),
            Found::Round(round) => {
                let sight = round.sight;
                (self.own.left_out, self.own.sight) = (round.left_out, sight);
                self.round = (self.now(), round);
                // Once: the numbers go on changing, and are in the metrics.
                if let Some(problem) = sight.problem().filter(|_| !self.said.contains_key("sight")) {
                    self.notice("sight", problem);
                }
            }
            Found::Blind(why) => {
                self.find_failed = Some((self.now(), why.clone()));
                self.notice("processes", format!("new processes cannot be found: {why}"));
            }
        }
    }

    fn ask(&mut self, whose: String, ask: Ask) {
        let now = self.now();
        // Of a thread that has ended, too: another one is started.
        self.dumps.ask(whose, ask);
        self.outstanding.get_or_insert(now);
    }

    fn take_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Looked { job, of, report } => {
                self.looking.remove(&(job, of.clone()));
                let look = report.as_ref().map(|report| Look::of(report)).map_err(Clone::clone);
                if let Err(why) = &report {
                    self.own.dumps_lost += 1;
                    self.notice("dump", format!("a dump of job {job} failed: {why}"));
                }
                let now = self.now();
                let events = self.book.looked(job, of.as_deref(), look, now);
                self.tell_all(events, report.ok());
            }
            Answer::Kept { event, kept } => {
                if let Err(why) = &kept {
                    self.own.dumps_lost += 1;
                    self.notice("store", why.clone());
                }
                self.release(event, kept.ok());
            }
        }
    }

    /// Looks whether the loop itself is blind.
    fn check_own(&mut self, now: Duration) -> Result<()> {
        let late: Vec<u64> = self
            .held
            .iter()
            .filter(|(_, held)| now.saturating_sub(held.since) > KEPT_WITHIN)
            .map(|(at, _)| *at)
            .collect();
        for number in late {
            self.notice("store", "a dump is not written in time: the disk may not answer".to_owned());
            self.release(number, None);
        }
        let is_late = self.outstanding.is_some_and(|since| now.saturating_sub(since) > DUMPS_WITHIN);
        if std::mem::take(&mut self.has_lost_dumps) || is_late {
            self.own.dumps_lost += 1;
            self.outstanding = None;
            self.notice("dump", "a dump does not come back".to_owned());
            if self.lost_threads < MAX_LOST_THREADS {
                self.lost_threads += 1;
                let store = self.options.dump_to.as_ref();
                let store = store.map(|(path, budget)| Store::open(path, *budget)).transpose().ok().flatten();
                self.dumps =
                    Dumps::start(self.options.debug_files.clone(), store).context("starting a thread")?;
            }
            for (job, of) in std::mem::take(&mut self.looking) {
                let lost = Err("it does not come back".to_owned());
                let events = self.book.looked(job, of.as_deref(), lost, now);
                self.tell_all(events, None);
            }
        }
        self.own.gpus_hang = self.options.gpus.missing().is_some_and(|why| why.contains("does not answer"));
        self.check_sight(now);
        if let Some(sentence) = self.not_watched() {
            self.notice("unknown", sentence);
        }
        Ok(())
    }

    /// Looks whether something is not seen, and tells of it once.
    fn check_sight(&mut self, now: Duration) {
        let mut note = |subject, sentence: String| self.blindness.note(subject, sentence, now);
        if self.own.gpus_hang {
            note("gpus", "the GPUs' driver does not answer: GPUs are not seen".to_owned());
        }
        if self.ports.is_lost() {
            note("ports", "network adapters do not answer: their ports are not seen".to_owned());
        }
        if self.processes.unread > 0 {
            note("unread", format!("{} processes do not let themselves be read", self.processes.unread));
        }
        let (round_at, round) = &self.round;
        for (subject, sentence) in round.unseen(now.saturating_sub(*round_at)) {
            note(subject, sentence);
        }
        let failed = self.find_failed.as_ref().filter(|(at, _)| now.saturating_sub(*at) < BLIND_ROUND);
        if let Some((_, why)) = failed {
            note("processes", format!("new processes cannot be found: {why}"));
        }
        let interval = self.options.interval;
        let gap = self.read_at.replace(now).map_or(interval, |before| now.saturating_sub(before));
        if gap >= LATE.max(interval * LATE_READINGS) {
            self.own.late += 1;
            let (gap, interval) = (gap.as_secs_f64(), interval.as_secs_f64());
            let what = format!(
                "{gap:.0} s between two readings instead of {interval}: ncclflow gets too little of the processor"
            );
            note("late", what);
        }
        match self.blindness.judge(now) {
            Some(BlindChange::Begins(why)) => {
                self.blind_alert = self.book.begin(AlertKind::Blind);
                self.tell_blind(EventType::Begin, format!("ncclflow does not see all: {why}."), None);
            }
            Some(BlindChange::Ends(after)) => {
                let sentence = "The alert blind is over: ncclflow sees all again.".to_owned();
                self.tell_blind(EventType::End, sentence, Some(after));
            }
            None => {}
        }
    }

    fn tell_blind(&mut self, event: EventType, sentence: String, after: Option<Duration>) {
        let mut body = EventBody::new(event, sentence);
        (body.kind, body.alert) = (Some(AlertKind::Blind), Some(self.blind_alert));
        body.seconds = after.map(|after| after.as_secs_f64());
        self.tell(body, now_ns(ClockId::Realtime), None);
    }

    fn tell_all(&mut self, events: Vec<EventBody>, report: Option<Box<DumpReport>>) {
        let mut report = report;
        for body in events {
            let begins = body.event == EventType::Begin && body.kind.is_some_and(AlertKind::is_alert);
            let unix_time_ns = now_ns(ClockId::Realtime);
            if !begins || !self.keeps {
                self.tell(body, unix_time_ns, None);
                continue;
            }
            self.events += 1;
            let (number, since) = (self.events, self.now());
            let kind = body.kind.map_or("alert", AlertKind::name);
            let name = store::name(unix_time_ns / 1_000_000, kind);
            let JobOfEvent { pids, whose, .. } = body.job.clone().unwrap_or_default();
            self.held.insert(number, Held { body, unix_time_ns, since });
            let keep = Ask::Keep { event: number, name, whose: whose.clone(), pids, report: report.take() };
            self.ask(whose, keep);
        }
    }

    /// Tells an event whose dump has been written, or will not be.
    fn release(&mut self, number: u64, dump: Option<String>) {
        if let Some(held) = self.held.remove(&number) {
            self.tell(held.body, held.unix_time_ns, dump);
        }
    }

    fn tell(&mut self, body: EventBody, unix_time_ns: u64, dump: Option<String>) {
        let wakes = body.kind.is_some_and(AlertKind::is_alert);
        let ncclflow = env!("CARGO_PKG_VERSION");
        let event = Event { ncclflow, schema: SCHEMA, unix_time_ns, host: host_name(), body, dump };
        self.observer.event(&event);
        if let Some(exec) = self.exec.as_mut().filter(|_| wakes)
            && let Ok(line) = event.line()
        {
            exec.tell(line, event.body.job.as_ref().map_or("", |job| &job.whose));
        }
    }

    /// Says what is lost: of each subject once a minute, and once while it is the same.
    fn notice(&mut self, subject: &'static str, what: String) {
        const EVERY: Duration = Duration::from_mins(1);
        const SAME: Duration = Duration::from_hours(1);
        let now = self.now();
        let is_due = self.said.get(subject).is_none_or(|(when, said)| {
            let every = if *said == what { SAME } else { EVERY };
            now.saturating_sub(*when) >= every
        });
        if is_due {
            self.said.insert(subject, (now, what.clone()));
            self.tell(EventBody::new(EventType::Notice, what), now_ns(ClockId::Realtime), None);
        }
    }
}
