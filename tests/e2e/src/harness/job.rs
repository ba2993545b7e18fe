//! A job on the bed that hangs, or does not, for a reason that the test knows; and dumps of it.

use std::{
    panic::Location,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::{dumper::Dump, programs, world::World};
use crate::truth::call_log;
use test_support::{cache, eventually, is_long};

/// The libraries that the tests run: one for each era of NCCL's structs and each major version of CUDA.
pub const VERSIONS: [&str; 4] = ["2.21.5-cu12", "2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"];

/// Those of the libraries that are in the cache.
pub fn in_cache() -> Vec<&'static str> {
    VERSIONS.into_iter().filter(|version| cache().join(version).exists()).collect()
}

/// Two of the libraries, others at another line of a test; with `NCCLFLOW_LONG=1` all.
#[track_caller]
pub fn libraries() -> Vec<&'static str> {
    let first = Location::caller().line() as usize % 2;
    if is_long() { VERSIONS.to_vec() } else { VERSIONS.into_iter().skip(first).step_by(2).collect() }
}

/// Long enough for every rank to come to rest after the last one moved, on a slow machine with few cores.
const SETTLE: Duration = Duration::from_secs(45);
/// The wait ends after so many dumps in a row that neither say `stuck` nor see anything move.
const DUMPS_AT_REST: u32 = 2;
/// Longest time that a job may take until it hangs, beside the other tests.
const HANGS_WITHIN: Duration = Duration::from_secs(300);
/// A rank that stood for a moment while the others came to their hang has come to it, too, when so much time has passed.
pub const COMES_TO_REST: Duration = Duration::from_secs(10);
/// What stood for a moment goes on within this.
const GOES_ON: Duration = Duration::from_secs(120);

/// How the ranks of a job live and what connects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub ranks: u32,
    pub processes: bool,
    pub tree: bool,
}

impl Shape {
    /// All there are. Two that stand side by side differ in everything but one.
    pub const ALL: [Self; 8] = [
        Self { ranks: 4, processes: false, tree: false },
        Self { ranks: 8, processes: true, tree: false },
        Self { ranks: 4, processes: true, tree: true },
        Self { ranks: 8, processes: false, tree: true },
        Self { ranks: 4, processes: true, tree: false },
        Self { ranks: 8, processes: false, tree: false },
        Self { ranks: 4, processes: false, tree: true },
        Self { ranks: 8, processes: true, tree: true },
    ];

    fn words(self) -> String {
        let mode = if self.processes { "processes" } else { "threads" };
        let algo = if self.tree { "tree" } else { "ring" };
        let timeout = if is_long() { 14_400 } else { 900 };
        format!("--ranks {} --mode {mode} --algo {algo} --channels 2 --timeout {timeout}", self.ranks)
    }
}

/// Jobs that run until they are told to hang.
impl World {
    /// Starts a job on an official library, and lets it go. `None` if the machine lacks something.
    pub fn going(version: &str, shape: Shape, workload: &str) -> Result<Option<Self>> {
        let (Some(library), Some(bed)) = (programs::nccl(version), programs::bed()) else { return Ok(None) };
        let world = Self::try_with(&bed, &library, &format!("{} {workload}", shape.words()))?;
        world.map(Self::gone).transpose()
    }

    /// The same on a copy of the library, as [`World::of_copy`] makes it.
    pub fn going_on_copy(
        version: &str,
        copy: impl FnOnce(&Path, &Path) -> Result<std::path::PathBuf>,
        shape: Shape,
        workload: &str,
    ) -> Result<Option<Self>> {
        let world = Self::of_copy(version, copy, &format!("{} {workload}", shape.words()));
        world.map(Self::gone).transpose()
    }

    fn gone(self) -> Result<Self> {
        self.bed.go()?;
        Ok(self)
    }

    /// Dumps all its processes.
    pub fn dump(&self, arguments: &[&str]) -> Result<Dump> {
        Dump::take_answered(&self.ncclflow, &self.bed.pid_list(), arguments, &[])
    }

    /// Whether the job stood while this dump was made, which was begun at `from_ns`: then nothing moved, whatever the job
    /// was told to do. By its own log of calls ([`super::world::CALL_LOG`]), which has a gap there, and goes on. The gap is
    /// half as long as nothing moved for the dump, at least: a call that has begun in the middle is counted by NCCL when it
    /// launches.
    pub fn stood(&self, dump: &Dump, from_ns: u64) -> bool {
        let until_ns = call_log::now_ns();
        let prefix = self.path("calls");
        let mut times: Vec<u64> = Vec::new();
        let goes_on = eventually(GOES_ON, || {
            let calls = call_log::read(&prefix).unwrap_or_default();
            times = calls.iter().flat_map(|call| [call.begin_ns, call.end_ns]).collect();
            times.iter().any(|time| *time > until_ns)
        });
        times.sort_unstable();
        let gaps = times.windows(2).map(|pair| pair[1].min(until_ns).saturating_sub(pair[0].max(from_ns)));
        let longest = Duration::from_nanos(gaps.max().unwrap_or(0)).as_secs_f64();
        goes_on && dump.seconds() > 0.0 && longest >= dump.seconds() / 2.0
    }

    /// Dumps until the verdict is `stuck`: ranks need a moment until they all stand.
    pub fn stuck(&self) -> Result<Dump> {
        self.stuck_without(&[])
    }

    /// The same without the processes of some ranks.
    pub fn stuck_without(&self, ranks: &[usize]) -> Result<Dump> {
        let pids = self.bed.ready.pids.iter().enumerate();
        let pids: Vec<String> =
            pids.filter(|(rank, _)| !ranks.contains(rank)).map(|(_, pid)| pid.to_string()).collect();
        let started = Instant::now();
        // Dumps in a row that saw nothing move, and the end of the last one that did.
        let (mut still, mut moved) = (0, started);
        loop {
            let dump = Dump::take_answered(&self.ncclflow, &pids.join(","), &[], &[])?;
            let is_any =
                |state| dump.communicators.iter().any(|communicator| communicator.verdict.state == state);
            if is_any("stuck") || started.elapsed() > HANGS_WITHIN {
                return Ok(dump);
            }
            if is_any("healthy") {
                (still, moved) = (0, Instant::now());
                continue;
            }
            still += 1;
            // Beside the other tests a dump can take longer than ranks need to come to rest.
            if still >= DUMPS_AT_REST && moved.elapsed() > SETTLE {
                return Ok(dump);
            }
        }
    }

    /// Dumps until the verdict is `stuck`, and checks it as [`check_culprit`] does.
    ///
    /// # Panics
    /// If the verdict is another one.
    #[track_caller]
    pub fn check_stuck(&self, culprit: u32, said: &str) -> Result<Dump> {
        self.check_stuck_without(&[], culprit, said)
    }

    /// The same without the processes of some ranks.
    ///
    /// # Panics
    /// If the verdict is another one.
    #[track_caller]
    pub fn check_stuck_without(&self, ranks: &[usize], culprit: u32, said: &str) -> Result<Dump> {
        let dump = self.stuck_as(ranks, |dump| is_named(dump, culprit, said))?;
        check_culprit(&dump, culprit, said);
        Ok(dump)
    }

    /// Dumps until the verdict is `stuck`. If it is not as expected, a rank may have stood on its way to the hang, and be
    /// named for that: then once more, when the job has come to rest.
    pub fn stuck_as(&self, without: &[usize], is_expected: impl Fn(&Dump) -> bool) -> Result<Dump> {
        let dump = self.stuck_without(without)?;
        if is_expected(&dump) {
            return Ok(dump);
        }
        thread::sleep(COMES_TO_REST);
        self.stuck_without(without)
    }

    /// Lets the ranks work for a moment. How far their kernels are shows nowhere outside, so nothing can be
    /// awaited.
    pub fn work() {
        thread::sleep(Duration::from_millis(500));
    }

    /// Lets the ranks that were started with `--stall RANK={}/stall` stall, after some moments of work.
    pub fn stall(&self) {
        Self::work();
        self.touch("stall");
    }

    /// Sends a signal to the process of a rank, of a job whose ranks are processes.
    pub fn signal(&self, rank: usize, signal: Signal) -> Result<()> {
        let pid = self.bed.ready.pids.get(rank).and_then(|pid| i32::try_from(*pid).ok());
        kill_process(pid.and_then(Pid::from_raw).context("no such rank")?, signal)
            .context("signalling a rank")
    }
}

fn is_named(dump: &Dump, culprit: u32, said: &str) -> bool {
    let [communicator] = &*dump.communicators else { return false };
    let verdict = &communicator.verdict;
    let is_said = verdict.evidence.iter().any(|sentence| sentence.contains(said));
    verdict.state == "stuck" && verdict.culprits == [culprit] && is_said
}

/// The verdict must be `stuck`, name this rank and no other as the one waited for, and say these words.
///
/// # Panics
/// If it does not.
#[track_caller]
pub fn check_culprit(dump: &Dump, culprit: u32, said: &str) {
    let text = &dump.text;
    let [communicator] = &*dump.communicators else { panic!("not one communicator: {text}") };
    let verdict = &communicator.verdict;
    assert_eq!((verdict.state.as_str(), dump.code), ("stuck", Some(3)), "{verdict:#?}\n{text}");
    assert_eq!(verdict.culprits, [culprit], "{verdict:#?}\n{text}");
    assert!(!verdict.victims.contains(&culprit), "{verdict:#?}");
    assert!(
        verdict.evidence.iter().any(|sentence| sentence.contains(said)),
        "no `{said}`: {verdict:#?}\n{text}"
    );
}
