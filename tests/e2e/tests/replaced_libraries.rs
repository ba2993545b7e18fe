//! Libraries that come and go while the whole node is recorded, as environments and containers do: one build
//! of NCCL, in one file after the other.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, fs, thread, time::Duration};

use ncclflow_e2e::harness::{bed::Bed, programs, recorder::Recorder};
use rustix::process::Signal;
use serde_json::Value;
use test_support::{root, wait_until};

const ROUNDS: u64 = 3;
const ITERATIONS: u64 = 5;

/// Files that a process holds open below a folder.
fn held_below(pid: u32, folder: &str) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.map(|path| path.display().to_string()).filter(|path| path.starts_with(folder)).collect()
}

#[test]
fn a_build_of_nccl_is_given_its_probes_once_whatever_file_it_comes_in() {
    let (Some(ncclflow), Some(program), Some(library), true) =
        (programs::ncclflow(), programs::bed(), programs::nccl("2.27.5-cu12"), root())
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().display().to_string();
    let output = folder.path().join("out");
    let recorder = Recorder::start_all(&ncclflow, &output, &[]).unwrap();
    let mut jobs = Vec::new();
    for round in 0..ROUNDS {
        let place = folder.path().join(format!("environment-{round}"));
        fs::create_dir(&place).unwrap();
        let copy = place.join("libnccl.so.2");
        fs::copy(&library, &copy).unwrap();
        let hold = place.join("hold").display().to_string();
        let arguments = ["--mode", "processes", "--iters", "5", "--bytes", "4096", "--channels", "1"];
        let more = ["--sync", "--hold-file", &hold];
        let mut bed = Bed::start(&program, &copy, &place, &[&arguments[..], &more].concat()).unwrap();
        // It is promised to be picked up within two seconds.
        thread::sleep(Duration::from_secs(3));
        bed.go().unwrap();
        fs::write(&hold, "").unwrap();
        assert!(bed.finish().unwrap().1.ok);
        jobs.push((bed.ready.comm_hash.clone(), bed.ready.pids.clone()));
        fs::remove_dir_all(&place).unwrap();
        // A file that is gone is let go of when nobody has it mapped.
        let below = format!("{mark}/environment");
        wait_until("no file of the job is held open", Duration::from_secs(30), || {
            held_below(recorder.pid(), &below).is_empty()
        });
    }
    recorder.signal(Signal::INT).unwrap();
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success(), "{said}");
    let session: Value = serde_json::from_slice(&fs::read(output.join("session.json")).unwrap()).unwrap();
    assert!(session["loss"].as_object().unwrap().values().all(|count| count == 0), "{:#}", session["loss"]);
    for (hash, pids) in &jobs {
        for (rank, pid) in pids.iter().enumerate() {
            let found = session["communicators"].as_array().unwrap().iter();
            let found: Vec<&Value> = found
                .filter(|comm| comm["commHash"] == format!("0x{hash}") && comm["rank"] == rank)
                .collect();
            let [communicator] = &*found else { panic!("{hash} {rank}: {said}") };
            assert_eq!(
                (&communicator["pid"], &communicator["proxyFlowLines"]),
                (&(*pid).into(), &ITERATIONS.into()),
                "{said}"
            );
        }
    }
    let is_ours = |library: &&Value| library["path"].as_str().unwrap().starts_with(&mark);
    let libraries = session["libraries"].as_array().unwrap();
    assert_eq!(libraries.iter().filter(is_ours).count(), 1, "{libraries:#?}");
    let at = libraries.iter().position(|library| is_ours(&library)).unwrap();
    let probes = session["probes"].as_array().unwrap().iter();
    let mut places = BTreeSet::new();
    for probe in probes.filter(|probe| probe["library"] == at && probe["part"].is_null()) {
        assert!(places.insert((probe["symbol"].to_string(), probe["at"].to_string())), "twice: {probe:#}");
    }
    assert!(!places.is_empty());
}
