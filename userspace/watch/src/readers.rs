//! Threads that read processes, each those of one tenant: memory that does not answer keeps only its own tenant
//! from being read.

use std::{
    collections::HashMap,
    hash::Hash,
    io,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use dump::watched::{Growth, ProcessCounts, ProcessorWatch, ProxyLooks, Steps};
use inspect::privileges;

/// Most threads. More tenants share them.
const MAX_THREADS: usize = 16;
/// Time that a reading waits for threads: what comes later counts at the next one.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time after which no further process of a tenant is read in one reading.
const TIME_OF_TENANT: Duration = Duration::from_secs(2);
/// Time after which no further proxy of a process is looked at in one reading.
const STEPS_WITHIN: Duration = Duration::from_millis(20);

/// What is read of a process.
pub(crate) trait Source: Send + Sync + 'static {
    /// Copies the counters; `None`: it does not let itself be read.
    fn counts(&self) -> Option<ProcessCounts>;
    /// Returns the state of the steps of a communicator's proxy.
    fn steps(&self, communicator: usize, looks: &mut ProxyLooks) -> Option<Steps>;
    /// Looks at processor time.
    fn processor(&self, watch: &mut ProcessorWatch) -> Option<Growth>;
}

/// A process to read.
#[derive(Debug)]
pub(crate) struct Task<S> {
    pub(crate) source: Arc<S>,
    /// Communicators whose proxies' steps are wanted, if they have ops in flight.
    pub(crate) wants_steps: Vec<bool>,
    /// Looks at its processor time until now, if another one is wanted.
    pub(crate) processor: Option<ProcessorWatch>,
}

/// A process that was read.
#[derive(Debug)]
pub(crate) struct Answer<S> {
    pub(crate) source: Arc<S>,
    pub(crate) counts: Option<ProcessCounts>,
    pub(crate) steps: Vec<Option<Steps>>,
    pub(crate) processor: Option<(ProcessorWatch, Option<Growth>)>,
}

/// Processes of one tenant, under the number of this question.
type Batch<T> = (u64, Vec<T>);

#[derive(Debug)]
struct Reader<S> {
    tasks: Sender<Batch<Task<S>>>,
    thread: JoinHandle<()>,
    /// Numbers of the questions that it has not answered.
    owes: Vec<u64>,
}

#[derive(Debug)]
pub(crate) struct Readers<S, W> {
    threads: Vec<Reader<S>>,
    answered: Sender<Batch<Answer<S>>>,
    answers: Receiver<Batch<Answer<S>>>,
    /// Tenants whose processes are being read, with the number of the question.
    asked: HashMap<W, u64>,
    last: u64,
    readings: usize,
}

impl<S, W> Default for Readers<S, W> {
    fn default() -> Self {
        let (answered, answers) = mpsc::channel();
        Self { threads: Vec::new(), answered, answers, asked: HashMap::new(), last: 0, readings: 0 }
    }
}

impl<S: Source, W: Eq + Hash> Readers<S, W> {
    /// Reads processes by tenant, as far as that is done in time, but those of tenants of which earlier ones are still
    /// being read: `put_back` gets these. Returns what was read until now; what is newer stands behind what is older.
    pub(crate) fn read(
        &mut self,
        tasks: HashMap<W, Vec<Task<S>>>,
        mut put_back: impl FnMut(Vec<Task<S>>),
    ) -> Vec<Answer<S>> {
        let mut answers = Vec::new();
        while let Ok(batch) = self.answers.try_recv() {
            self.take(batch, &mut answers);
        }
        self.bury();
        self.readings = self.readings.wrapping_add(1);
        let before = self.last;
        let (busy, ready): (Vec<_>, Vec<_>) =
            tasks.into_iter().partition(|(whose, _)| self.asked.contains_key(whose));
        for (_, tasks) in busy {
            put_back(tasks);
        }
        let idle = self.threads.iter().filter(|reader| reader.owes.is_empty()).count();
        for _ in idle..ready.len().min(MAX_THREADS.saturating_sub(self.threads.len()) + idle) {
            self.threads.extend(Reader::start(self.answered.clone()));
        }
        for (whose, mut tasks) in ready {
            // Whoever is read first seems to be behind, and who comes last may not be read, if others take long: each
            // is first at some readings.
            let turn = self.readings.checked_rem(tasks.len()).unwrap_or(0);
            tasks.rotate_left(turn);
            // One that has not come back has others wait only where there is no other.
            let load = |reader: &&mut Reader<S>| {
                (reader.owes.first().is_some_and(|owed| *owed <= before), reader.owes.len())
            };
            let Some(reader) = self.threads.iter_mut().min_by_key(load) else {
                put_back(tasks);
                continue;
            };
            self.last += 1;
            match reader.tasks.send((self.last, tasks)) {
                Ok(()) => {
                    reader.owes.push(self.last);
                    self.asked.insert(whose, self.last);
                }
                Err(mpsc::SendError((_, tasks))) => put_back(tasks),
            }
        }
        let until = Instant::now() + PATIENCE;
        while self.asked.values().any(|number| *number > before)
            && let Ok(batch) = self.answers.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            self.take(batch, &mut answers);
        }
        answers
    }

    fn take(&mut self, (number, read): Batch<Answer<S>>, answers: &mut Vec<Answer<S>>) {
        self.asked.retain(|_, asked| *asked != number);
        for reader in &mut self.threads {
            reader.owes.retain(|owed| *owed != number);
        }
        answers.extend(read);
    }

    /// Forgets threads that have ended, and what they owe.
    fn bury(&mut self) {
        let (ended, live): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.threads).into_iter().partition(|reader| reader.thread.is_finished());
        self.threads = live;
        for owed in ended.iter().flat_map(|reader| &reader.owes) {
            self.asked.retain(|_, asked| asked != owed);
        }
    }
}

impl<S: Source> Reader<S> {
    fn start(answers: Sender<Batch<Answer<S>>>) -> io::Result<Self> {
        let (tasks, asked) = mpsc::channel::<Batch<Task<S>>>();
        let thread = thread::Builder::new().name("ncclflow-read".to_owned()).spawn(move || {
            privileges::keep_only(privileges::DUMPS);
            for (number, tasks) in asked {
                let until = Instant::now() + TIME_OF_TENANT;
                let read = tasks.into_iter().map(|task| task.read(until)).collect();
                if answers.send((number, read)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { tasks, thread, owes: Vec::new() })
    }
}

impl<S: Source> Task<S> {
    /// Reads the process, unless the time is over.
    fn read(self, until: Instant) -> Answer<S> {
        let Self { source, wants_steps, processor } = self;
        let has_time = Instant::now() < until;
        let counts = has_time.then(|| source.counts()).flatten();
        let mut looks = ProxyLooks::until(Instant::now() + STEPS_WITHIN);
        let counted = counts.iter().flat_map(|counts| &counts.communicators);
        let steps = counted.zip(wants_steps).enumerate().map(|(at, (counts, is_wanted))| {
            let in_flight = counts.as_ref().is_some_and(|counts| counts.has_ops_in_flight);
            (is_wanted && in_flight).then(|| source.steps(at, &mut looks)).flatten()
        });
        let steps = steps.collect();
        let processor = processor.map(|mut watch| {
            let growth = has_time.then(|| source.processor(&mut watch)).flatten();
            (watch, growth)
        });
        Answer { source, counts, steps, processor }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    /// A process that answers when its lock is free, and how often it did.
    #[derive(Debug, Default)]
    struct Made {
        lock: Mutex<()>,
        panics: bool,
        takes: Duration,
        read: AtomicUsize,
    }

    impl Source for Made {
        fn counts(&self) -> Option<ProcessCounts> {
            assert!(!self.panics, "as the test wants it");
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            thread::sleep(self.takes);
            self.read.fetch_add(1, Ordering::SeqCst);
            Some(ProcessCounts::default())
        }

        fn steps(&self, _: usize, _: &mut ProxyLooks) -> Option<Steps> {
            None
        }

        fn processor(&self, _: &mut ProcessorWatch) -> Option<Growth> {
            None
        }
    }

    fn read(readers: &mut Readers<Made, usize>, all: &[Arc<Made>]) -> (usize, usize) {
        let task = |source: &Arc<Made>| Task {
            source: Arc::clone(source),
            wants_steps: Vec::new(),
            processor: None,
        };
        let tasks = all.iter().enumerate().map(|(whose, source)| (whose, vec![task(source)]));
        let mut put_back = 0;
        let answers = readers.read(tasks.collect(), |tasks| put_back += tasks.len());
        assert!(answers.iter().all(|answer| answer.counts.is_some()));
        (answers.len(), put_back)
    }

    #[test]
    fn a_tenant_that_does_not_answer_keeps_no_other_from_being_read_and_waits_alone() {
        let all: Vec<Arc<Made>> = (0..4).map(|_| Arc::default()).collect();
        let mut readers = Readers::default();
        let held = all[1].lock.lock().unwrap();
        assert_eq!(read(&mut readers, &all), (3, 0));
        let begun = Instant::now();
        for _ in 0..20 {
            assert_eq!(read(&mut readers, &all), (3, 1));
        }
        assert!(begun.elapsed() < 10 * PATIENCE, "it is waited for once: {:?}", begun.elapsed());
        assert_eq!(readers.threads.len(), 4);
        drop(held);
        test_support::wait_until("it is read", Duration::from_secs(30), || read(&mut readers, &all).1 == 0);
        assert_eq!(read(&mut readers, &all), (4, 0));
    }

    #[test]
    fn who_takes_long_does_not_keep_the_same_ones_of_its_tenant_from_being_read() {
        let slow = Made { takes: TIME_OF_TENANT + PATIENCE / 5, ..Made::default() };
        let all: Vec<Arc<Made>> = vec![Arc::new(slow), Arc::default(), Arc::default()];
        let mut readers = Readers::default();
        let are_read = || all.iter().all(|one| one.read.load(Ordering::SeqCst) > 0);
        test_support::wait_until("each is read", 10 * TIME_OF_TENANT, || {
            let task = |source: &Arc<Made>| Task {
                source: Arc::clone(source),
                wants_steps: Vec::new(),
                processor: None,
            };
            readers.read(HashMap::from([(0, all.iter().map(task).collect())]), drop);
            are_read()
        });
    }

    #[test]
    fn more_tenants_than_threads_are_all_read_and_one_whose_thread_dies_is_asked_again() {
        let mut all: Vec<Arc<Made>> = (0..3 * MAX_THREADS).map(|_| Arc::default()).collect();
        let mut readers = Readers::default();
        assert_eq!(read(&mut readers, &all), (all.len(), 0));
        assert_eq!(readers.threads.len(), MAX_THREADS);
        all.truncate(2);
        all.push(Arc::new(Made { panics: true, ..Made::default() }));
        for reading in 0..3 {
            // Its thread takes a moment to end.
            assert_eq!(read(&mut readers, &all).0, 2, "{reading}");
        }
        all.pop();
        all.push(Arc::default());
        test_support::wait_until("it is read", Duration::from_secs(30), || {
            read(&mut readers, &all) == (3, 0)
        });
    }
}
