//! `record --on-hang`: a job that stands still is dumped, and not again and again.

use std::{fs, thread, time::Duration};

use ncclflow_e2e::harness::{bed::Bed, programs, recorder::Recorder};
use rustix::process::Signal;
use serde_json::Value;
use test_support::{root, wait_until};

/// A rank that does not join: one dump says so, and a job that is not recorded any more is not dumped again
/// and again.
#[test]
fn a_job_that_hangs_is_dumped_once() {
    let (Some(ncclflow), Some(bed), true) = (programs::ncclflow(), programs::bed(), root()) else {
        return;
    };
    let Some(library) = programs::nccl("2.27.5-cu12") else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out");
    let arguments = ["--mode", "processes", "--absent", "1@3", "--iters", "6", "--timeout", "300"];
    let bed = Bed::start(&bed, &library, folder.path(), &arguments).unwrap();
    let recorder = Recorder::start(&ncclflow, &bed.pid_list(), &output, &["--on-hang", "2"]).unwrap();
    bed.go().unwrap();
    // In the order of their time, which their names have. There can be others before the one of the hang: who is
    // kept from running for two seconds before it, job or test, is not at work either.
    let verdicts = || {
        let mut dumps: Vec<_> = fs::read_dir(&output).unwrap().flatten().map(|file| file.path()).collect();
        dumps.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("dump_"));
        dumps.sort();
        let verdict = |text: Vec<u8>| {
            let dump: Value = serde_json::from_slice(&text).unwrap();
            dump["communicators"][0]["verdict"].clone()
        };
        dumps.iter().map(|path| verdict(fs::read(path).unwrap())).collect::<Vec<_>>()
    };
    let is_of_hang = |verdict: &&Value| verdict["state"] == "stuck";
    wait_until("a dump of the hang is there", Duration::from_mins(2), || {
        verdicts().iter().any(|verdict| is_of_hang(&verdict))
    });
    // Twice as long as it takes to be dumped, and no other dump may come.
    thread::sleep(Duration::from_secs(5));
    recorder.signal(Signal::INT).unwrap();
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success(), "{said}");
    assert_eq!(said.matches("nothing moved for 2 s: stuck").count(), 1, "{said}");
    let verdicts = verdicts();
    let [verdict] = verdicts.iter().filter(is_of_hang).collect::<Vec<_>>()[..] else {
        panic!("{verdicts:#?}")
    };
    assert_eq!(verdict["culprits"], serde_json::json!([1]), "{verdict:#}");
    assert_eq!(verdicts.last(), Some(verdict), "none comes after it");
}
