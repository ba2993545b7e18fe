//! Finds processes and their communicators, in a thread of its own: a search of a large process takes
//! seconds.
//!
//! What is known is looked at again only where something has changed: a library's own list says so itself,
//! and elsewhere the number of a process's threads does, as NCCL starts threads for each communicator. A
//! process that has the library mapped, as every one that imports torch has, and uses no GPU, is not
//! searched, unless it was chosen by its number.

use std::{
    collections::{BTreeMap, BTreeSet},
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
    gpu,
    memory::ScanLimits,
    privileges,
    process::{Census, MappedLibrary, Process, Visibility, read_text, stat_field, try_started},
    resolver::{self, Unseen},
};
use nccl_library::symbols::DebugFiles;

/// Time between two rounds.
const ROUND: Duration = Duration::from_secs(5);
/// First and longest pause before a process is looked at again that no list tells of.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);
/// Looks at a process without communicators that nothing asks for, after its first: over two minutes. The
/// set-up of its first one starts no thread of NCCL's while a rank has not come.
const EARLY_LOOKS: u32 = 5;
/// Looks at a list that is being changed after which memory is searched.
const LISTED_LOOKS: u32 = 3;
/// Most processes that are watched.
const MAX_PROCESSES: usize = 4096;

/// News of the thread.
#[derive(Debug)]
pub(crate) enum Found {
    /// Processes with their communicators, in the place of what was known of them.
    Processes(Vec<WatchedProcess>),
    /// A round is done: how many processes with NCCL are not watched, as there are too many, and how much of
    /// the node may be looked at.
    Round { left_out: usize, sight: Visibility },
    /// The node's processes cannot be listed.
    Blind(String),
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
                known: BTreeMap::new(),
                left_out: BTreeSet::new(),
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
    /// Fewest threads since the last look.
    threads: u64,
    list: List,
    uses_gpu: bool,
    has_communicators: bool,
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
    known: BTreeMap<u32, Known>,
    left_out: BTreeSet<u32>,
}

/// Nobody listens any more.
struct IsOver;

impl Rounds {
    fn run(mut self, asked: &Receiver<u32>, news: &Sender<Found>) -> Result<(), IsOver> {
        loop {
            self.round(news)?;
            let next = Instant::now() + ROUND;
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
        self.left_out.retain(|pid| Process::open(*pid).is_ok());
        let mut new = Vec::new();
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
        let room = MAX_PROCESSES.saturating_sub(self.known.len());
        self.left_out.extend(new.iter().skip(room).map(|(process, _)| process.pid()));
        new.truncate(room);
        self.find(new, news)?;
        let now = Instant::now();
        let due: Vec<u32> = self
            .known
            .iter_mut()
            .filter_map(|(pid, known)| known.is_due(*pid, now).then_some(*pid))
            .collect();
        self.look_again(due, news)?;
        send(news, Found::Round { left_out: self.left_out.len(), sight: self.census.visibility() })
    }

    /// Returns a process that has NCCL and is not known yet.
    fn sighted(&mut self, pid: u32) -> Option<(Process, Option<Vec<MappedLibrary>>)> {
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

    fn look_again(
        &mut self,
        pids: impl IntoIterator<Item = u32>,
        news: &Sender<Found>,
    ) -> Result<(), IsOver> {
        let open = pids.into_iter().filter_map(|pid| Some((Process::open(pid).ok()?, None)));
        let open = open.collect();
        self.find(open, news)
    }

    fn find(
        &mut self,
        processes: Vec<(Process, Option<Vec<MappedLibrary>>)>,
        news: &Sender<Found>,
    ) -> Result<(), IsOver> {
        let found = self.finder.find(processes, false);
        // Where no list tells, memory does, unless the list is only being changed.
        let is_silent = |one: &WatchedProcess| {
            let known = self.known.get(&one.process().pid());
            let is_changing =
                known.is_some_and(|known| known.list != List::None && known.looks < LISTED_LOOKS);
            !one.is_listed() && !is_changing && one.problem().is_none() && self.may_have_gpu(one)
        };
        let (silent, mut all): (Vec<_>, Vec<_>) = found.into_iter().partition(is_silent);
        let silent = silent.iter().filter_map(|one| Some((Process::open(one.process().pid()).ok()?, None)));
        all.extend(self.finder.find(silent.collect::<Vec<_>>(), true));
        let now = Instant::now();
        for one in &all {
            let pid = one.process().pid();
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
        let has_communicators = !one.communicators().is_empty();
        let list = match before {
            _ if one.is_listed() => List::Read,
            Some(before) if before.list != List::None => List::Changing,
            _ => List::None,
        };
        let looks = if list == List::Read { 0 } else { before.map_or(0, |before| before.looks) + 1 };
        let pause = FIRST_PAUSE.saturating_mul(1 << looks.min(16)).min(LONGEST_PAUSE);
        Self {
            started: one.started(),
            threads: threads(one.process().pid()),
            list,
            uses_gpu: has_communicators || may_have_gpu,
            has_communicators,
            looks,
            next: now + pause,
        }
    }

    /// Tells whether the process is worth reading, and what was found is not less than there is.
    fn is_read(&self) -> bool {
        let is_whole = self.list != List::Changing || self.has_communicators || self.looks > LISTED_LOOKS;
        self.uses_gpu && is_whole
    }

    fn is_due(&mut self, pid: u32, now: Instant) -> bool {
        if self.list == List::Read || now < self.next {
            return false;
        }
        let (before, threads) = (self.threads, threads(pid));
        self.threads = before.min(threads);
        let is_early = self.uses_gpu && !self.has_communicators && self.looks <= EARLY_LOOKS;
        self.list == List::Changing || threads > before || is_early
    }
}

/// Returns the number of threads of a process (proc(5), field 20 of `stat`), 0 if it is gone.
fn threads(pid: u32) -> u64 {
    let stat = read_text(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat_field(&stat, 20).and_then(|count| count.parse().ok()).unwrap_or_default()
}

fn send(news: &Sender<Found>, one: Found) -> Result<(), IsOver> {
    news.send(one).map_err(|_| IsOver)
}
