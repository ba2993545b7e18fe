//! Dumps the state of every communicator of running processes, and which ranks wait for which, from the
//! processes' memory.
//!
//! Nothing is prepared in the processes, and nothing is stopped. A first pass finds the communicators
//! ([`communicator`]); each reading then copies their fields and the ops in flight of their proxies
//! ([`proxy`]). The changes from one reading to the next are their [`motion`]. The [`verdict`] over all ranks
//! is pure, so that dumps of several hosts can be judged together.

mod absent;
mod activity;
mod budget;
mod comm_layout;
mod communicator;
mod connections;
mod copies;
mod dump_report;
mod flight_recorder;
mod forged;
mod gpus;
pub mod history;
mod libraries;
mod making;
pub mod mem;
mod motion;
mod nics;
mod of_host;
mod one_sided;
mod open_files;
mod own_list;
mod owners;
mod pending;
mod places;
mod process;
mod process_state;
mod proxy;
pub mod ps;
mod pxn;
mod python;
mod rank_gpu;
mod rank_report;
mod ras_peers;
mod search;
mod set_up;
mod store_wait;
mod tcp;
mod text;
mod thread_roles;
mod torch_notes;
mod unanswered;
mod verdict;
pub mod watched;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    iter,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

pub use absent::{AbsentPeer, AbsentRank, Place};
pub use activity::Activity;
pub use copies::CopiedRank;
pub use dump_report::{CommunicatorReport, DumpReport, LibraryReport, ProcessReport, SCHEMA};
pub use flight_recorder::{RecorderDumps, recorder_dumps};
#[doc(hidden)]
pub use forged::dump_of_forged_memory;
pub use nics::{NicReader, NicReport};
pub use of_host::{HostNotRead, OfHost, grouped};
pub use one_sided::{OneSided, OneSidedKind, OneSidedOp, OneSidedProxy, OneSidedQueue, SignalWait};
pub use open_files::FewFiles;
use owners::{Claim, Owner};
pub use pending::Pending;
pub use process_state::ProcessState;
pub use pxn::OpForOther;
pub use python::{PythonGroup, PythonReport, PythonThread, PythonVariable};
pub use rank_gpu::RankGpu;
use rank_gpu::Work;
use rank_report::ProcessId;
pub use rank_report::{
    ChannelReport, CommStatus, ConnectionReport, Counters, Counting, Motion, OpReport, ProxyListState,
    ProxyReport, RankReport,
};
pub use set_up::{SetUp, Stage};
pub use store_wait::{StoreServer, StoreWait, WaitsFor};
pub use text::render;
pub use thread_roles::Caller;
use torch_notes::comm_ranks;
pub use unanswered::Unanswered;
pub use verdict::{JobVerdict, Kind, KnownBug, State, Verdict};

use anyhow::{Context as _, Result, bail};
use rustix::time::ClockId;
use torch_history::{Builds, ProcessHistory};

use inspect::{
    adapters::PortWatch,
    clock::now_ns,
    gpu::GpuWatch,
    host::host_name,
    memory::{ScanLimits, ScanProgress},
    process::{MappedLibrary, Process, ProcessError, denied_remedy},
    resolver::{self, nccl_processes},
    threads::{Names, Sampler},
};
use nccl_library::symbols::DebugFiles;

/// Maximum number of readings, taken if nothing moves. Two are enough if something does.
const MAX_READINGS: usize = 3;
/// Number of processes whose threads are looked at at the same time.
const LOOKED_AT_ONCE: usize = 8;
/// Time that the GPUs' driver may take to answer after the last reading. A query takes some milliseconds.
const GPU_PATIENCE: Duration = Duration::from_millis(500);
/// Time that the driver of the network adapters may take for each of two readings.
const PORT_PATIENCE: Duration = Duration::from_millis(300);

#[derive(Clone, Debug)]
pub enum Choice {
    /// PIDs in the PID namespace of this program.
    Pids(Vec<u32>),
    /// Every process of the node that has an NCCL library mapped.
    All,
}

#[derive(Clone, Copy, Debug)]
pub struct Progress<'p> {
    pub process: &'p Process,
    pub scan: &'p ScanProgress,
}

/// Told of progress, by some threads in turn.
pub type OnProgress<'p> = dyn FnMut(&Progress<'_>) + Send + 'p;

#[derive(Clone, Debug)]
pub struct DumpOptions {
    /// Time between two readings.
    pub interval: Duration,
    /// Ends the scan of each process at its first communicator.
    pub first_only: bool,
    pub limits: ScanLimits,
    pub debug_files: DebugFiles,
    /// Gives the frames of threads inside NCCL, not only their functions.
    pub stacks: bool,
}

/// Reads these processes and judges their communicators. `progress` is called some times a second while one
/// is scanned.
///
/// # Errors
/// None of the processes is there. A process that cannot be read, or that exits meanwhile, is named in the
/// report.
pub fn dump(choice: &Choice, options: &DumpOptions, progress: &mut OnProgress<'_>) -> Result<DumpReport> {
    let Chosen { processes, refused, denied } = chosen(choice)?;
    // Loading NVML takes a moment; the search goes on meanwhile.
    let mut gpus = GpuWatch::start();
    let ports = PortWatch::start();
    let mut targets = search::find(processes.into_iter().map(|process| (process, None)), options, progress);
    some_at_once(targets.iter_mut(), &process::Target::find_callers);
    let runtimes = python::Runtimes::default();
    let mut histories = Vec::new();
    // What takes its time is looked at between the first readings, when there is nothing else to do. A job that
    // moves has no others.
    let readings = take_readings(&mut targets, options.interval, &mut gpus, |targets| {
        histories = look_between(targets, options, &runtimes);
        search::find_unlisted(targets, options, progress)
    });
    let mut ranks = motion::over(readings);
    for target in &mut targets {
        let activity = activity::over(&target.samples);
        let is_starved = activity.as_ref().is_some_and(|activity| activity.is_starved);
        target.report.activity = activity;
        if is_starved && target.report.state == ProcessState::Running {
            target.report.state = ProcessState::Starved;
            for rank in ranks.iter_mut().filter(|rank| rank.pid == target.report.pid) {
                rank.process_state = ProcessState::Starved;
            }
        }
    }
    copies::leave_out(&mut targets, &mut ranks);
    absent::find(&targets, &mut ranks);
    let ports = ports.finish(PORT_PATIENCE).unwrap_or_default();
    for target in &mut targets {
        target.look_at_nics(&mut ranks, &ports);
        target.look_at_job(&ranks);
    }
    process::look_at_stores(&mut targets);
    let torch_notes = torch_notes::notes(histories, &mut ranks);
    for target in &mut targets {
        target.note_silence();
    }
    let unread = refused.into_iter().map(|(pid, error)| ProcessReport {
        host: host_name(),
        pid,
        state: match error {
            ProcessError::Missing(_) => ProcessState::Exited,
            _ => ProcessState::Unknown,
        },
        error: Some(error.to_string()),
        ..ProcessReport::default()
    });
    let processes: Vec<ProcessReport> =
        targets.into_iter().map(|target| target.report).chain(unread).collect();
    let (gpus, gpu_remarks) = gpus::of_host(&host_name(), gpus.finish(GPU_PATIENCE));
    let places = rank_gpu::places(&ranks);
    for rank in &mut ranks {
        rank.gpu = RankGpu::of(rank, &places, &processes, &gpus);
    }
    Ok(DumpReport {
        torch_notes,
        lost_readers: resolver::lost(),
        hosts: vec![host_name()],
        unix_time: now_ns(ClockId::Realtime) / 1_000_000_000,
        gpus,
        gpu_remarks,
        processes_denied: denied,
        ..DumpReport::judged(ranks, processes)
    })
}

/// Reads all processes until something has moved everywhere, or long enough to say that nothing does.
/// `between` is called after the first reading, and tells whether it has found further communicators. Then there is a
/// further reading at once, the first that has them, and the next is no earlier than half the interval later. So what
/// is judged to stand has stood at three readings, and what was known before is judged by the first one, too.
fn take_readings(
    targets: &mut [process::Target],
    interval: Duration,
    gpus: &mut GpuWatch,
    between: impl FnOnce(&mut [process::Target]) -> bool,
) -> Vec<motion::Reading> {
    let mut read = |targets: &mut [process::Target]| {
        let at = Instant::now();
        gpus.ask();
        let mut ranks: Vec<RankReport> = targets.iter_mut().flat_map(process::Target::read).collect();
        pxn::give_back(&mut ranks);
        motion::Reading { at, ranks }
    };
    let left = |at: Instant, time: Duration| time.saturating_sub(at.elapsed());
    let first = read(targets);
    let (at, mut wait, mut most) = (first.at, Duration::ZERO, MAX_READINGS);
    let mut readings = vec![first];
    if between(targets) {
        let further = read(targets);
        wait = left(further.at, interval / 2);
        readings.push(further);
        most += 1;
    }
    wait = wait.max(left(at, interval));
    loop {
        thread::sleep(wait);
        let reading = read(targets);
        wait = left(reading.at, interval);
        // Processes without a communicator are looked at twice: what they do elsewhere can be what others
        // wait for.
        let is_last = reading.ranks.is_empty();
        readings.push(reading);
        if is_last || readings.len() >= most || motion::all_moved(&readings) {
            return readings;
        }
    }
}

/// Looks at the threads of all processes and at torch's notes in them, which it returns: of some at once, as
/// sampling a thread that runs takes its time, as long as others have the processors.
fn look_between(
    targets: &mut [process::Target],
    options: &DumpOptions,
    runtimes: &python::Runtimes,
) -> Vec<ProcessHistory> {
    let names = Names::new(options.debug_files.clone());
    let sampler = Sampler::default();
    let mut all: Vec<(&mut process::Target, ProcessHistory)> =
        targets.iter_mut().map(|target| (target, ProcessHistory::default())).collect();
    some_at_once(all.iter_mut(), &|(target, history)| {
        target.look_at_threads(options.stacks, &names, &sampler);
        target.look_at_python(options.stacks, runtimes);
        *history = torch_history::read(&target.process, &mut Builds::default(), runtimes);
    });
    all.into_iter().map(|(_, history)| history).collect()
}

/// Does the work for all items, for some of them at the same time.
fn some_at_once<T: Send>(items: impl ExactSizeIterator<Item = T> + Send, work: &(impl Fn(T) + Sync)) {
    let at_once = items.len().min(LOOKED_AT_ONCE);
    let left = Mutex::new(items);
    let work = || {
        while let Some(item) = { left.lock().unwrap_or_else(PoisonError::into_inner).next() } {
            work(item);
        }
    };
    thread::scope(|scope| {
        for _ in 1..at_once {
            // If no other thread can be started, this one does all.
            let _ = thread::Builder::new().name("ncclflow-look".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
}

/// Finds the communicators of processes by their NCCL libraries, those given or those that a process is found
/// to have, and reads them once. Processes stand in the order in which they came.
pub fn survey(
    targets: impl Iterator<Item = (Process, Option<Vec<MappedLibrary>>)>,
    limits: ScanLimits,
    debug_files: &DebugFiles,
    progress: &mut OnProgress<'_>,
) -> (Vec<ProcessReport>, Vec<RankReport>) {
    let options = DumpOptions {
        interval: Duration::ZERO,
        first_only: false,
        limits,
        debug_files: debug_files.clone(),
        stacks: false,
    };
    let mut targets = search::find(targets, &options, progress);
    let mut ranks = targets.iter_mut().flat_map(process::Target::read).collect();
    copies::leave_out(&mut targets, &mut ranks);
    for target in &mut targets {
        target.note_silence();
    }
    (targets.into_iter().map(|target| target.report).collect(), ranks)
}

/// Processes that were chosen.
#[derive(Debug, Default)]
pub struct Chosen {
    pub processes: Vec<Process>,
    /// Those that cannot be opened, and why.
    pub refused: Vec<(u32, ProcessError)>,
    /// Number of processes of the node that may not be looked at, so that they could not be chosen.
    pub denied: usize,
}

/// Opens the processes of a choice.
///
/// # Errors
/// There is none.
pub fn chosen(choice: &Choice) -> Result<Chosen> {
    let Choice::Pids(pids) = choice else {
        let found = nccl_processes().context("listing the processes")?;
        if found.processes.is_empty() {
            let (which, denied) = match found.denied {
                0 => ("", String::new()),
                count => (" that may be inspected", format!("; cannot inspect {count}: {}", denied_remedy())),
            };
            bail!("no process of this host{which} has an NCCL library mapped{denied}");
        }
        return Ok(Chosen { processes: found.processes, refused: Vec::new(), denied: found.denied });
    };
    let (mut processes, mut refused, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for &pid in pids.iter().filter(|pid| seen.insert(**pid)) {
        match Process::open(pid) {
            Ok(process) => processes.push(process),
            Err(error) => refused.push((pid, error)),
        }
    }
    if processes.is_empty()
        && let Some((_, error)) = refused.pop()
    {
        return Err(error.into());
    }
    Ok(Chosen { processes, refused, denied: 0 })
}

/// Merges the dumps of several hosts into one, judged again over all their ranks.
pub fn merge(reports: Vec<DumpReport>) -> DumpReport {
    let mut all = DumpReport::default();
    let mut ranks = Vec::new();
    for report in reports {
        for host in report.hosts {
            if !all.hosts.contains(&host) {
                all.hosts.push(host);
            }
        }
        all.unix_time = all.unix_time.max(report.unix_time);
        all.processes.extend(report.processes);
        all.gpus.extend(report.gpus);
        all.gpu_remarks.extend(report.gpu_remarks);
        all.torch_notes.extend(report.torch_notes);
        all.processes_denied = all.processes_denied.saturating_add(report.processes_denied);
        all.lost_readers += &report.lost_readers;
        all.hosts_not_read.extend(report.hosts_not_read);
        ranks.extend(report.communicators.into_iter().flat_map(|communicator| communicator.ranks));
    }
    let DumpReport { schema, job, processes, communicators, .. } =
        DumpReport::judged(ranks, std::mem::take(&mut all.processes));
    DumpReport { schema, job, processes, communicators, ..all }
}

fn communicators(ranks: Vec<RankReport>, processes: &[ProcessReport]) -> Vec<CommunicatorReport> {
    // Two communicators can have one hash (2.18 to 2.23: splits of one parent by one color); their sizes may
    // tell them apart.
    let mut by_hash: BTreeMap<(String, u32), Vec<RankReport>> = BTreeMap::new();
    for rank in ranks {
        by_hash.entry((rank.comm_hash.clone(), rank.n_ranks)).or_default().push(rank);
    }
    // If a process is given twice, the first counts.
    let known: HashMap<ProcessId<'_>, &ProcessReport> =
        processes.iter().rev().map(|process| (process.id(), process)).collect();
    let owner_of = |rank: &RankReport| known.get(&rank.process())?.owner.as_ref();
    let (mut all, mut claims) = (Vec::new(), Vec::new());
    for ((comm_hash, n_ranks), ranks) in by_hash {
        for Claim { mut ranks, others, doubt } in owners::tell_apart(ranks, &owner_of) {
            ranks.sort_by_key(|rank| rank.rank);
            let main = |rank: &RankReport| known.get(&rank.process())?.main_thread();
            let stacks = ranks.iter().filter_map(|rank| Some((rank.rank, main(rank)?)));
            all.push(CommunicatorReport {
                comm_hash: comm_hash.clone(),
                name: ranks.iter().find_map(|rank| rank.comm_name.clone()),
                n_ranks,
                python_stacks: python::groups(stacks),
                ranks,
                verdict: Verdict::default(),
            });
            claims.push((doubt, others));
        }
    }
    verdict::judge_all(&mut all, processes);
    for (communicator, (doubt, others)) in all.iter_mut().zip(claims) {
        let verdict = &mut communicator.verdict;
        if let Some(doubt) = doubt {
            let evidence = std::mem::take(&mut verdict.evidence);
            *verdict =
                Verdict { evidence: iter::once(doubt).chain(evidence).collect(), ..Verdict::default() };
        }
        verdict.evidence.extend(others);
    }
    all
}

impl DumpReport {
    /// Makes the report of ranks and their processes, with the verdicts.
    fn judged(ranks: Vec<RankReport>, processes: Vec<ProcessReport>) -> Self {
        let communicators = communicators(ranks, &processes);
        let job = verdict::over_all(&communicators, &processes);
        Self { schema: SCHEMA, job, processes, communicators, ..Self::default() }
    }

    /// Returns the state of the job; `Unknown` if nothing tells it.
    pub fn state(&self) -> State {
        self.job.as_ref().map_or_else(State::default, |job| job.state)
    }
}
