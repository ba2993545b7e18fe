//! `ncclflow dump` on kinds of hangs, and of waits that are none, of ranks on one node without proxies and over
//! sockets. An NVML double tells what the emulated GPUs do.
//!
//! Each kind runs on one library, and over them all libraries run; `NCCLFLOW_LONG=1` runs each kind on all.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs::File,
    thread,
    time::{Duration, Instant},
};

use ncclflow_e2e::harness::{
    dumper::{Dump, DumpedCommunicator},
    job::{Job, Shape, VERSIONS},
    programs,
};
use rustix::process::Signal;
use test_support::is_long;

/// Ranks reach their hang within this, on a slow machine.
const SETTLE: Duration = Duration::from_secs(40);
const ONE_NODE: [&str; 4] = ["--env", "NCCL_SHM_DISABLE=0", "--gpu-states", "{}/gpus"];
const SOCKETS: [&str; 2] = ["--gpu-states", "{}/gpus"];
const RANKS: Shape = Shape { ranks: 4, processes: true, tree: false };

/// What a dump is expected to say of the communicator that is wrong, or of all if none is.
#[derive(Clone, Debug)]
struct Expected {
    state: &'static str,
    kind: Option<&'static str>,
    culprits: Vec<u32>,
    code: i32,
}

fn stuck(kind: &'static str, culprits: &[u32]) -> Expected {
    Expected { state: "stuck", kind: Some(kind), culprits: culprits.to_vec(), code: 3 }
}

fn waiting(kind: &'static str, culprits: &[u32]) -> Expected {
    Expected { state: "waiting", kind: Some(kind), culprits: culprits.to_vec(), code: 5 }
}

fn healthy() -> Expected {
    Expected { state: "healthy", kind: None, culprits: Vec::new(), code: 0 }
}

fn unknown() -> Expected {
    Expected { state: "unknown", kind: None, culprits: Vec::new(), code: 4 }
}

struct Watched {
    job: Job,
    variables: Vec<(String, String)>,
}

impl Watched {
    fn start(version: &str, shape: Shape, arguments: &[&[&str]]) -> Option<Self> {
        let double = programs::nvml_double()?;
        let job = Job::start(version, shape, &arguments.concat()).unwrap()?;
        let states = job.folder.path().join("gpus").display().to_string();
        let variables = vec![
            ("NCCLFLOW_NVML".to_owned(), double.display().to_string()),
            ("NVML_DOUBLE_STATES".to_owned(), states),
        ];
        Some(Self { job, variables })
    }

    fn dump_of(&self, ranks: &[usize]) -> Dump {
        let pids: Vec<String> = ranks.iter().map(|rank| self.job.bed.ready.pids[*rank].to_string()).collect();
        let variables: Vec<(&str, &str)> =
            self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Dump::take_with(&self.job.ncclflow, &pids.join(","), &["--interval", "0.4"], &variables).unwrap()
    }

    fn all(&self) -> Vec<usize> {
        (0..self.job.bed.ready.pids.len()).collect()
    }

    fn touch(&self, name: &str) {
        Job::work();
        File::create(self.job.folder.path().join(name)).unwrap();
    }

    /// Dumps until the verdict is the one that is expected. Until then it may be none, but no other culprit may
    /// be named.
    #[track_caller]
    fn expect_of(&self, ranks: &[usize], expected: &Expected) -> Dump {
        let deadline = Instant::now() + SETTLE;
        loop {
            let dump = self.dump_of(ranks);
            let verdicts = dump.communicators.iter().map(|communicator| &communicator.verdict);
            for verdict in verdicts.clone() {
                let is_named = verdict.state == "stuck" || verdict.state == "waiting";
                let is_right = verdict.state == expected.state || verdict.state == "waiting";
                assert!(
                    !is_named || (is_right && verdict.culprits == expected.culprits),
                    "expected {expected:?}: {verdict:#?}\n{}",
                    dump.text
                );
            }
            let mut verdicts = verdicts.filter(|verdict| verdict.state != "healthy").peekable();
            let is_it = |state: &str, kind: &Option<String>| {
                state == expected.state && kind.as_deref() == expected.kind
            };
            let fits = if expected.state == "healthy" {
                verdicts.peek().is_none()
            } else {
                verdicts.peek().is_some() && verdicts.all(|verdict| is_it(&verdict.state, &verdict.kind))
            };
            if fits {
                assert_eq!(dump.code, Some(expected.code), "{}", dump.text);
                return dump;
            }
            assert!(Instant::now() < deadline, "expected {expected:?}: {}", dump.text);
            thread::sleep(Duration::from_millis(200));
        }
    }

    #[track_caller]
    fn expect(&self, expected: &Expected) -> Dump {
        self.expect_of(&self.all(), expected)
    }
}

/// Runs a check on the library that is `number`th in turn, or on all.
fn on_libraries(number: usize, check: impl Fn(&str)) {
    for (index, version) in VERSIONS.into_iter().enumerate() {
        if is_long() || index == number % VERSIONS.len() {
            println!("{version}");
            check(version);
        }
    }
}

/// Those of which each function's launches are counted.
fn counts_functions(version: &str) -> bool {
    !version.starts_with("2.21")
}

#[track_caller]
fn said(dump: &Dump, words: &str) {
    assert!(dump.text.contains(words), "no `{words}`: {}", dump.text);
}

fn nodes() -> [&'static [&'static str]; 2] {
    [&ONE_NODE, &SOCKETS]
}

#[test]
fn a_rank_that_stays_away_and_sleeps_is_stuck() {
    for (number, node) in nodes().into_iter().enumerate() {
        on_libraries(number, |version| {
            let arguments = ["--absent", "2@3", "--iters", "6", "--sync"];
            let Some(job) = Watched::start(version, RANKS, &[node, &arguments]) else { return };
            said(&job.expect(&stuck("notJoined", &[2])), "rank 2 has not joined");
        });
    }
}

#[test]
fn a_rank_that_computes_instead_is_waited_for_and_nobody_is_stuck() {
    for (number, node) in nodes().into_iter().enumerate() {
        on_libraries(2 + number, |version| {
            let arguments = ["--busy", "1@4", "--iters", "8", "--sync"];
            let Some(job) = Watched::start(version, RANKS, &[node, &arguments]) else { return };
            let dump = job.expect(&waiting("notJoined", &[1]));
            said(&dump, "it ran on the CPU");
        });
    }
}

#[test]
fn a_rank_that_writes_a_checkpoint_is_waited_for_and_nobody_is_stuck() {
    for (number, node) in nodes().into_iter().enumerate() {
        on_libraries(3 + number, |version| {
            let arguments = ["--checkpoint", "3@4", "--iters", "8", "--sync"];
            let Some(job) = Watched::start(version, RANKS, &[node, &arguments]) else { return };
            job.expect(&waiting("notJoined", &[3]));
        });
    }
}

#[test]
fn another_collective_is_told_by_the_counters() {
    on_libraries(1, |version| {
        if !counts_functions(version) {
            return;
        }
        // Two collectives can fit each other by chance, and both end. Rank 2 does not begin its own.
        let held = tempfile::NamedTempFile::new().unwrap();
        let hold = format!("2={}", held.path().display());
        let arguments = ["--swap", "2@0", "--sync", "--ops", "allreduce,allgather", "--hold", &hold];
        let Some(job) = Watched::start(version, RANKS, &[&ONE_NODE, &arguments]) else { return };
        said(&job.expect(&stuck("otherOperation", &[2])), "the operations differ");
    });
}

#[test]
fn a_gpu_that_runs_another_kernel_is_waited_for() {
    // Over sockets the op stands in flight, and its GPU has its input.
    for (number, (node, kind)) in nodes().into_iter().zip(["computing", "noProgress"]).enumerate() {
        on_libraries(number, |version| {
            let arguments = ["--compute", "1={}/compute", "--iters", "1000000", "--sync"];
            let Some(job) = Watched::start(version, RANKS, &[node, &arguments]) else { return };
            job.touch("compute");
            job.expect(&waiting(kind, &[1]));
        });
    }
}

#[test]
fn a_kernel_that_does_not_begin_is_told_from_one_that_waits() {
    on_libraries(2, |version| {
        let arguments = ["--hold", "3={}/hold", "--iters", "1000000", "--sync"];
        let Some(job) = Watched::start(version, RANKS, &[&ONE_NODE, &arguments]) else { return };
        job.touch("hold");
        said(&job.expect(&stuck("gpuIdle", &[3])), "either its kernel has not begun");
    });
}

#[test]
fn a_process_that_is_gone_is_named_whether_it_was_given_or_not() {
    for (number, node) in nodes().into_iter().enumerate() {
        on_libraries(number, |version| {
            let arguments = ["--survive", "--iters", "1000000", "--sync"];
            let Some(job) = Watched::start(version, RANKS, &[node, &arguments]) else { return };
            Job::work();
            job.job.signal(2, Signal::KILL).unwrap();
            thread::sleep(Duration::from_millis(500));
            let kind = if number == 0 { "gone" } else { "failed" };
            let dump = job.dump_of(&[0, 1, 3]);
            if number == 1 && dump.text.contains("\"kind\": \"gone\"") {
                job.expect_of(&[0, 1, 3], &stuck("gone", &[2]));
                return;
            }
            job.expect_of(&[0, 1, 3], &stuck(kind, &[2]));
            if number == 0 {
                said(&job.expect(&stuck(kind, &[2])), "no live process of this host is rank 2");
            }
        });
    }
}

#[test]
fn a_rank_that_is_there_and_was_not_given_is_no_culprit() {
    on_libraries(3, |version| {
        let arguments = ["--hold", "0={}/hold", "--iters", "1000000", "--sync"];
        let Some(job) = Watched::start(version, RANKS, &[&ONE_NODE, &arguments]) else { return };
        job.touch("hold");
        let dump = job.expect_of(&[0, 1, 3], &unknown());
        said(&dump, &format!("rank 2 is process {}, which was not read", job.job.bed.ready.pids[2]));
    });
}

#[test]
fn a_receive_without_a_send_names_the_rank_that_should_send() {
    for (number, node) in nodes().into_iter().enumerate() {
        on_libraries(1 + number, |version| {
            let arguments = ["--absent", "1@0", "--ops", "sendrecv", "--comms", "2", "--iters", "4"];
            let Some(job) = Watched::start(version, RANKS, &[node, &arguments]) else { return };
            let dump = job.expect(&stuck("noCounterpart", &[1]));
            said(&dump, "rank 1 has no");
        });
    }
}

#[test]
fn jobs_that_have_ended_or_not_begun_are_healthy() {
    for (number, node) in nodes().into_iter().enumerate() {
        on_libraries(number, |version| {
            let arguments = ["--iters", "3", "--comms", "2", "--hold-file", "{}/held"];
            let Some(job) = Watched::start(version, RANKS, &[node, &arguments]) else { return };
            thread::sleep(Duration::from_secs(2));
            said(&job.expect(&healthy()), "the job waits elsewhere");
        });
    }
}

#[test]
fn a_communicator_that_is_idle_is_healthy_beside_one_that_is_stuck() {
    on_libraries(1, |version| {
        let arguments = ["--absent", "1@4", "--comms", "2", "--iters", "8", "--sync"];
        let Some(job) = Watched::start(version, RANKS, &[&ONE_NODE, &arguments]) else { return };
        let dump = job.expect(&stuck("notJoined", &[1]));
        let states: Vec<&str> =
            dump.communicators.iter().map(|one: &DumpedCommunicator| one.verdict.state.as_str()).collect();
        assert_eq!((states.len(), states.iter().filter(|state| **state == "healthy").count()), (2, 1));
        said(&dump, "in another communicator");
        assert!(dump.job.sentence.starts_with("stuck: communicator "), "{}", dump.job.sentence);
    });
}

#[test]
fn communicators_in_opposite_order_wait_for_each_other() {
    on_libraries(0, |version| {
        let arguments = ["--swap", "1@4", "--comms", "2", "--iters", "8", "--sync", "--survive"];
        let Some(job) = Watched::start(version, RANKS, &[&ONE_NODE, &arguments]) else { return };
        let deadline = Instant::now() + SETTLE;
        loop {
            let dump = job.dump_of(&job.all());
            if dump.job.sentence.contains("in a circle") {
                assert_eq!((dump.job.state.as_str(), dump.code), ("stuck", Some(3)));
                return;
            }
            assert!(Instant::now() < deadline, "{}", dump.text);
        }
    });
}

#[test]
fn a_stopped_process_is_named() {
    for (number, node) in nodes().into_iter().enumerate() {
        on_libraries(2 + number, |version| {
            let arguments = ["--iters", "1000000", "--sync"];
            let Some(job) = Watched::start(version, RANKS, &[node, &arguments]) else { return };
            Job::work();
            job.job.signal(3, Signal::STOP).unwrap();
            let deadline = Instant::now() + SETTLE;
            loop {
                let dump = job.dump_of(&job.all());
                let verdict = &dump.communicators[0].verdict;
                if verdict.state == "stuck" {
                    assert_eq!(verdict.culprits, [3], "{}", dump.text);
                    said(&dump, "is stopped: process");
                    break;
                }
                assert!(Instant::now() < deadline, "{}", dump.text);
            }
            job.job.signal(3, Signal::CONT).unwrap();
        });
    }
}

#[test]
fn a_busy_job_is_never_stuck() {
    let dumps = if is_long() { 100 } else { 10 };
    on_libraries(1, |version| {
        let arguments = ["--iters", "1000000", "--bytes", "4194304", "--sync"];
        let Some(job) = Watched::start(version, RANKS, &[&ONE_NODE, &arguments]) else { return };
        Job::work();
        for _ in 0..dumps {
            let dump = job.dump_of(&job.all());
            assert_eq!(dump.communicators[0].verdict.state, "healthy", "{}", dump.text);
        }
    });
}

#[test]
fn without_the_drivers_word_nothing_is_guessed_and_nobody_waits_for_it() {
    on_libraries(1, |version| {
        let arguments = ["--compute", "1={}/compute", "--iters", "1000000", "--sync"];
        let Some(mut job) = Watched::start(version, RANKS, &[&ONE_NODE, &arguments]) else { return };
        job.touch("compute");
        job.expect(&waiting("computing", &[1]));
        let library = job.variables.remove(0);
        job.variables.push((library.0.clone(), "/nowhere/libnvidia-ml.so.1".to_owned()));
        said(&job.expect(&unknown()), "NVML cannot be used");
        // A driver that never answers.
        job.variables.pop();
        job.variables.push(library);
        job.variables.push(("NVML_DOUBLE_HANGS".to_owned(), "1".to_owned()));
        let began = Instant::now();
        let dump = job.dump_of(&job.all());
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        assert_eq!(dump.communicators[0].verdict.state, "unknown", "{}", dump.text);
        said(&dump, "did not answer in time");
    });
}

#[test]
fn the_list_that_nccl_keeps_names_the_communicators_that_the_search_finds() {
    on_libraries(3, |version| {
        if version.starts_with("2.21") {
            return;
        }
        let arguments = ["--iters", "3", "--comms", "3", "--hold-file", "{}/held", "--ballast", "300"];
        let ras = ["--env", "NCCL_RAS_ENABLE=1"];
        let Some(job) = Watched::start(version, RANKS, &[&ONE_NODE, &arguments, &ras]) else { return };
        let dump = job.expect(&healthy());
        said(&dump, "\"endedBy\": \"listed\"");
        let hashes: Vec<String> = dump.communicators.iter().map(|one| one.comm_hash.clone()).collect();
        // The bed says what there is.
        assert_eq!(hashes.len(), 3, "{hashes:?}");
        assert!(hashes.contains(&format!("0x{}", job.job.bed.ready.comm_hash)), "{hashes:?}");
        assert!(dump.communicators.iter().all(|one| one.ranks.len() == 4), "{}", dump.text);
    });
}
