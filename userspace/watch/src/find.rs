//! Finds processes and their communicators, in a thread of its own: a search of a large process takes
//! seconds.
//!
//! What is known is looked at again only where something has changed: a library's own list says so itself,
//! and elsewhere the number of a process's threads does, as NCCL starts threads for each communicator. A
//! process that has the library mapped, as every one that imports torch has, and uses no GPU, is not
//! searched, unless it was chosen by its number.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use dump::{
    Choice,
    watched::{Finder, WatchedProcess},
};
use inspect::{
    failpoint, gpu,
    memory::ScanLimits,
    privileges,
    process::{
        Census, Description, MappedLibrary, Process, Tenant, Users, Visibility, read_text, stat_field,
        try_started,
    },
    resolver::{self, Unseen},
};
use nccl_library::symbols::DebugFiles;

use crate::shares;

/// Shortest and longest time between two rounds. In between, it is so many times what a round takes: 0.04 % of a
/// processor.
const SHORTEST_ROUND: Duration = Duration::from_secs(1);
const LONGEST_ROUND: Duration = Duration::from_secs(5);
const TIMES_A_ROUND: u32 = 2500;
/// First and longest pause before a process is looked at again that no list tells of.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);
/// Looks at a process without communicators that nothing asks for, after its first: over two minutes. The
/// set-up of its first one starts no thread of NCCL's while a rank has not come.
const EARLY_LOOKS: u32 = 5;
/// Looks at a list that is being changed after which memory is searched.
const LISTED_LOOKS: u32 = 3;
/// Time after which no further process of a tenant is looked at before those of others.
const TENANT_WITHIN: Duration = Duration::from_secs(10);
/// Time that one that does not answer takes at least, and first and longest pause of its tenant then.
const SILENCE: Duration = Duration::from_secs(3);
const FIRST_PUT_OFF: Duration = Duration::from_mins(1);
const LONGEST_PUT_OFF: Duration = Duration::from_mins(15);
/// Time after the round before from which on new processes are said not to be seen.
const LONG_ROUND: Duration = Duration::from_secs(20);
/// Most processes that are watched.
const MAX_PROCESSES: usize = 4096;

/// News of the thread.
#[derive(Debug)]
pub(crate) enum Found {
    /// Processes with their communicators, in the place of what was known of them.
    Processes(Vec<WatchedProcess>),
    /// Processes that are watched no more, as others want their places.
    GivenUp(Vec<u32>),
    /// A round is done.
    Round(Round),
    /// The node's processes cannot be listed.
    Blind(String),
}

/// What a round has not looked at.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// Processes with NCCL that are not watched, as there are too many.
    pub(crate) left_out: usize,
    /// Tenant that has most of the places, and how many, if processes are left out.
    most: Option<(Tenant, usize)>,
    /// Processes that wait, as others of their tenants take long.
    late: usize,
    /// How much of the node may be looked at.
    pub(crate) sight: Visibility,
}

impl Round {
    /// Says what is not seen this long after the round, with a subject that tells it apart from others.
    pub(crate) fn unseen(&self, ago: Duration) -> impl Iterator<Item = (&'static str, String)> {
        let Self { left_out, most, late, .. } = self;
        let of = most.as_ref().map(|(tenant, count)| format!("; {count} that are watched are of {tenant}"));
        let of = of.unwrap_or_default();
        let left_out = (*left_out > 0)
            .then(|| format!("{left_out} processes with NCCL are not watched: there are too many{of}"));
        let late = (*late > 0)
            .then(|| format!("{late} processes are not looked at yet: others of their tenants take long"));
        let is_long = ago > LONG_ROUND;
        let round = is_long.then(|| {
            format!("finding processes takes more than {} s: new ones are not seen", LONG_ROUND.as_secs())
        });
        [("left out", left_out), ("late processes", late), ("round", round)]
            .into_iter()
            .filter_map(|(subject, sentence)| Some((subject, sentence?)))
    }
}

/// Asks the thread, and has its news.
#[derive(Debug)]
pub(crate) struct Find {
    again: Sender<u32>,
    pub(crate) found: Receiver<Found>,
}

impl Find {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(choice: Choice, debug_files: DebugFiles) -> io::Result<Self> {
        let (again, asked) = mpsc::channel();
        let (news, found) = mpsc::channel();
        thread::Builder::new().name("ncclflow-find".to_owned()).spawn(move || {
            privileges::keep_only(privileges::DUMPS);
            let limits = ScanLimits { time: Duration::from_secs(10), ..ScanLimits::default() };
            let finder = Finder::new(debug_files, limits);
            let rounds = Rounds {
                choice,
                finder,
                census: Census::default(),
                users: Users::read(),
                known: BTreeMap::new(),
                left_out: BTreeSet::new(),
                late: BTreeSet::new(),
                put_off: HashMap::new(),
            };
            // It ends when nobody listens any more.
            let _ = rounds.run(&asked, &news);
        })?;
        Ok(Self { again, found })
    }

    /// Asks for another look at a process: its communicators have changed.
    pub(crate) fn again(&self, pid: u32) {
        let _ = self.again.send(pid);
    }
}

/// Knowledge of a process.
#[derive(Debug)]
struct Known {
    started: Option<u64>,
    tenant: Option<Tenant>,
    /// Fewest threads since the last look.
    threads: u64,
    list: List,
    uses_gpu: bool,
    communicators: usize,
    /// Nothing of it was left out.
    is_whole: bool,
    looks: u32,
    next: Instant,
}

/// State of the list of communicators that a library keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    /// No list, or one that is switched off (`NCCL_RAS_ENABLE=0`).
    None,
    /// The list was read before, and is being changed.
    Changing,
    /// All communicators are those of the list, which tells when one comes.
    Read,
}

struct Rounds {
    choice: Choice,
    finder: Finder,
    census: Census,
    users: Users,
    known: BTreeMap<u32, Known>,
    left_out: BTreeSet<u32>,
    /// Processes that are to be looked at in the next round.
    late: BTreeSet<u32>,
    /// Tenants of whose processes one did not answer: since when none is looked at, and for how long.
    put_off: HashMap<Option<Tenant>, (Instant, Duration)>,
}

/// A process to look at, with its libraries where they are known.
type Candidate = (Process, Option<Vec<MappedLibrary>>);

/// Nobody listens any more.
struct IsOver;

impl Rounds {
    fn run(mut self, asked: &Receiver<u32>, news: &Sender<Found>) -> Result<(), IsOver> {
        loop {
            let begun = Instant::now();
            let _ = failpoint::here("watch-find");
            self.round(news)?;
            let next = Instant::now() + pause_after(begun.elapsed());
            loop {
                match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
                    Ok(pid) => {
                        let mut pids: BTreeSet<u32> = asked.try_iter().collect();
                        pids.insert(pid);
                        self.look_again(pids, news)?;
                    }
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return Err(IsOver),
                }
            }
        }
    }

    fn round(&mut self, news: &Sender<Found>) -> Result<(), IsOver> {
        self.known.retain(|pid, known| try_started(*pid).ok().flatten() == known.started);
        self.left_out.retain(|pid| !self.known.contains_key(pid) && Process::open(*pid).is_ok());
        let room = MAX_PROCESSES.saturating_sub(self.known.len());
        for pid in self.left_out.iter().copied().take(room).collect::<Vec<_>>() {
            self.left_out.remove(&pid);
            self.census.forget(pid);
        }
        let (mut due, new): (BTreeSet<u32>, BTreeSet<u32>) =
            std::mem::take(&mut self.late).into_iter().partition(|pid| self.known.contains_key(pid));
        let mut new = opened(new);
        match &self.choice {
            Choice::Pids(pids) => {
                let unknown = pids.iter().filter(|pid| !self.known.contains_key(pid));
                new.extend(unknown.filter_map(|pid| Some((Process::open(*pid).ok()?, None))));
            }
            Choice::All => match self.census.round() {
                Ok(due) => new.extend(due.into_iter().filter_map(|pid| self.sighted(pid))),
                Err(error) => send(news, Found::Blind(format!("listing /proc: {error}")))?,
            },
        }
        // Who waits can be due as well.
        let mut seen = BTreeSet::new();
        new.retain(|(process, _)| seen.insert(process.pid()));
        self.share_out(&mut new, news)?;
        self.find(new, news)?;
        let now = Instant::now();
        due.extend(self.known.iter_mut().filter_map(|(pid, known)| known.is_due(*pid, now).then_some(*pid)));
        self.look_again(due, news)?;
        let left_out = self.left_out.len();
        let most = if left_out > 0 { self.most() } else { None };
        send(
            news,
            Found::Round(Round { left_out, most, late: self.late.len(), sight: self.census.visibility() }),
        )
    }

    /// Shares the places out among tenants, and leaves out processes for which there is none.
    fn share_out(&mut self, new: &mut Vec<Candidate>, news: &Sender<Found>) -> Result<(), IsOver> {
        if self.known.len() + new.len() <= MAX_PROCESSES {
            return Ok(());
        }
        let mut all: Vec<(bool, Option<Tenant>, u32)> = self
            .known
            .iter()
            .map(|(pid, known)| (known.communicators == 0, known.tenant.clone(), *pid))
            .collect();
        all.sort_by_key(|(is_idle, ..)| *is_idle);
        let known = all.into_iter().map(|(_, tenant, pid)| (tenant, pid));
        let new_ones = new.iter().map(|(process, _)| (self.tenant_of(process), process.pid()));
        let without = shares::without_place(known.chain(new_ones), MAX_PROCESSES);
        new.retain(|(process, _)| !without.contains(&process.pid()));
        let given_up: Vec<u32> =
            without.iter().copied().filter(|pid| self.known.remove(pid).is_some()).collect();
        self.left_out.extend(without);
        if given_up.is_empty() { Ok(()) } else { send(news, Found::GivenUp(given_up)) }
    }

    fn tenant_of(&self, process: &Process) -> Option<Tenant> {
        let known = self.known.get(&process.pid()).map(|known| known.tenant.clone());
        known.unwrap_or_else(|| Some(Tenant::of(&Description::read(process, &self.users, &[]))))
    }

    /// Returns the tenant with most places, and how many.
    fn most(&self) -> Option<(Tenant, usize)> {
        let mut places: HashMap<&Tenant, usize> = HashMap::new();
        for tenant in self.known.values().filter_map(|known| known.tenant.as_ref()) {
            *places.entry(tenant).or_default() += 1;
        }
        places.into_iter().max_by_key(|(_, count)| *count).map(|(tenant, count)| (tenant.clone(), count))
    }

    /// Returns a process that has NCCL and is not known yet.
    fn sighted(&mut self, pid: u32) -> Option<Candidate> {
        if self.known.contains_key(&pid) {
            return None;
        }
        let seen = resolver::look(pid);
        // Those that may not be looked at cannot be told from those without NCCL.
        self.census.note(pid, !matches!(seen, Err(Unseen::Denied)));
        let sighting = seen.ok().flatten()?;
        let libraries: Vec<MappedLibrary> =
            sighting.libraries.into_iter().map(|(library, _)| library).collect();
        (!libraries.is_empty()).then_some((sighting.process, Some(libraries)))
    }

    fn look_again(&mut self, pids: BTreeSet<u32>, news: &Sender<Found>) -> Result<(), IsOver> {
        let known = pids.into_iter().filter(|pid| self.known.contains_key(pid));
        self.find(opened(known), news)
    }

    /// Looks at processes, those of one tenant after those of another that has fewer.
    fn find(&mut self, processes: Vec<Candidate>, news: &Sender<Found>) -> Result<(), IsOver> {
        let mut by_tenant: HashMap<Option<Tenant>, Vec<Candidate>> = HashMap::new();
        for one in processes {
            by_tenant.entry(self.tenant_of(&one.0)).or_default().push(one);
        }
        let mut by_tenant: Vec<Vec<Candidate>> = by_tenant.into_values().collect();
        by_tenant.sort_by_key(Vec::len);
        by_tenant.into_iter().try_for_each(|of_tenant| self.find_of_tenant(of_tenant, news))
    }

    fn find_of_tenant(&mut self, processes: Vec<Candidate>, news: &Sender<Found>) -> Result<(), IsOver> {
        self.late.extend(processes.iter().map(|(process, _)| process.pid()));
        let tenant = processes.first().and_then(|(process, _)| self.tenant_of(process));
        let pids: Vec<u32> = processes.iter().map(|(process, _)| process.pid()).collect();
        let begun = Instant::now();
        self.put_off.retain(|_, (since, pause)| begun.saturating_duration_since(*since) < 2 * *pause);
        let before = self.put_off.get(&tenant).copied();
        if before.is_some_and(|(since, pause)| begun.saturating_duration_since(since) < pause) {
            return Ok(());
        }
        self.find_now(processes, news)?;
        if begun.elapsed() >= SILENCE && pids.into_iter().any(resolver::is_silent) {
            let pause = before.map_or(FIRST_PUT_OFF, |(_, pause)| (pause * 2).min(LONGEST_PUT_OFF));
            self.put_off.insert(tenant, (Instant::now(), pause));
        }
        Ok(())
    }

    fn find_now(&mut self, processes: Vec<Candidate>, news: &Sender<Found>) -> Result<(), IsOver> {
        let found = self.finder.find(processes, false, Instant::now() + TENANT_WITHIN);
        // Where no list tells, memory does, unless the list is only being changed.
        let is_silent = |one: &WatchedProcess| {
            let known = self.known.get(&one.process().pid());
            let is_changing =
                known.is_some_and(|known| known.list != List::None && known.looks < LISTED_LOOKS);
            !one.is_listed() && !is_changing && one.problem().is_none() && self.may_have_gpu(one)
        };
        let (silent, mut all): (Vec<_>, Vec<_>) = found.into_iter().partition(is_silent);
        let silent = opened(silent.iter().map(|one| one.process().pid()));
        all.extend(self.finder.find(silent, true, Instant::now() + TENANT_WITHIN));
        let now = Instant::now();
        for one in &all {
            let pid = one.process().pid();
            self.late.remove(&pid);
            let known = Known::of(one, self.known.get(&pid), self.may_have_gpu(one), now);
            self.known.insert(pid, known);
        }
        // One whose list is being changed is as it was before.
        all.retain(|one| self.known.get(&one.process().pid()).is_some_and(Known::is_read));
        if all.is_empty() { Ok(()) } else { send(news, Found::Processes(all)) }
    }

    /// Tells whether a process may have communicators, by the GPUs that it has open.
    fn may_have_gpu(&self, one: &WatchedProcess) -> bool {
        matches!(self.choice, Choice::Pids(_)) || gpu::can_be_used_by(one.process())
    }
}

impl Known {
    fn of(one: &WatchedProcess, before: Option<&Self>, may_have_gpu: bool, now: Instant) -> Self {
        let list = match before {
            _ if one.is_listed() => List::Read,
            Some(before) if before.list != List::None => List::Changing,
            _ => List::None,
        };
        let is_whole = one.problem().is_none();
        let is_done = is_whole && list == List::Read;
        let count = one.communicators().len();
        // Where one has come, others do.
        let has_grown = before.is_some_and(|before| before.communicators < count);
        let looks = if is_done || has_grown { 0 } else { before.map_or(0, |before| before.looks) + 1 };
        let pause = FIRST_PAUSE.saturating_mul(1 << looks.min(16)).min(LONGEST_PAUSE);
        Self {
            started: one.started(),
            tenant: one.tenant().cloned(),
            threads: threads(one.process().pid()),
            list,
            uses_gpu: count > 0 || may_have_gpu,
            communicators: count,
            is_whole,
            looks,
            next: now + pause,
        }
    }

    /// Tells whether the process is worth reading, and what was found is not less than there is.
    fn is_read(&self) -> bool {
        let is_whole = self.list != List::Changing || self.communicators > 0 || self.looks > LISTED_LOOKS;
        self.uses_gpu && is_whole
    }

    fn is_due(&mut self, pid: u32, now: Instant) -> bool {
        if now < self.next || self.is_whole && self.list == List::Read {
            return false;
        }
        let (before, threads) = (self.threads, threads(pid));
        self.threads = before.min(threads);
        let is_early = self.uses_gpu && self.communicators == 0 && self.looks <= EARLY_LOOKS;
        !self.is_whole || self.list == List::Changing || threads > before || is_early
    }
}

/// Returns the time until the next round, after one that took so long.
fn pause_after(round: Duration) -> Duration {
    round.saturating_mul(TIMES_A_ROUND).clamp(SHORTEST_ROUND, LONGEST_ROUND)
}

/// Opens processes; those that have ended are left out.
fn opened(pids: impl IntoIterator<Item = u32>) -> Vec<Candidate> {
    pids.into_iter().filter_map(|pid| Some((Process::open(pid).ok()?, None))).collect()
}

/// Returns the number of threads of a process (proc(5), field 20 of `stat`), 0 if it is gone.
fn threads(pid: u32) -> u64 {
    let stat = read_text(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat_field(&stat, 20).and_then(|count| count.parse().ok()).unwrap_or_default()
}

fn send(news: &Sender<Found>, one: Found) -> Result<(), IsOver> {
    news.send(one).map_err(|_| IsOver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_round_does_not_see_is_told_with_the_tenant_that_has_most() {
        let said = |round: &Round, ago| round.unseen(ago).map(|(_, sentence)| sentence).collect::<Vec<_>>();
        let mut round = Round::default();
        assert!(said(&round, LONGEST_ROUND).is_empty());
        assert!(
            said(&round, Duration::from_mins(1))[0].starts_with("finding processes takes more than 20 s")
        );
        (round.left_out, round.late) = (7, 3);
        round.most = Some((Tenant::User(1000, "ann".to_owned()), 4000));
        let said = said(&round, LONGEST_ROUND);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0].starts_with("7 processes")
                && said[0].ends_with("4000 that are watched are of user ann (1000)")
        );
        assert!(said[1].starts_with("3 processes are not looked at yet"));
    }

    #[test]
    fn rounds_are_short_where_they_take_little_and_long_where_they_take_much() {
        let after = |micros| pause_after(Duration::from_micros(micros));
        assert_eq!([after(100), after(50_000)], [SHORTEST_ROUND, LONGEST_ROUND]);
        assert_eq!(after(1000), Duration::from_millis(2500));
    }

    /// What takes too long at a busy moment is read at another.
    #[test]
    fn a_process_of_which_communicators_were_left_out_is_looked_at_again_after_its_pause() {
        let (pid, begun) = (std::process::id(), Instant::now());
        let now = begun + FIRST_PAUSE;
        let mut known = Known {
            started: None,
            tenant: None,
            threads: u64::MAX,
            list: List::Read,
            uses_gpu: true,
            communicators: 1,
            is_whole: true,
            looks: 0,
            next: now,
        };
        assert!(!known.is_due(pid, now), "the list tells");
        known.is_whole = false;
        assert!(known.is_due(pid, now) && !known.is_due(pid, begun));
    }
}
