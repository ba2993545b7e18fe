//! `record --on-hang`: a job that stands still is dumped, and not again and again.

use ncclflow_e2e::harness::prelude::*;

/// A rank that does not join: one dump says so, and a job that is not recorded any more is not dumped again
/// and again.
#[test]
fn a_job_that_hangs_is_dumped_once() {
    let workload = "--mode processes --absent 1@3 --iters 6 --timeout 300";
    let Some(world) = World::start("2.27.5-cu12", workload) else { return };
    let recorder = world.record("--on-hang 2");
    world.bed.go().unwrap();
    // In the order of their time, which their names have. There can be others before the one of the hang: who is
    // kept from running for two seconds before it, job or test, is not at work either.
    let verdicts = || {
        let mut dumps: Vec<_> =
            fs::read_dir(world.out()).unwrap().flatten().map(|file| file.path()).collect();
        dumps.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("dump_"));
        dumps.sort();
        let verdict = |path: &PathBuf| read_json(path)["communicators"][0]["verdict"].clone();
        dumps.iter().map(verdict).collect::<Vec<_>>()
    };
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
