//! Finds processes and their communicators, in a thread of its own: a search of a large process takes seconds.
//!
//! What is known is looked at again only where something has changed: a library's own list says so itself, and
//! elsewhere the number of a process's threads does, as NCCL starts threads for each communicator.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use dump::{
    Choice,
    watched::{Finder, WatchedProcess, has_nccl_threads},
};
use inspect::{
    memory::ScanLimits,
    privileges,
    process::{Census, MappedLibrary, Process, read_text, stat_field, try_started},
    resolver,
};
use nccl_library::symbols::DebugFiles;

/// Time between two rounds.
const ROUND: Duration = Duration::from_secs(5);
/// First and longest pause before a process is looked at again that has threads of NCCL's and no communicator
/// that was found.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);
/// Looks after which memory is searched although the library has a list: the list can be switched off
/// (`NCCL_RAS_ENABLE=0`), or a communicator is being made.
const LISTED_LOOKS: u32 = 3;
/// Most processes that are watched.
const MAX_PROCESSES: usize = 4096;

/// News of the thread.
#[derive(Debug)]
pub(crate) enum Found {
    /// Processes with their communicators, in the place of what was known of them.
    Processes(Vec<WatchedProcess>),
    /// A round is done: how many processes with NCCL are known, and how many more than are watched.
    Round { left_out: usize },
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

/// What is known of a process.
#[derive(Debug)]
struct Known {
    started: Option<u64>,
    /// Number of threads at the last look.
    threads: u64,
    list: List,
    has_nccl_threads: bool,
    has_communicators: bool,
    looks: u32,
    next: Instant,
}

/// Whether the library lists its communicators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    /// It has no list.
    None,
    /// The list is empty, is being changed, or is switched off.
    Unread,
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
        let due: Vec<u32> =
            self.known.iter().filter(|(pid, known)| known.is_due(**pid, now)).map(|(pid, _)| *pid).collect();
        self.look_again(due, news)?;
        send(news, Found::Round { left_out: self.left_out.len() })
    }

    /// Returns a process that has NCCL and is not known yet.
    fn sighted(&mut self, pid: u32) -> Option<(Process, Option<Vec<MappedLibrary>>)> {
        if self.known.contains_key(&pid) {
            return None;
        }
        // Those that may not be looked at cannot be told from those without NCCL.
        let sighting = resolver::look(pid).ok().flatten()?;
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
        let (now, mut searched, mut listed) = (Instant::now(), Vec::new(), Vec::new());
        for (process, libraries) in processes {
            let known = self.known.get(&process.pid());
            let is_searched = has_nccl_threads(&process)
                && known.is_some_and(|known| known.list == List::None || known.looks >= LISTED_LOOKS);
            let to = if is_searched { &mut searched } else { &mut listed };
            to.push((process, libraries));
        }
        let mut found = self.finder.find(listed, false);
        // A library without a list says nothing: memory does.
        let (silent, told): (Vec<_>, Vec<_>) = found
            .drain(..)
            .partition(|one| !one.has_list() && one.problem().is_none() && has_nccl_threads(one.process()));
        searched
            .extend(silent.iter().filter_map(|one| Some((Process::open(one.process().pid()).ok()?, None))));
        let mut all = told;
        all.extend(self.finder.find(searched, true));
        for one in &all {
            let looks = self.known.get(&one.process().pid()).map_or(0, |known| known.looks);
            let known = Known::of(one, looks, now);
            self.known.insert(one.process().pid(), known);
        }
        // One whose list is being changed is as it was before.
        all.retain(|one| self.known.get(&one.process().pid()).is_none_or(Known::is_whole));
        if all.is_empty() { Ok(()) } else { send(news, Found::Processes(all)) }
    }
}

impl Known {
    fn of(one: &WatchedProcess, looks: u32, now: Instant) -> Self {
        let has_communicators = !one.communicators().is_empty();
        let list = match (one.is_listed(), one.has_list()) {
            (true, _) => List::Read,
            (false, true) => List::Unread,
            (false, false) => List::None,
        };
        let looks = if list == List::Read { 0 } else { looks + 1 };
        let pause = FIRST_PAUSE.saturating_mul(1 << looks.min(16)).min(LONGEST_PAUSE);
        Self {
            started: one.started(),
            threads: threads(one.process().pid()),
            list,
            has_nccl_threads: has_nccl_threads(one.process()),
            has_communicators,
            looks,
            next: now + pause,
        }
    }

    /// Tells whether what was found is all that there is.
    fn is_whole(&self) -> bool {
        self.list == List::Read
            || self.has_communicators
            || !self.has_nccl_threads
            || self.looks > LISTED_LOOKS
    }

    fn is_due(&self, pid: u32, now: Instant) -> bool {
        if self.list == List::Read || now < self.next {
            return false;
        }
        let lacks_some = self.has_nccl_threads && !self.has_communicators;
        lacks_some || threads(pid) != self.threads
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
