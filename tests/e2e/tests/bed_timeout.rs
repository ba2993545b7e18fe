//! The bed itself: a job that goes on when its time is up ends with a sentence, and not with a signal.

use ncclflow_e2e::harness::prelude::*;

#[test]
fn a_job_whose_time_is_up_ends_with_a_sentence() {
    for mode in ["threads", "processes"] {
        // The communicators must be up within that time, too.
        let workload = format!("--ranks 2 --mode {mode} --iters 100000000 --timeout 10");
        let Some(mut world) = World::start("2.27.5-cu12", &workload) else { return };
        world.bed.go().unwrap();
        let (status, summary) = world.bed.finish().unwrap();
        assert_eq!(status.code(), Some(4), "{mode}: {status}");
        assert!(!summary.ok, "{mode}");
    }
}
