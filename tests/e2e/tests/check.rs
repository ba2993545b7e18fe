//! `ncclflow check`: it finds nothing where nothing is wrong, and names what is.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::{
    prelude::*,
    traced_run::{Plugin, TracedRun},
};
use test_support::Heartbeat;

const CONSISTENT: i32 = 0;
const FINDINGS: i32 = 3;

/// So many jobs are judged at most until one is judged right. Each that is not needs its excuse: that the machine stood.
const ATTEMPTS: usize = 3;
/// For so long at least, all in all: then it has kept other ranks from running, too, which a test cannot tell from a stall.
const STOOD: Duration = Duration::from_secs(1);

/// Longest time that a job is made to stand.
const LONGEST: Duration = Duration::from_mins(1);

/// The exit code and the report on a folder. A finding, of whatever kind, has the exit code that says so.
fn check(dir: &Path) -> (i32, Value) {
    let ran = ncclflow_of("check --json", &[dir]);
    let (code, report) = (ran.code().unwrap(), ran.json());
    assert_eq!(code, if report["consistent"] == true { CONSISTENT } else { FINDINGS }, "{report:#}");
    (code, report)
}

fn kinds(report: &Value) -> Vec<&str> {
    let communicators = list(&report["communicators"]).iter();
    communicators
        .flat_map(|communicator| list(&communicator["findings"]))
        .map(|finding| text(&finding["kind"]))
        .collect()
}

/// All operations, two communicators, groups: nothing is wrong.
#[test]
fn a_sound_job_is_consistent() {
    for version in ["2.21.5-cu12", "2.32.3-cu12"] {
        let workload = "--ranks 4 --mode processes --ops allreduce,allgather,broadcast,sendrecv,alltoall \
             --bytes 65536 --iters 3 --comms 2 --group 2";
        let Some(run) = TracedRun::new("--level steps", version, Plugin::No, workload) else { return };
        let (_, report) = check(&run.out());
        assert_eq!(list(&report["communicators"]).len(), 2);
        for communicator in list(&report["communicators"]) {
            assert_eq!(list(&communicator["ranks"]).len(), 4);
            let measured = communicator["measured"].as_object().unwrap();
            assert!(
                measured.keys().all(|outcome| outcome == "as_planned") && !measured.is_empty(),
                "{measured:?}"
            );
            assert!(list(&communicator["findings"]).is_empty(), "{communicator:#}");
        }
    }
}

/// A recording of a job on two GPUs of their own, of which nothing stood still (`tests/traces`): nobody is slow, and what
/// was under way at its end is no finding.
#[test]
fn nobody_is_slow_where_nothing_stood_still() {
    let Some(_ncclflow) = programs::ncclflow() else { return };
    let folder = tempfile::tempdir().unwrap();
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces/net_steps");
    fs::create_dir(folder.path().join("recording")).unwrap();
    fs::copy(traces.join("000001.nfr"), folder.path().join("recording/000001.nfr")).unwrap();
    let (code, report) = check(folder.path());
    assert_eq!((code, &report["slow"]["kind"]), (0, &json!("nobody")), "{report:#}");
    for communicator in list(&report["communicators"]) {
        let verdict = &communicator["verdict"];
        assert!(number(&verdict["messages"]) > 100 && verdict["messagesNotJudged"] == 0, "{verdict:#}");
    }
}
/// Without times nothing can be slow, so that the machine's load has no part in the exit code.
#[test]
fn a_sound_job_without_times_ends_with_0() {
    let workload = "--ranks 2 --mode processes --ops allreduce,sendrecv --iters 3";
    let Some(run) = TracedRun::new("--level flow", "2.27.5-cu12", Plugin::No, workload) else { return };
    let (_, report) = check(&run.out());
    assert_eq!(kinds(&report), [""; 0], "{report:#}");
    assert_eq!(list(&report["communicators"][0]["ranks"]).len(), 2, "{report:#}");
}

/// Records a job of four ranks, which logs its calls, until `meanwhile` is done.
fn watched(
    version: &str,
    options: &str,
    workload: &str,
    meanwhile: impl FnOnce(&mut World),
) -> Option<(i32, Value)> {
    let workload = format!("--ranks 4 --mode processes --channels 2 {CALL_LOG} {workload}");
    let mut world = World::start(version, &workload)?;
    world.record_while(options, meanwhile);
    Some(check(&world.out()))
}

/// Judges jobs until `is_right` with the exit code and the report. `watch` gives none if the machine lacks something.
fn expect(what: &str, watch: impl Fn() -> Option<(i32, Value)>, is_right: impl Fn(i32, &Value) -> bool) {
    for attempt in 1..=ATTEMPTS {
        let heartbeat = Heartbeat::start();
        let Some((code, report)) = watch() else { return };
        let late = heartbeat.late();
        if is_right(code, &report) {
            return;
        }
        let excused = late >= STOOD && attempt < ATTEMPTS;
        assert!(excused, "{what}: the machine stood for {late:?}: {code} {report:#}");
    }
}

/// A rank whose GPU stands still is named, whether it goes on or not.
fn names_the_stalled_rank(algo: &str, goes_on: bool) {
    let versions = [("2.21.5-cu12", 2), ("2.32.3-cu12", 3), ("2.27.5-cu12", 2), ("2.28.9-cu13", 1)];
    for (version, stalled) in versions.into_iter().take(if goes_on { 4 } else { 2 }) {
        let workload =
            format!("--algo {algo} --bytes 262144 --iters 4000 --sync --stall {stalled}={{}}/stall");
        let meanwhile = |world: &mut World| {
            // Some operations first; then a stall that is long against all of them.
            let begun = Instant::now();
            world.wait_for_calls(10);
            world.touch("stall");
            thread::sleep((begun.elapsed() * 5).clamp(Duration::from_millis(3500), LONGEST));
            if goes_on {
                fs::remove_file(world.path("stall")).unwrap();
                world.wait_for_calls(10);
            }
        };
        let watch = || watched(version, "--level steps", &workload, meanwhile);
        expect(&format!("{version} {algo}"), watch, |code, report| {
            let slow = &report["slow"];
            (code, &slow["kind"], &slow["ranks"]) == (FINDINGS, &json!("gpu"), &json!([stalled]))
        });
    }
}

#[test]
fn a_stalled_rank_of_a_ring_is_named() {
    names_the_stalled_rank("ring", true);
}

#[test]
fn a_stalled_rank_of_a_ring_that_hangs_is_named() {
    names_the_stalled_rank("ring", false);
}

#[test]
fn a_stalled_rank_of_a_tree_is_named() {
    names_the_stalled_rank("tree", true);
}

#[test]
fn a_stalled_rank_of_a_tree_that_hangs_is_named() {
    names_the_stalled_rank("tree", false);
}

/// A rank that does not come: the others wait for it.
#[test]
fn a_rank_that_has_not_joined_is_named() {
    for version in ["2.21.5-cu12", "2.32.3-cu12"] {
        let meanwhile = |world: &mut World| {
            let pids = world.bed.ready.pids.iter().copied();
            let (counts, begun) = (pids.zip([5, 4, 5, 5]), Instant::now());
            let counts: Vec<_> = counts.collect();
            progress::wait_for_calls_of("ncclAllReduce", &world.path("calls"), &counts);
            // A rank that was watched for a second longer has not joined. It is late where others have waited for it ten
            // times as long as it was at work.
            thread::sleep((begun.elapsed() * 15).clamp(Duration::from_secs(2), LONGEST));
        };
        let workload = "--bytes 65536 --iters 8 --sync --absent 1@4";
        let watch = || watched(version, "--level steps", workload, meanwhile);
        expect(version, watch, |code, report| {
            let communicator = &report["communicators"][0];
            let missing: Vec<_> = list(&communicator["findings"])
                .iter()
                .filter(|finding| finding["kind"] == "missing_join")
                .map(|finding| (&finding["ranks"], &finding["seq"]))
                .collect();
            let slow = &report["slow"];
            code == FINDINGS
                && missing == [(&json!([1]), &json!(8))]
                && (&slow["kind"], &slow["ranks"]) == (&json!("host"), &json!([1]))
        });
    }
}

/// Another size of one operation on one rank; two operations in the other order: these, and nothing else. The number of
/// a collective is twice NCCL's count.
#[test]
fn what_differs_between_ranks_is_named() {
    for (workload, kind, seqs) in [
        ("--ops allreduce --size-of 2=32768@3", "collective_mismatch", &[6][..]),
        ("--ops allreduce,allgather --swap 2@2", "order_mismatch", &[4, 6]),
    ] {
        let workload = format!("--bytes 65536 --iters 6 --sync {workload}");
        // In all, each rank sends and receives as many messages as without it, and so the job ends.
        let watched = watched("2.27.5-cu12", "", &workload, |world| world.bed.end());
        let Some((code, report)) = watched else { return };
        let findings = list(&report["communicators"][0]["findings"]).iter();
        let found = findings.map(|finding| json!([finding["kind"], finding["ranks"], finding["seq"]]));
        let expected = seqs.iter().map(|seq| json!([kind, [2], seq]));
        assert!(code == FINDINGS && found.eq(expected), "{report:#}");
    }
}

/// What is no recording is an error.
#[test]
fn a_folder_without_a_recording_is_an_error() {
    let Some(ncclflow) = programs::ncclflow() else { return };
    let empty = tempfile::tempdir().unwrap();
    let output = Command::new(ncclflow).arg("check").arg(empty.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("has no recording") && said.contains("`recording/`"), "{said}");
}
