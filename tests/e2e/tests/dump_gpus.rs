//! `ncclflow dump` on kinds of hangs, and of waits that are none, of ranks on one node without proxies and over
//! sockets. An NVML double tells what the emulated GPUs do.
//!
//! The kinds are those of `harness::hangs`, which `cargo xtask verify hangs` makes often and counts. Here each that concerns what
//! GPUs and processes tell is made once, on one library, and over them all libraries run; `NCCLFLOW_LONG=1` makes each on all.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::{
    harness::{
        dumper::{Dump, DumpedCommunicator, Verdict},
        hangs::{Expected, Outcome, Trial, judge, kind},
        job::{COMES_TO_REST, VERSIONS},
        prelude::*,
    },
    truth::call_log,
};

/// Ranks reach their hang within this, on a slow machine.
const SETTLE: Duration = Duration::from_secs(300);

/// Dumps until the verdict is the one that is expected. Until then it may be none, but no other culprit may be named: only
/// once, as a rank can stand for a moment on its way to the hang.
#[track_caller]
fn until_right(trial: &Trial, expected: Expected, says: &str) -> Dump {
    let deadline = Instant::now() + SETTLE;
    let mut was_wrong = false;
    loop {
        let dump = trial.dump(&["--interval", "0.4"]).unwrap();
        let outcome = judge(expected, &dump);
        if outcome == Outcome::WrongCulprit && !was_wrong {
            was_wrong = true;
            thread::sleep(COMES_TO_REST);
            continue;
        }
        let said =
            || format!("{outcome:?}, expected {expected:?}, `{says}`: {}\n{:#?}", dump.text, verdicts(&dump));
        assert_ne!(outcome, Outcome::WrongCulprit, "{}", said());
        if outcome == Outcome::Right && dump.text.contains(says) {
            return dump;
        }
        assert!(Instant::now() < deadline, "{}", said());
        thread::sleep(Duration::from_millis(200));
    }
}

fn verdicts(dump: &Dump) -> Vec<&Verdict> {
    dump.communicators.iter().map(|communicator| &communicator.verdict).collect()
}

/// Makes these kinds, each on another library or on all, and looks at what is said of them.
#[track_caller]
fn check_and(first: usize, names: &[&str], also: impl Fn(&Trial, &Dump)) {
    for (number, name) in names.iter().enumerate() {
        let kind = kind(name).unwrap();
        let mut libraries: Vec<&str> = VERSIONS.into_iter().filter(|version| kind.is_for(version)).collect();
        let by = (first + number) % libraries.len();
        libraries.rotate_left(by);
        for version in libraries.into_iter().take(if is_long() { VERSIONS.len() } else { 1 }) {
            println!("{name}, {version}");
            let Some(trial) = Trial::start(kind, version).unwrap() else { return };
            if kind.expected == Expected::Healthy {
                trial.settle().unwrap();
            }
            let dump = until_right(&trial, kind.expected, kind.says);
            also(&trial, &dump);
        }
    }
}

#[track_caller]
fn check(first: usize, names: &[&str]) {
    check_and(first, names, |_, _| ());
}

#[track_caller]
fn said(dump: &Dump, words: &str) {
    assert!(dump.text.contains(words), "no `{words}`: {}", dump.text);
}

#[test]
fn a_rank_that_stays_away_and_sleeps_is_stuck() {
    check(0, &["absent", "absent-sockets"]);
}

#[test]
fn a_rank_that_computes_or_writes_a_checkpoint_is_waited_for_and_nobody_is_stuck() {
    check(2, &["cpu", "cpu-sockets"]);
    check(3, &["checkpoint", "checkpoint-sockets"]);
}

#[test]
fn another_collective_is_told_by_the_counters() {
    check(1, &["other-collective"]);
}

#[test]
fn a_gpu_that_runs_another_kernel_is_waited_for() {
    check(0, &["gpu-computes", "gpu-computes-sockets"]);
}

#[test]
fn a_kernel_that_does_not_begin_is_told_from_one_that_waits() {
    check(2, &["kernel-held"]);
}

#[test]
fn an_op_in_the_proxy_of_another_rank_is_of_the_rank_whose_gpu_it_waits_for() {
    check(2, &["kernel-held-behind-another", "kernel-held-of-another"]);
    check(4, &["kernel-held-behind-another"]);
}

#[test]
fn a_process_that_is_gone_is_named_whether_it_was_given_or_not() {
    check(0, &["gone", "gone-given", "gone-sockets"]);
}

/// Children that were forked hold a copy of all memory, and none of NCCL's threads.
#[test]
fn children_that_outlive_a_rank_are_not_the_rank() {
    check_and(1, &["left-over", "left-over-sockets"], |_, dump| {
        for communicator in &dump.communicators {
            let numbers: Vec<u64> = communicator.ranks.iter().map(|rank| number(&rank["rank"])).collect();
            assert_eq!(numbers, [0, 1, 3], "{}", dump.text);
        }
    });
}

#[test]
fn a_rank_that_has_left_is_named_with_its_process() {
    check_and(2, &["left"], |trial, dump| {
        said(
            dump,
            &format!("rank 2 is process {}, which has no such communicator", trial.job.bed.ready.pids[2]),
        );
    });
}

#[test]
fn a_process_that_its_cgroup_holds_is_named_with_what_holds_it() {
    check(0, &["frozen", "frozen-sockets"]);
    check(2, &["starved", "starved-sockets"]);
}

#[test]
fn a_first_thread_that_sleeps_for_ever_or_has_ended_and_an_open_group_are_named() {
    check(3, &["uninterruptible", "uninterruptible-sockets"]);
    check(2, &["open-group", "open-group-sockets"]);
    check(1, &["first-thread-ended", "first-thread-ended-sockets"]);
}

#[test]
fn a_kernel_of_the_programs_own_is_told_from_nccls_where_the_driver_has_gpm() {
    check(0, &["gpu-spins", "gpu-spins-two-communicators"]);
}

#[test]
fn a_split_that_one_rank_does_not_make_is_its_fault() {
    check(3, &["split", "split-sockets"]);
    check(0, &["destroy-without-one"]);
}

#[test]
fn a_rank_that_is_there_and_was_not_given_is_no_culprit() {
    check_and(3, &["not-given"], |trial, dump| {
        said(dump, &format!("rank 2 is process {}, which was not read", trial.job.bed.ready.pids[2]));
    });
}

#[test]
fn a_receive_without_a_send_names_the_rank_that_should_send() {
    check(1, &["receive", "receive-sockets"]);
}

#[test]
fn jobs_that_have_ended_or_not_begun_are_healthy() {
    check(0, &["ended", "ended-sockets", "not-begun"]);
}

#[test]
fn a_communicator_that_is_idle_is_healthy_beside_one_that_is_stuck() {
    check_and(1, &["idle-communicator"], |_, dump| {
        let states: Vec<&str> =
            dump.communicators.iter().map(|one: &DumpedCommunicator| one.verdict.state.as_str()).collect();
        assert_eq!((states.len(), states.iter().filter(|state| **state == "healthy").count()), (2, 1));
        assert!(dump.job.sentence.starts_with("stuck: communicator "), "{}", dump.job.sentence);
    });
}

#[test]
fn communicators_in_opposite_order_wait_for_each_other() {
    check_and(0, &["order"], |_, dump| {
        assert!(dump.job.sentence.contains("in a circle"), "{}", dump.job.sentence);
        assert_eq!(dump.job.state, "stuck");
    });
}

#[test]
fn a_stopped_process_is_named() {
    check(2, &["stopped", "stopped-sockets"]);
}

#[test]
fn a_rank_with_another_size_is_named_over_shared_memory() {
    check(3, &["size-shared"]);
}

#[test]
fn where_all_gpus_wait_alike_nobody_is_named() {
    check(0, &["stall"]);
}

#[test]
fn a_busy_job_is_never_stuck() {
    let dumps = if is_long() { 100 } else { 10 };
    check_and(1, &["busy"], |trial, _| {
        for _ in 0..dumps {
            let from_ns = call_log::now_ns();
            let dump = trial.dump(&["--interval", "0.4"]).unwrap();
            let is_healthy = dump.communicators[0].verdict.state == "healthy";
            assert!(is_healthy || trial.job.stood(&dump, from_ns), "{}", dump.text);
        }
    });
}

#[test]
fn without_the_drivers_word_nothing_is_guessed_and_nobody_waits_for_it() {
    let kind = kind("gpu-computes").unwrap();
    let Some(mut trial) = Trial::start(kind, VERSIONS[1]).unwrap() else { return };
    until_right(&trial, kind.expected, "");
    let library = trial.variables.remove(0);
    trial.variables.push((library.0.clone(), "/nowhere/libnvidia-ml.so.1".to_owned()));
    until_right(&trial, Expected::CannotTell, "NVML cannot be used");
    // A driver that never answers.
    trial.variables.pop();
    trial.variables.push(library);
    trial.variables.push(("NVML_DOUBLE_HANGS".to_owned(), "1".to_owned()));
    let began = Instant::now();
    let dump = trial.dump(&["--interval", "0.4"]).unwrap();
    // Nobody waits for the driver; for the kernel's first performance event a dump waits 10 s.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!(dump.communicators[0].verdict.state, "unknown", "{}", dump.text);
    said(&dump, "did not answer in time");
}

/// 200 GiB, which a search would look through page by page: nothing of it is read.
#[test]
fn the_list_that_nccl_keeps_names_the_communicators_that_the_search_finds() {
    check_and(3, &["listed"], |trial, dump| {
        let hashes: Vec<String> = dump.communicators.iter().map(|one| one.comm_hash.clone()).collect();
        // The bed says what there is.
        assert_eq!(hashes.len(), 3, "{hashes:?}");
        assert!(hashes.contains(&format!("0x{}", trial.job.bed.ready.comm_hash)), "{hashes:?}");
        assert!(dump.communicators.iter().all(|one| one.ranks.len() == 4), "{}", dump.text);
        let json: serde_json::Value = serde_json::from_str(&dump.text).unwrap();
        for process in json["processes"].as_array().unwrap() {
            let scan = &process["scan"];
            assert_eq!((&scan["endedBy"], &scan["scannedBytes"]), (&"listed".into(), &0.into()), "{scan}");
            assert!(scan["mappedBytes"].as_u64().unwrap() > 200 << 30, "{scan}");
        }
    });
}
