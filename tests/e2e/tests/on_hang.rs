//! `record --on-hang`: a job that stands still is dumped, and not again and again.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::{
    callers::{self, Caller, Reduce},
    prelude::*,
};

/// Verdicts of the dumps in a folder, in the order of their time, which their names have.
fn verdicts(out: &Path) -> Vec<Value> {
    let mut dumps: Vec<_> = fs::read_dir(out).unwrap().flatten().map(|file| file.path()).collect();
    dumps.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("dump_"));
    dumps.sort();
    dumps.iter().map(|path| read_json(path)["communicators"][0]["verdict"].clone()).collect()
}

/// A rank that does not join: one dump says so, and a job that is not recorded any more is not dumped again
/// and again.
#[test]
fn a_job_that_hangs_is_dumped_once() {
    let workload = "--mode processes --absent 1@3 --iters 6 --timeout 300";
    let Some(world) = World::start("2.27.5-cu12", workload) else { return };
    let recorder = world.record("--on-hang 2");
    world.bed.go().unwrap();
    // There can be others before the one of the hang: who is kept from running for two seconds before it, job or test, is not
    // at work either.
    let out = world.out();
    let verdicts = || verdicts(&out);
    let is_of_hang = |verdict: &&Value| verdict["state"] == "stuck";
    wait_until("a dump of the hang is there", Duration::from_mins(2), || {
        verdicts().iter().any(|verdict| is_of_hang(&verdict))
    });
    // Twice as long as it takes to be dumped, and no other dump may come.
    thread::sleep(Duration::from_secs(5));
    let said = recorder.interrupt().unwrap();
    assert_eq!(said.matches("nothing moved for 2 s: stuck").count(), 1, "{said}");
    let verdicts = verdicts();
    let [verdict] = verdicts.iter().filter(is_of_hang).collect::<Vec<_>>()[..] else {
        panic!("{verdicts:#?}")
    };
    assert_eq!(verdict["culprits"], json!([1]), "{verdict:#}");
    assert_eq!(verdicts.last(), Some(verdict), "none comes after it");
}

/// Under `--all` the calls of another user hide no hang.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_hang_is_dumped_while_another_tenant_calls_nccl_all_the_time() {
    let workload = "--mode processes --absent 1@3 --iters 6 --timeout 300";
    let Some(world) = World::start("2.27.5-cu12", workload) else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = callers::library(&folder.path().join("libnccl.so.2"), Reduce::Returns(1)).unwrap()
    else {
        return;
    };
    let program = callers::program(folder.path()).unwrap().unwrap();
    // Others than root must be able to read it.
    Command::new("chmod").args(["-R", "a+rX"]).arg(folder.path()).status().unwrap();
    let mut caller = Caller::start(&program, &library, 1_234_006, 1_000_000, 10_000).unwrap();
    let out = world.out();
    let recorder = Recorder::of_node(&out, "--level api --on-hang 2").unwrap();
    let pids = world.bed.ready.pids.clone();
    wait_until("all are traced", Duration::from_secs(30), || {
        let session = session_so_far(&out);
        are_traced(&session, &pids) && are_traced(&session, &[caller.pid()])
    });
    caller.go().unwrap();
    world.bed.go().unwrap();
    wait_until("a dump of the hang is there", Duration::from_mins(2), || {
        verdicts(&out).iter().any(|verdict| verdict["state"] == "stuck" && verdict["culprits"] == json!([1]))
    });
    recorder.interrupt().unwrap();
}
