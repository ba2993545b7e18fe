//! Takes dumps, and keeps them, in a thread of its own: a dump takes seconds, and a disk may not answer.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Duration,
};

use dump::{Choice, DumpOptions, DumpReport};
use inspect::{failpoint, memory::ScanLimits, privileges};
use nccl_library::symbols::DebugFiles;

use crate::store::Store;

/// A question to the thread.
#[derive(Debug)]
pub(crate) enum Ask {
    /// A dump of these processes of a job, for the job or for a tenant alone.
    Look { job: u64, of: Option<String>, pids: Vec<u32> },
    /// Keep a dump of a tenant's job under this name; without one, take it first.
    Keep { event: u64, name: String, whose: String, pids: Vec<u32>, report: Option<Box<DumpReport>> },
}

/// Questions that wait, by tenant. Tenants take turns: whoever has many hangs delays its own.
#[derive(Debug, Default)]
struct Waiting {
    of: BTreeMap<String, VecDeque<Ask>>,
    turns: VecDeque<String>,
}

impl Waiting {
    fn put(&mut self, (whose, ask): (String, Ask)) {
        let own = self.of.entry(whose.clone()).or_default();
        if own.is_empty() {
            self.turns.push_back(whose);
        }
        match ask {
            // What was taken is only written: its event waits for that.
            Ask::Keep { report: Some(_), .. } => own.push_front(ask),
            _ => own.push_back(ask),
        }
    }

    fn take(&mut self) -> Option<Ask> {
        let whose = self.turns.pop_front()?;
        let own = self.of.get_mut(&whose)?;
        let ask = own.pop_front();
        if own.is_empty() {
            self.of.remove(&whose);
        } else {
            self.turns.push_back(whose);
        }
        ask
    }
}

/// Answer of the thread.
#[derive(Debug)]
pub(crate) enum Answer {
    Looked {
        job: u64,
        of: Option<String>,
        report: Result<Box<DumpReport>, String>,
    },
    /// The folder of a dump that was kept, and what of it could not be written.
    Kept {
        event: u64,
        kept: Result<String, String>,
    },
}

#[derive(Debug)]
pub(crate) struct Dumps {
    asks: Sender<(String, Ask)>,
    pub(crate) answers: Receiver<Answer>,
}

impl Dumps {
    /// Starts the thread. `store`: where dumps are kept.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(debug_files: DebugFiles, store: Option<Store>) -> io::Result<Self> {
        let (asks, asked) = mpsc::channel::<(String, Ask)>();
        let (answered, answers) = mpsc::channel();
        let options = DumpOptions {
            interval: Duration::from_millis(500),
            first_only: false,
            limits: ScanLimits { time: Duration::from_secs(10), ..ScanLimits::default() },
            debug_files,
            stacks: true,
        };
        thread::Builder::new().name("ncclflow-dump".to_owned()).spawn(move || {
            privileges::keep_only(privileges::DUMPS.union(privileges::WRITES_ELSEWHERE));
            let mut waiting = Waiting::default();
            while let Ok(first) = asked.recv() {
                waiting.put(first);
                loop {
                    for ask in asked.try_iter() {
                        waiting.put(ask);
                    }
                    let Some(ask) = waiting.take() else { break };
                    let _ = failpoint::here("watch-dump");
                    if answered.send(answer(ask, &options, store.as_ref())).is_err() {
                        return;
                    }
                }
            }
        })?;
        Ok(Self { asks, answers })
    }

    /// Asks without waiting, for a tenant. If the thread has ended, there is no answer.
    pub(crate) fn ask(&self, whose: String, ask: Ask) {
        let _ = self.asks.send((whose, ask));
    }
}

fn answer(ask: Ask, options: &DumpOptions, store: Option<&Store>) -> Answer {
    let take = |pids: Vec<u32>| {
        let report = dump::dump(&Choice::Pids(pids), options, &mut |_| {});
        report.map(Box::new).map_err(|error| format!("{error:#}"))
    };
    match ask {
        Ask::Look { job, of, pids } => Answer::Looked { job, of, report: take(pids) },
        Ask::Keep { event, name, whose, pids, report } => {
            let report = report.map_or_else(|| take(pids), Ok);
            let keep = |report: Box<DumpReport>| {
                let store = store.ok_or("dumps are not kept")?;
                store.keep(&name, &whose, &report).map_err(|error| format!("{error:#}"))
            };
            Answer::Kept { event, kept: report.and_then(keep) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_tenants_hangs_delays_its_own_and_what_was_taken_is_written_first() {
        let mut waiting = Waiting::default();
        let look = |job: u64| Ask::Look { job, of: None, pids: Vec::new() };
        (0..150).for_each(|job| waiting.put(("ann".to_owned(), look(job))));
        let report = Some(Box::default());
        let (name, whose) = (String::new(), "ann".to_owned());
        waiting.put(("ann".to_owned(), Ask::Keep { event: 1, name, whose, pids: Vec::new(), report }));
        (200..202).for_each(|job| waiting.put(("bob".to_owned(), look(job))));
        let job = |ask: Ask| match ask {
            Ask::Look { job, .. } => Some(job),
            Ask::Keep { .. } => None,
        };
        let taken: Vec<Option<u64>> = std::iter::from_fn(|| waiting.take()).map(job).collect();
        assert_eq!(taken[..6], [None, Some(200), Some(0), Some(201), Some(1), Some(2)]);
        assert_eq!((taken.len(), waiting.of.len(), waiting.turns.len()), (153, 0, 0));
    }
}
