//! Takes dumps, and keeps them, in a thread of its own: a dump takes seconds, and a disk may not answer.

use std::{
    io,
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Duration,
};

use dump::{Choice, DumpOptions, DumpReport};
use inspect::{memory::ScanLimits, privileges};
use nccl_library::symbols::DebugFiles;

use crate::store::Store;

/// A question to the thread.
#[derive(Debug)]
pub(crate) enum Ask {
    /// A dump of these processes of a job.
    Look { job: u64, pids: Vec<u32> },
    /// Keep a dump under this name; without one, take it first.
    Keep { event: u64, name: String, pids: Vec<u32>, report: Option<Box<DumpReport>> },
}

/// Answer of the thread.
#[derive(Debug)]
pub(crate) enum Answer {
    Looked {
        job: u64,
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
    asks: Sender<Ask>,
    pub(crate) answers: Receiver<Answer>,
}

impl Dumps {
    /// Starts the thread. `store`: where dumps are kept.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(debug_files: DebugFiles, store: Option<Store>) -> io::Result<Self> {
        let (asks, asked) = mpsc::channel();
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
            for ask in asked {
                if answered.send(answer(ask, &options, store.as_ref())).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { asks, answers })
    }

    /// Asks without waiting. `false`: the thread has ended.
    pub(crate) fn ask(&self, ask: Ask) -> bool {
        self.asks.send(ask).is_ok()
    }
}

fn answer(ask: Ask, options: &DumpOptions, store: Option<&Store>) -> Answer {
    let take = |pids: Vec<u32>| {
        let report = dump::dump(&Choice::Pids(pids), options, &mut |_| {});
        report.map(Box::new).map_err(|error| format!("{error:#}"))
    };
    match ask {
        Ask::Look { job, pids } => Answer::Looked { job, report: take(pids) },
        Ask::Keep { event, name, pids, report } => {
            let report = report.map_or_else(|| take(pids), Ok);
            let keep = |report: Box<DumpReport>| {
                let store = store.ok_or("dumps are not kept")?;
                store.keep(&name, &report).map_err(|error| format!("{error:#}"))
            };
            Answer::Kept { event, kept: report.and_then(keep) }
        }
    }
}
