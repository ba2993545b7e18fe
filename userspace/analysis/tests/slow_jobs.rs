//! Who held back the jobs of `tests/traces/slow`: real ones, whose faults are known.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, LazyLock, Mutex, OnceLock},
};

use analysis::{
    check::{check, check_jobs},
    slow::{IterationParts, Kind, Slow},
};

/// Verdicts of which several tests look at something.
static VERDICTS: LazyLock<Mutex<BTreeMap<String, Arc<OnceLock<Slow>>>>> = LazyLock::new(Mutex::default);

fn verdict(job: &str) -> Slow {
    let known = Arc::clone(VERDICTS.lock().unwrap().entry(job.to_owned()).or_default());
    known.get_or_init(|| checked(job)).clone()
}

fn checked(job: &str) -> Slow {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/slow").join(job);
    let report = check(&[folder], &mut |_, _| ()).unwrap();
    let slow = report.slow.unwrap();
    assert!(report.slow_jobs.is_empty(), "{job} is one job");
    assert_eq!(report.consistent, slow.faults().next().is_none(), "{job}");
    slow
}

/// Asserts that `value` is the true one, but for a third of it.
fn about(value: Option<f64>, truth: f64) {
    let value = value.unwrap();
    assert!((value - truth).abs() <= truth / 3.0, "{value} for {truth}");
}

/// Nothing was put into these. `async`: hosts launch ahead, and never wait for their GPUs.
#[test]
fn nobody_is_accused_in_healthy_jobs() {
    for (job, iteration_ms) in [("none", 7.472), ("async", 7.416), ("tppp", 3.984)] {
        let slow = verdict(job);
        assert_eq!((slow.first.kind, &slow.others[..]), (Kind::Nobody, &[][..]), "{job}: {slow:?}");
        let measured = slow.iteration_ms.unwrap();
        assert!((measured - iteration_ms).abs() < iteration_ms / 100.0, "{job}: {measured}");
        assert!(slow.not_seen.is_empty(), "{:?}", slow.not_seen);
    }
}

/// Rank 2 multiplies larger matrices: an iteration takes 0.66 ms longer than in `none` and `async`.
#[test]
fn a_gpu_that_computes_longer_is_named_also_where_hosts_launch_ahead() {
    for job in ["mm10", "mm10async"] {
        let slow = verdict(job);
        assert_eq!((slow.first.kind, &slow.first.ranks[..]), (Kind::Gpu, &[2][..]), "{job}: {slow:?}");
        assert!(slow.others.is_empty(), "{:?}", slow.others);
        about(slow.first.cost_ms, 0.66);
    }
}

/// Rank 2 sleeps 1 ms in each iteration.
#[test]
fn a_host_that_launches_late_is_named() {
    let slow = verdict("host");
    assert_eq!((slow.first.kind, &slow.first.ranks[..]), (Kind::Host, &[2][..]), "{slow:?}");
    assert!(slow.others.is_empty(), "{:?}", slow.others);
    about(slow.first.cost_ms, 1.0);
}

/// Rank 1 sleeps 20 ms in every tenth iteration.
#[test]
fn the_rhythm_of_a_host_that_pauses_is_told() {
    let slow = verdict("gc");
    assert_eq!((slow.first.kind, &slow.first.ranks[..]), (Kind::Host, &[1][..]), "{slow:?}");
    assert_eq!(slow.first.every_iterations, Some(10));
    about(slow.first.cost_ms, 2.0);
}

/// Stage 2 (ranks 2, 3) does a quarter more: an iteration takes 0.786 ms longer than in `tppp`.
#[test]
fn the_stage_that_does_most_is_told_and_is_no_fault() {
    let slow = verdict("tppp_stage");
    assert_eq!((slow.first.kind, &slow.first.ranks[..]), (Kind::Stage, &[2, 3][..]), "{slow:?}");
    assert_eq!(slow.faults().count(), 0);
    about(slow.first.cost_ms, 0.786);
}

/// A part of an iteration of each rank, in milliseconds.
fn part(slow: &Slow, of: fn(&IterationParts) -> Option<f64>) -> Vec<f64> {
    slow.iteration_parts.iter().map(|parts| of(parts).unwrap()).collect()
}

/// What a rank costs is what it computes longer, or what it is late, and the others wait for it meanwhile.
#[test]
fn parts_of_an_iteration_show_the_fault_at_its_rank() {
    let computing = |parts: &IterationParts| parts.computing_ms;
    let late = |parts: &IterationParts| parts.late_ms;
    let waiting = |parts: &IterationParts| parts.waiting_ms;
    for job in ["none", "async", "tppp"] {
        let slow = verdict(job);
        assert_eq!((part(&slow, late), part(&slow, waiting)), (vec![0.0; 4], vec![0.0; 4]), "{job}");
    }
    for job in ["mm10", "mm10async"] {
        let slow = verdict(job);
        let (computes, waits) = (part(&slow, computing), part(&slow, waiting));
        assert_eq!((waits[2], part(&slow, late)), (0.0, vec![0.0; 4]), "{job}");
        for rank in [0, 1, 3] {
            about(Some(computes[2] - computes[rank]), 0.66);
            about(Some(waits[rank]), 0.66);
        }
    }
    for (job, rank, ms) in [("host", 2, 1.0), ("gc", 1, 2.0)] {
        let slow = verdict(job);
        let late = part(&slow, late);
        about(Some(late[rank]), ms);
        let mut others = late.iter().enumerate().filter(|(other, _)| *other != rank);
        assert!(others.all(|(_, ms)| *ms <= 0.0), "{job}: {late:?}");
        assert!(part(&slow, waiting)[rank] <= 0.0, "{job}: the others wait for it");
    }
    let waits = part(&verdict("tppp_stage"), waiting);
    assert_eq!(waits[2..], [0.0; 2]);
    waits[..2].iter().for_each(|ms| about(Some(*ms), 0.786));
}

/// Each rank's program noted how long its iterations took, in the mean.
#[test]
fn parts_make_up_an_iteration() {
    for (job, ms) in [("none", 7.472), ("mm10", 8.130), ("host", 8.036), ("gc", 8.959), ("tppp_stage", 4.770)]
    {
        for parts in verdict(job).iteration_parts {
            let seen = [parts.computing_ms, parts.late_ms, parts.idle_ms, parts.waiting_ms, parts.network_ms];
            let all = seen.iter().flatten().sum::<f64>() + parts.not_measured_ms;
            assert!((all - ms).abs() < ms / 50.0, "{job}: {all} for {ms}");
            assert_eq!(parts.network_ms, None, "{job}: nothing goes over the network");
        }
    }
}

/// Two jobs: each has a verdict, and one can be chosen by its name.
#[test]
fn each_of_two_jobs_has_a_verdict() {
    let folder = |job: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/slow").join(job);
    let folders = [folder("none"), folder("gc")];
    let report = check(&folders, &mut |_, _| ()).unwrap();
    let found: Vec<bool> = report.jobs.iter().map(|job| job.consistent).collect();
    assert_eq!(report.jobs.len(), 2, "{:?}", report.jobs);
    assert!(found.contains(&true) && found.contains(&false), "{:?}", report.jobs);
    let bad = report.jobs.iter().find(|job| !job.consistent).unwrap();
    assert!(bad.verdict.contains("wait for rank 1 "), "{}", bad.verdict);
    let name = bad.job.clone().unwrap();
    assert_eq!(report.slow.as_ref().unwrap().job, bad.job, "the worse one");
    for job in report.jobs.iter().map(|job| job.job.clone().unwrap()) {
        let alone = check_jobs(&folders, std::slice::from_ref(&job), &mut |_, _| ()).unwrap();
        assert_eq!(alone.consistent, job != name);
        let communicators: Vec<_> = alone.communicators.iter().map(|check| check.job.as_deref()).collect();
        assert_eq!(communicators, [Some(&*job)]);
    }
    let problem = check_jobs(&folders, &["nosuch".to_owned()], &mut |_, _| ()).unwrap_err().to_string();
    assert!(problem.contains("nosuch") && problem.contains(&name), "{problem}");
}
