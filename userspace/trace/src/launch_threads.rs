//! Processor time of the threads that launch, and of proxies: a host that launches late, or a message that is
//! late, may be one that gets no processor.
//!
//! The thread that writes records notes the threads of plans, calls and messages, each once. A thread of its
//! own reads their `schedstat` once a second, which waits for nobody (fs/proc/base.c, `proc_pid_schedstat`:
//! two numbers of the scheduler's, without a lock) and takes some microseconds for each. Everybody may read
//! it, unless `/proc` is mounted with `hidepid`; then there are no rows. A thread that has ended has none.

use flow::{
    decode::RecordView,
    recording::Binding,
    schema::{HostInfo, LaunchThreadRow},
    wire::ProbeKind,
};
use inspect::{
    clock::now_ns,
    process::{ThrottleWatch, Throttled, in_first_pid_namespace, read_text, run_times},
};
use recording::format::{Facts, LatestFacts};
use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use rustix::{thread::CapabilitySet, time::ClockId};

use crate::health::Health;

/// Time between two looks at a thread.
const PERIOD: Duration = Duration::from_secs(1);

/// Most threads of a process: a process with all GPUs of a host can have one for each.
const MAX_OF_PROCESS: usize = 16;

/// Most threads of all processes.
const MAX_THREADS: usize = 1024;

/// Most rows that are kept for those who write them, who take them every ten seconds.
const MAX_ROWS: usize = 16 * MAX_THREADS;

/// Time after which a thread that launches is told of again: its number may be that of a new one.
const TELL_AGAIN_NS: u64 = 10_000_000_000;

/// A thread, by the numbers that records carry: process, thread.
type Key = (u32, u32);

/// Rows of the threads that launch.
#[derive(Clone, Debug)]
pub(crate) struct LaunchThreads {
    host: Arc<str>,
    rows: Arc<Mutex<LatestFacts<Arc<LaunchThreadRow>>>>,
    /// Ends the thread when no copy of it is left. `None`: there are no rows.
    to_thread: Option<SyncSender<Seen>>,
    in_first_namespace: bool,
}

/// A thread that has launched.
#[derive(Debug)]
struct Seen {
    key: Key,
    host: HostInfo,
    /// Thread ID, as ncclflow sees it.
    tid: u32,
    is_proxy: bool,
}

/// A thread that is looked at.
#[derive(Debug)]
struct Watched {
    seen: Seen,
    /// What was seen at the last look.
    before: Option<Look>,
    /// Of its process.
    throttled: ThrottleWatch,
}

#[derive(Debug)]
struct Look {
    ts_ns: u64,
    /// The thread's times: ran, waited.
    times: [u64; 2],
}

/// Watch of a recording's records for threads that launch.
#[derive(Debug)]
pub(crate) struct LaunchWatch {
    threads: LaunchThreads,
    /// The last thread that launched, and the last proxy.
    last: [Option<Key>; 2],
    known: HashSet<Key>,
    /// Time of the record from which on known threads are told of again.
    tell_again_ns: u64,
}

impl LaunchThreads {
    /// Starts the thread. Where that fails, there are no rows.
    pub(crate) fn start(host: &str, health: &Health) -> Self {
        let (to_thread, seen) = sync_channel(MAX_THREADS);
        let rows = Arc::new(Mutex::new(LatestFacts::new(MAX_ROWS)));
        let found = Arc::clone(&rows);
        let work = move || look(&seen, &found);
        let thread = health.spawn("ncclflow-launch", CapabilitySet::empty(), work);
        Self {
            host: host.into(),
            rows,
            to_thread: thread.is_ok().then_some(to_thread),
            in_first_namespace: in_first_pid_namespace().unwrap_or(false),
        }
    }

    /// Makes a watch for a thread that writes a recording.
    pub(crate) fn watch(&self) -> LaunchWatch {
        LaunchWatch { threads: self.clone(), last: [None; 2], known: HashSet::new(), tell_again_ns: 0 }
    }
}

impl Facts<Arc<LaunchThreadRow>> for LaunchThreads {
    fn since(&self, first: u64) -> (Vec<Arc<LaunchThreadRow>>, u64) {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).since(first)
    }
}

impl LaunchWatch {
    /// Notes the thread of a record that tells of a launch, or of a message.
    pub(crate) fn note(&mut self, binding: &Binding, record: &RecordView<'_>) {
        let is_proxy = match binding.kind {
            ProbeKind::Plan(_)
            | ProbeKind::ApiCall(_)
            | ProbeKind::ApiLine(_)
            | ProbeKind::ApiArguments(_) => false,
            ProbeKind::ProxyStep(_) | ProbeKind::SendSize(_) => true,
            _ => return,
        };
        let last = &mut self.last[usize::from(is_proxy)];
        let header = &record.header;
        let key = (header.tgid, header.tid);
        if *last == Some(key) && header.ts_ns < self.tell_again_ns {
            return;
        }
        *last = Some(key);
        if header.ts_ns >= self.tell_again_ns || self.known.len() >= MAX_THREADS {
            self.known.clear();
            self.tell_again_ns = header.ts_ns.saturating_add(TELL_AGAIN_NS);
        }
        let Some(to_thread) = self.threads.to_thread.as_ref().filter(|_| self.known.insert(key)) else {
            return;
        };
        let host = binding.host.clone();
        let host = host.unwrap_or_else(|| HostInfo { host: (&*self.threads.host).into(), pid: header.tgid });
        // In another PID namespace only the first thread's number is known.
        let tid = if header.tid == header.tgid { host.pid } else { header.tid };
        if self.threads.in_first_namespace || header.tid == header.tgid {
            // A thread that finds no room is told of again later.
            let _ = to_thread.try_send(Seen { key, host, tid, is_proxy });
        }
    }
}

/// Looks at the threads that it is told of, until nobody can tell it any more.
fn look(told: &Receiver<Seen>, rows: &Mutex<LatestFacts<Arc<LaunchThreadRow>>>) {
    let mut threads = BTreeMap::<Key, Watched>::new();
    let mut next = Instant::now() + PERIOD;
    loop {
        let seen = if threads.is_empty() {
            let seen = told.recv().map_err(|_| RecvTimeoutError::Disconnected);
            next = Instant::now() + PERIOD;
            seen
        } else {
            told.recv_timeout(next.saturating_duration_since(Instant::now()))
        };
        match seen {
            Ok(seen) => add(&mut threads, seen),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let mut new = Vec::new();
                threads.retain(|_, thread| match thread.look(Path::new("/proc")) {
                    Ok(row) => {
                        new.extend(row);
                        true
                    }
                    Err(HasEnded) => false,
                });
                let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                for row in new {
                    rows.push(Arc::new(row));
                }
                next = Instant::now() + PERIOD;
            }
        }
    }
}

fn add(threads: &mut BTreeMap<Key, Watched>, seen: Seen) {
    let (tgid, tid) = seen.key;
    let of_process = threads.range((tgid, 0)..=(tgid, u32::MAX)).count();
    if threads.len() < MAX_THREADS && of_process < MAX_OF_PROCESS {
        threads.entry((tgid, tid)).or_insert_with(|| {
            let mut thread = Watched { seen, before: None, throttled: ThrottleWatch::default() };
            // The first look. One that has ended meanwhile is seen at the next.
            let _ = thread.look(Path::new("/proc"));
            thread
        });
    }
}

/// A thread that has ended.
#[derive(Debug)]
struct HasEnded;

impl Watched {
    /// Looks at the thread. Returns its row, if it was looked at before and the kernel counts its times.
    fn look(&mut self, proc: &Path) -> Result<Option<LaunchThreadRow>, HasEnded> {
        let Seen { key: (_, tid), host, tid: own_tid, is_proxy } = &self.seen;
        let path = proc.join(format!("{}/task/{own_tid}/schedstat", host.pid));
        let times = read_text(path).ok().and_then(|text| run_times(&text)).ok_or(HasEnded)?;
        let ts_ns = now_ns(ClockId::Monotonic);
        // What stops a process stops all of its threads: proxies are not asked.
        let stopped = if *is_proxy { Throttled::default() } else { self.throttled.look(host.pid) };
        let before = self.before.replace(Look { ts_ns, times });
        // A kernel without these counts says 0, a new thread of the same number less than before.
        let row = before.filter(|_| times != [0, 0]).and_then(|before| {
            Some(LaunchThreadRow {
                ts_ns,
                period_ns: ts_ns.saturating_sub(before.ts_ns),
                host: host.host.as_str().to_owned(),
                pid: host.pid,
                tid: *tid,
                is_proxy: *is_proxy,
                ran_ns: times[0].checked_sub(before.times[0])?,
                waited_ns: times[1].checked_sub(before.times[1])?,
                periods: stopped.periods,
                throttled: stopped.throttled,
            })
        });
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(tgid: u32, tid: u32) -> Seen {
        Seen { key: (tgid, tid), host: HostInfo { host: "here".into(), pid: tgid }, tid, is_proxy: false }
    }

    #[test]
    fn a_row_is_what_came_since_the_look_before_and_an_ended_thread_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let task = folder.path().join("7/task/9");
        std::fs::create_dir_all(&task).unwrap();
        let seen = Seen { is_proxy: true, ..seen(7, 9) };
        let mut thread = Watched { seen, before: None, throttled: ThrottleWatch::default() };
        let mut look = |schedstat: &str| {
            std::fs::write(task.join("schedstat"), schedstat).unwrap();
            thread.look(folder.path()).map(|row| row.map(|row| [row.ran_ns, row.waited_ns]))
        };
        assert_eq!(look("500 70 3\n").unwrap(), None);
        assert_eq!(look("1500 90 4\n").unwrap(), Some([1000, 20]));
        assert_eq!(look("1500 90 4\n").unwrap(), Some([0, 0]));
        assert_eq!(look("10 0 1\n").unwrap(), None, "another thread");
        assert_eq!(look("0 0 0\n").unwrap(), None, "the kernel does not count");
        assert!(look("").is_err() && look("what").is_err());
        std::fs::remove_dir_all(&task).unwrap();
        assert!(thread.look(folder.path()).is_err());
    }

    #[test]
    fn a_process_has_some_threads_and_all_have_a_bound() {
        let mut threads = BTreeMap::new();
        for tid in 0..100 {
            add(&mut threads, seen(u32::MAX, u32::MAX - tid));
            add(&mut threads, seen(u32::MAX, u32::MAX - tid));
        }
        assert_eq!(threads.len(), MAX_OF_PROCESS);
        for tgid in 0..5000 {
            add(&mut threads, seen(u32::MAX - 1 - tgid, 1));
        }
        assert_eq!(threads.len(), MAX_THREADS);
    }
}
