//! Who held back the jobs of `tests/traces/slow`: real ones, whose faults are known.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use analysis::{
    check::check,
    slow::{Kind, Slow},
};

fn verdict(job: &str) -> Slow {
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
