//! A job on the bed that hangs, or does not, for a reason that the test knows; and dumps of it.

use std::{
    fs::File,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::{bed::Bed, dumper::Dump, programs};
use test_support::{is_long, root};

/// The libraries that the tests run: one for each era of NCCL's structs and each major version of CUDA.
pub const VERSIONS: [&str; 4] = ["2.21.5-cu12", "2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"];
/// Long enough for every rank to come to rest after the last one moved, on a slow machine with few cores.
const SETTLE: Duration = Duration::from_secs(45);
/// The wait ends after so many dumps in a row that neither say `stuck` nor see anything move.
const DUMPS_AT_REST: u32 = 2;
/// Longest time that a job may take until it hangs, beside the other tests.
const HANGS_WITHIN: Duration = Duration::from_secs(300);

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

    fn arguments(self) -> Vec<String> {
        let mode = if self.processes { "processes" } else { "threads" };
        let algo = if self.tree { "tree" } else { "ring" };
        let ranks = self.ranks.to_string();
        let timeout = if is_long() { "14400" } else { "900" };
        ["--ranks", &ranks, "--mode", mode, "--algo", algo, "--channels", "2", "--timeout", timeout]
            .map(str::to_owned)
            .to_vec()
    }
}

/// A job that runs until it is told to hang. It ends when this is dropped.
#[derive(Debug)]
pub struct Job {
    pub ncclflow: PathBuf,
    pub folder: tempfile::TempDir,
    pub bed: Bed,
}

impl Job {
    /// Starts it on an official library; `None` if the machine lacks something. `{}` in an
    /// argument is the job's folder.
    ///
    /// # Errors
    /// If the bed does not come up.
    pub fn start(version: &str, shape: Shape, arguments: &[&str]) -> Result<Option<Self>> {
        let Some(library) = programs::nccl(version) else { return Ok(None) };
        Self::on(&library, shape, arguments)
    }

    /// The same on any library file.
    ///
    /// # Errors
    /// If the bed does not come up.
    pub fn on(library: &Path, shape: Shape, arguments: &[&str]) -> Result<Option<Self>> {
        let (Some(ncclflow), Some(bed)) = (programs::ncclflow(), programs::bed()) else { return Ok(None) };
        if !root() {
            return Ok(None);
        }
        let folder = tempfile::tempdir().context("making the job's folder")?;
        let path = folder.path().display().to_string();
        let mut all = shape.arguments();
        all.extend(arguments.iter().map(|argument| argument.replace("{}", &path)));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let bed = Bed::start(&bed, library, folder.path(), &all)?;
        bed.go()?;
        Ok(Some(Self { ncclflow, folder, bed }))
    }

    /// Dumps all its processes.
    ///
    /// # Errors
    /// If the dump gives no JSON.
    pub fn dump(&self, arguments: &[&str]) -> Result<Dump> {
        Dump::take(&self.ncclflow, &self.bed.pid_list(), arguments)
    }

    /// Dumps until the verdict is `stuck`: ranks need a moment until they all stand.
    ///
    /// # Errors
    /// If a dump gives no JSON.
    pub fn stuck(&self) -> Result<Dump> {
        self.stuck_without(&[])
    }

    /// The same without the processes of some ranks.
    ///
    /// # Errors
    /// If a dump gives no JSON.
    pub fn stuck_without(&self, ranks: &[usize]) -> Result<Dump> {
        let pids = self.bed.ready.pids.iter().enumerate();
        let pids: Vec<String> =
            pids.filter(|(rank, _)| !ranks.contains(rank)).map(|(_, pid)| pid.to_string()).collect();
        let started = Instant::now();
        // Dumps in a row that saw nothing move, and the end of the last one that did.
        let (mut still, mut moved) = (0, started);
        loop {
            let dump = Dump::take(&self.ncclflow, &pids.join(","), &[])?;
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

    /// Lets the ranks work for a moment. How far their kernels are shows nowhere outside, so nothing can be
    /// awaited.
    pub fn work() {
        thread::sleep(Duration::from_millis(500));
    }

    /// Lets the ranks that were started with `--stall RANK={}/stall` stall, after some moments of work.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn stall(&self) -> Result<()> {
        Self::work();
        File::create(self.folder.path().join("stall")).context("making the stall file")?;
        Ok(())
    }

    /// Sends a signal to the process of a rank, of a job whose ranks are processes.
    ///
    /// # Errors
    /// If there is none.
    pub fn signal(&self, rank: usize, signal: Signal) -> Result<()> {
        let pid = self.bed.ready.pids.get(rank).and_then(|pid| i32::try_from(*pid).ok());
        kill_process(pid.and_then(Pid::from_raw).context("no such rank")?, signal)
            .context("signalling a rank")
    }
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
