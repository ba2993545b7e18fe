//! The metrics of `ncclflow watch`: of communicators and ranks, by NCCL's own counters.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    metrics::{counter::ConstCounter, gauge::ConstGauge, info::Info},
    registry::Unit,
};

use super::{
    Expose, encoded,
    exposition::denied,
    families::{Families, gauge},
    gpu_families,
};
use flow::quota::in_turns;
use inspect::gpu::GpuSamples;
use watch::{AlertKind, Book, CommState, JobView, OwnState, RankState};

/// Most ranks that have series of their own.
const MAX_RANKS: usize = 512;
/// Most characters of a label that a program chose.
const MAX_LABEL: usize = 64;

/// Labels of a job, of a communicator, of a rank. A tenant chooses the name of its job, so the number that this run
/// gave the job tells jobs of one name apart; ranks have their process.
type JobLabels = [(&'static str, String); 2];
type CommLabels = [(&'static str, String); 4];
type RankLabels = [(&'static str, String); 6];

/// State of what is watched, at one reading. Maps, as equal labels twice would make a scrape invalid: a process can
/// hold communicators whose labels are equal.
#[derive(Debug, Default)]
pub struct Watched {
    own: OwnState,
    jobs: Vec<JobMetrics>,
    /// Time for which the communicator stands: of equal ones, the longest.
    comms: BTreeMap<CommLabels, Duration>,
    ranks: BTreeMap<RankLabels, RankMetrics>,
    ranks_left_out: u64,
    begun: Vec<(AlertKind, u64)>,
}

#[derive(Debug)]
struct JobMetrics {
    labels: JobLabels,
    processes: u64,
    iteration: Option<Duration>,
    open: Vec<AlertKind>,
}

#[derive(Debug, Default)]
struct RankMetrics {
    functions: BTreeMap<String, u64>,
    behind: Option<u64>,
    in_flight: bool,
    is_waited_for: bool,
}

impl Watched {
    /// Takes what is known at a moment. Where there are too many ranks, tenants take turns.
    pub fn of(book: &Book, own: &OwnState, now: Duration) -> Self {
        let views: Vec<JobView<'_>> = book.view().collect();
        let comms = views.iter().flat_map(|view| view.comms.iter().map(move |comm| (view, *comm)));
        let ranks = comms
            .flat_map(|(view, comm)| comm.here().map(move |rank| (rank.process.whose(), (view, comm, rank))));
        let (ranks, left_out) = in_turns(ranks, MAX_RANKS);
        let mut all = Self { own: *own, ranks_left_out: left_out.len() as u64, ..Self::default() };
        for (view, comm, rank) in ranks {
            all.add(view, comm, rank, now);
        }
        all.begun = AlertKind::ALL.into_iter().map(|kind| (kind, book.begun(kind))).collect();
        all.jobs = views.into_iter().map(JobMetrics::of).collect();
        all
    }

    /// Adds a rank, and its communicator.
    fn add(&mut self, view: &JobView<'_>, comm: &CommState, rank: &RankState, now: Duration) {
        let [name, number] = job_labels(view);
        let of_comm = ("comm", comm.key.hash.clone());
        let group = ("group", label(comm.name.as_deref().unwrap_or_default()));
        let still = self.comms.entry([name.clone(), number, of_comm.clone(), group.clone()]).or_default();
        *still = comm.stands_for(now).max(*still);
        let gpu = rank.info.gpu.map_or_else(String::new, |gpu| gpu.to_string());
        let (number, pid) = (rank.info.rank.to_string(), rank.process.key.pid.to_string());
        let labels = [name, of_comm, group, ("rank", number), ("gpu", gpu), ("pid", pid)];
        let mut waited_for = view.waited_for.iter().filter(|(of, _)| of.comm_hash == comm.key.hash);
        self.ranks.entry(labels).or_default().join(RankMetrics {
            functions: functions(rank),
            behind: rank.counts.launched().map(|count| comm.launched().saturating_sub(count)),
            in_flight: rank.counts.has_ops_in_flight,
            is_waited_for: waited_for.any(|(_, ranks)| ranks.contains(&rank.info.rank)),
        });
    }
}

fn job_labels(view: &JobView<'_>) -> JobLabels {
    [("job", label(&view.job.name)), ("job_number", view.job.number.to_string())]
}

impl JobMetrics {
    fn of(view: JobView<'_>) -> Self {
        Self {
            labels: job_labels(&view),
            processes: view.job.pids.len() as u64,
            iteration: view.iteration,
            open: view.open.into_iter().collect(),
        }
    }
}

impl RankMetrics {
    /// Takes the maximum of each value.
    fn join(&mut self, other: Self) {
        for (name, count) in other.functions {
            let known = self.functions.entry(name).or_default();
            *known = count.max(*known);
        }
        self.behind = self.behind.max(other.behind);
        self.in_flight |= other.in_flight;
        self.is_waited_for |= other.is_waited_for;
    }
}

/// Returns the collectives that a rank has launched, by function; before 2.26 all in one.
fn functions(rank: &RankState) -> BTreeMap<String, u64> {
    let counts = &rank.counts;
    if counts.by_function.is_empty() {
        return counts.launched().map(|count| (String::new(), count)).into_iter().collect();
    }
    let mut named = BTreeMap::<String, u64>::new();
    for (number, count) in counts.by_function.iter().enumerate().filter(|(_, count)| **count > 0) {
        let name = rank.info.functions.get(number).map_or_else(|| number.to_string(), |name| label(name));
        let sum = named.entry(name).or_default();
        *sum = sum.saturating_add(*count);
    }
    named
}

/// Makes a label of what a program chose.
fn label(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_.:/-".contains(letter);
    text.chars().take(MAX_LABEL).map(|letter| if is_plain(letter) { letter } else { '_' }).collect()
}

/// The metrics, made anew at each scrape out of the latest reading.
#[derive(Clone, Debug)]
pub struct WatchedMetrics {
    latest: Arc<Mutex<Watched>>,
    gpus: GpuSamples,
}

impl WatchedMetrics {
    pub fn new(gpus: GpuSamples) -> Self {
        Self { latest: Arc::default(), gpus }
    }

    /// Puts a reading in the place of the one before.
    pub fn put(&self, watched: Watched) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = watched;
    }
}

impl Expose for WatchedMetrics {
    fn text(&self) -> Result<String, fmt::Error> {
        encoded(self.clone())
    }
}

impl Collector for WatchedMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let watched = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let mut families = Families { encoder };
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        families.single("build", "The program that serves these metrics.", &version)?;
        own(&mut families, &watched.own)?;
        jobs(&mut families, &watched)?;
        ranks(&mut families, &watched)?;
        gpu_families::encode(&mut families, &self.gpus)
    }
}

fn own(families: &mut Families<'_>, own: &OwnState) -> fmt::Result {
    let counter = |count: u64| ConstCounter::new(count);
    families.single("watch_readings", "Readings of all processes.", &counter(own.readings))?;
    let help = "Readings that came late, as ncclflow got too little of the processor.";
    families.single("watch_readings_late", help, &counter(own.late))?;
    families.single("watch_processes", "Processes that are watched.", &gauge(own.processes as u64))?;
    let help = "Processes that did not let themselves be read at the last reading.";
    families.single("watch_unread_processes", help, &gauge(own.unread as u64))?;
    denied(families, own.sight.denied)?;
    let help = "Processes with NCCL that are not watched, because there are too many.";
    families.single("watch_left_out_processes", help, &gauge(own.left_out as u64))?;
    let help = "1 while the GPUs' driver does not answer.";
    families.single("watch_gpus_unanswered", help, &gauge(own.gpus_hang.into()))?;
    let help = "Dumps that were wanted, and were not taken or not kept.";
    families.single("watch_dumps_lost", help, &counter(own.dumps_lost))?;
    let help = "Runs of the program of --exec that failed or were killed.";
    families.single("watch_exec_failed", help, &counter(own.exec_failed))?;
    let help = "Events that the program of --exec was not told, because they came too fast.";
    families.single("watch_exec_left_out", help, &counter(own.exec_left_out))
}

fn jobs(families: &mut Families<'_>, watched: &Watched) -> fmt::Result {
    let begun =
        watched.begun.iter().map(|(kind, count)| ([("kind", kind.name())], ConstCounter::new(*count)));
    let help = "Alerts that began, by kind.";
    families.family("watch_alerts", None, help, begun)?;
    let open = watched.jobs.iter().flat_map(|job| {
        AlertKind::ALL.into_iter().map(move |kind| {
            let labels = (job.labels.as_slice(), [("kind", kind.name())]);
            (labels, gauge(job.open.contains(&kind).into()))
        })
    });
    families.family("watch_alert", None, "1 while an alert of this kind is open.", open)?;
    let processes = watched.jobs.iter().map(|job| (job.labels.as_slice(), gauge(job.processes)));
    families.family("watch_job_processes", None, "Processes of a job on this host.", processes)?;
    let iterations = watched
        .jobs
        .iter()
        .filter_map(|job| Some((job.labels.as_slice(), ConstGauge::new(job.iteration?.as_secs_f64()))));
    let help =
        "Derived: usual time of an iteration, by the rhythm of the counters; only of two readings and more.";
    families.family("watch_iteration", Some(&Unit::Seconds), help, iterations)
}

fn ranks(families: &mut Families<'_>, watched: &Watched) -> fmt::Result {
    let still =
        watched.comms.iter().map(|(labels, still)| (labels.as_slice(), ConstGauge::new(still.as_secs_f64())));
    let help = "Time since a counter of the communicator, or a step of its operations, moved on this host.";
    families.family("watch_still", Some(&Unit::Seconds), help, still)?;
    let launched = watched.ranks.iter().flat_map(|(labels, rank)| {
        let functions = rank.functions.iter();
        functions.map(|(name, count)| {
            ((labels.as_slice(), [("function", name.as_str())]), ConstCounter::new(*count))
        })
    });
    let help = "NCCL's own count of the collectives that a rank launched, since the communicator was made; replays of \
                CUDA graphs are not counted.";
    families.family("watch_collectives", None, help, launched)?;
    let each = |value: fn(&RankMetrics) -> Option<u64>| {
        let series = watched.ranks.iter();
        series.filter_map(move |(labels, rank)| Some((labels.as_slice(), gauge(value(rank)?))))
    };
    let help = "Collectives that another rank of this host has launched, and this one has not.";
    families.family("watch_behind_collectives", None, help, each(|rank| rank.behind))?;
    let help = "1 while the rank's proxy has operations in flight.";
    families.family("watch_in_flight", None, help, each(|rank| Some(rank.in_flight.into())))?;
    let help = "1 while an alert says that others wait for this rank.";
    families.family("watch_waited_for", None, help, each(|rank| Some(rank.is_waited_for.into())))?;
    let help = "Ranks without series of their own, because there are too many.";
    families.single("watch_ranks_left_out", help, &gauge(watched.ranks_left_out))
}
