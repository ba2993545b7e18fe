//! `ncclflow dump` on the real NCCL: jobs that hang for a known reason, and jobs that do not hang.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs::{self, File},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use ncclflow_e2e::harness::{
    bed::Bed,
    dumper::{Dump, DumpedCommunicator},
    need, programs,
};
use rustix::process::{Pid, Signal, kill_process};

const VERSIONS: [&str; 4] = ["2.21.5-cu12", "2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"];
/// Long enough for every rank to come to rest on a slow machine with few cores.
const SETTLE: Duration = Duration::from_secs(30);
/// Dumps of one busy job.
const BUSY_DUMPS: usize = 50;

/// A job of four ranks that runs until it is told to hang.
struct Job {
    ncclflow: PathBuf,
    folder: tempfile::TempDir,
    bed: Bed,
}

impl Job {
    /// `None` if the machine lacks something. `{}` in an argument is the job's folder.
    fn start(version: &str, arguments: &[&str]) -> Option<Self> {
        let (ncclflow, bed, library) = (programs::ncclflow()?, programs::bed()?, programs::nccl(version)?);
        if !need::root() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace("{}", &path)).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut all = vec!["--ranks", "4", "--channels", "2", "--timeout", "900"];
        all.extend(arguments);
        let bed = Bed::start(&bed, &library, folder.path(), &all).unwrap();
        bed.go().unwrap();
        Some(Self { ncclflow, folder, bed })
    }

    fn dump(&self, arguments: &[&str]) -> Dump {
        Dump::take(&self.ncclflow, &self.bed.pid_list(), arguments).unwrap()
    }

    /// Dumps until the verdict is `stuck`: ranks need a moment until they all stand.
    fn stuck(&self) -> Dump {
        let deadline = Instant::now() + SETTLE;
        loop {
            let dump = self.dump(&[]);
            let is_stuck =
                dump.communicators.iter().any(|communicator| communicator.verdict.state == "stuck");
            if is_stuck || Instant::now() > deadline {
                return dump;
            }
        }
    }

    fn stall(&self) {
        thread::sleep(Duration::from_millis(500));
        File::create(self.folder.path().join("stall")).unwrap();
    }

    fn signal(&self, rank: usize, signal: Signal) {
        let pid = i32::try_from(self.bed.ready.pids[rank]).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

#[track_caller]
fn only(dump: &Dump) -> &DumpedCommunicator {
    assert_eq!(dump.communicators.len(), 1, "{}", dump.text);
    let communicator = &dump.communicators[0];
    assert_eq!((communicator.n_ranks, communicator.ranks.len()), (4, 4), "{}", dump.text);
    communicator
}

#[track_caller]
fn check_stuck(dump: &Dump, culprit: u32, said: &str) {
    let verdict = &only(dump).verdict;
    assert_eq!((verdict.state.as_str(), dump.code), ("stuck", Some(3)), "{verdict:#?}");
    assert_eq!(verdict.culprits, [culprit], "{verdict:#?}\n{}", dump.text);
    let victims: Vec<u32> = (0..4).filter(|rank| *rank != culprit).collect();
    assert_eq!(verdict.victims, victims, "{verdict:#?}");
    assert!(verdict.evidence.iter().any(|sentence| sentence.contains(said)), "{verdict:#?}");
}

fn for_each_version(arguments: &[&str], check: impl Fn(&Job, &str)) {
    for version in VERSIONS {
        if let Some(job) = Job::start(version, arguments) {
            check(&job, version);
        }
    }
}

#[test]
fn a_rank_that_stays_away_is_named_in_threads() {
    for_each_version(&["--absent", "1@3", "--iters", "6"], |job, _| {
        check_stuck(&job.stuck(), 1, "rank 1 has not joined");
    });
}

#[test]
fn a_rank_that_stays_away_is_named_in_processes() {
    for_each_version(
        &["--absent", "2@2", "--iters", "4", "--mode", "processes", "--algo", "tree"],
        |job, _| check_stuck(&job.stuck(), 2, "rank 2 has not joined"),
    );
}

#[test]
fn a_rank_whose_kernels_stall_in_the_middle_is_named() {
    let running = ["--stall", "3={}/stall", "--iters", "1000000"];
    for more in [&["--bytes", "8388608"][..], &["--algo", "tree"], &["--ops", "sendrecv"]] {
        for_each_version(&[&running[..], more].concat(), |job, _| {
            job.stall();
            check_stuck(&job.stuck(), 3, "rank 3 does not go on");
        });
    }
}

#[test]
fn a_stopped_process_is_named_and_its_job_goes_on_afterwards() {
    for_each_version(&["--mode", "processes", "--iters", "1000000", "--bytes", "65536"], |job, _| {
        thread::sleep(Duration::from_millis(300));
        job.signal(1, Signal::STOP);
        check_stuck(&job.stuck(), 1, "rank 1 is stopped: process");
        job.signal(1, Signal::CONT);
        assert_ne!(only(&job.dump(&[])).verdict.state, "stuck");
    });
}

#[test]
fn a_rank_whose_process_is_not_given_is_named_as_unread() {
    for_each_version(&["--mode", "processes", "--absent", "3@2", "--iters", "4"], |job, _| {
        job.stuck();
        let pids: Vec<String> = job.bed.ready.pids[..3].iter().map(u32::to_string).collect();
        let dump = Dump::take(&job.ncclflow, &pids.join(","), &[]).unwrap();
        let verdict = &dump.communicators[0].verdict;
        assert_eq!((&*verdict.culprits, &*verdict.victims), (&[3][..], &[0, 1, 2][..]), "{verdict:#?}");
        assert!(verdict.evidence.iter().any(|sentence| sentence.contains("was not read")), "{verdict:#?}");
    });
}

/// The hosts of a job dump their own ranks; the verdict is over all.
#[test]
fn dumps_of_several_hosts_are_judged_together() {
    for_each_version(&["--mode", "processes", "--absent", "0@2", "--iters", "4"], |job, _| {
        job.stuck();
        let mut files = Vec::new();
        for (index, pids) in job.bed.ready.pids.chunks(2).enumerate() {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            let dump = Dump::take(&job.ncclflow, &pids.join(","), &[]).unwrap();
            let path = job.folder.path().join(format!("{index}.json"));
            fs::write(&path, dump.text).unwrap();
            files.push(path.display().to_string());
        }
        let dump = Dump::take(&job.ncclflow, "", &["--merge", &files[0], &files[1]]).unwrap();
        check_stuck(&dump, 0, "rank 0 has not joined");
    });
}

#[test]
fn a_busy_job_is_never_called_stuck_and_computes_what_it_should() {
    let arguments = [
        "--mode",
        "processes",
        "--iters",
        "1000000",
        "--bytes",
        "262144",
        "--ops",
        "allreduce,allgather,reducescatter,sendrecv",
    ];
    for version in VERSIONS {
        let Some(job) = Job::start(version, &arguments) else { continue };
        for number in 0..=BUSY_DUMPS / VERSIONS.len() {
            let dump = job.dump(&["--interval", "0.25"]);
            let verdict = &only(&dump).verdict;
            assert_ne!(verdict.state, "stuck", "{version}, dump {number}: {verdict:#?}\n{}", dump.text);
        }
    }
}

#[test]
fn a_job_that_is_dumped_all_the_time_ends_with_the_right_data() {
    for version in VERSIONS {
        let arguments = ["--iters", "300", "--bytes", "65536", "--ops", "allreduce,allgather"];
        let Some(mut job) = Job::start(version, &arguments) else { continue };
        let mut dumps = 0;
        while job.bed.is_running() && dumps < BUSY_DUMPS {
            match Dump::take(&job.ncclflow, &job.bed.pid_list(), &["--interval", "0.25"]) {
                Ok(dump) => {
                    for communicator in &dump.communicators {
                        assert_ne!(communicator.verdict.state, "stuck", "{version}: {}", dump.text);
                    }
                    dumps += 1;
                }
                // It ended before or while it was read, and that is said.
                Err(error) => assert!(!job.bed.is_running(), "{error:#}"),
            }
        }
        let (status, summary) = job.bed.finish().unwrap();
        assert!(status.success() && summary.ok && summary.checked_elements > 0, "{version}: {summary:?}");
        assert!(dumps > 0, "{version}");
    }
}

#[test]
fn a_job_that_has_nothing_to_do_waits_elsewhere() {
    let (Some(ncclflow), Some(bed), Some(library)) =
        (programs::ncclflow(), programs::bed(), programs::nccl("2.27.5-cu12"))
    else {
        return;
    };
    if !need::root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bed = Bed::start(&bed, &library, folder.path(), &["--ranks", "4", "--channels", "2"]).unwrap();
    let dump = Dump::take(&ncclflow, &bed.pid_list(), &[]).unwrap();
    let verdict = &only(&dump).verdict;
    assert_eq!((verdict.state.as_str(), dump.code), ("healthy", Some(0)), "{verdict:#?}");
    assert!(verdict.evidence[0].contains("the job waits elsewhere"), "{verdict:#?}");
    // A process that has no NCCL, and one that is not there, are told from one that hangs.
    assert!(Dump::take(&ncclflow, &std::process::id().to_string(), &[]).unwrap().code == Some(1));
    let missing = Dump::take(&ncclflow, &u32::MAX.to_string(), &[]).unwrap_err().to_string();
    assert!(missing.contains("there is no process"), "{missing}");
}
