//! `ncclflow record --level api` on the real NCCL: every call as NCCL's own log and the program itself have
//! it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::{
    api_trace::ApiTrace,
    compare,
    harness::{
        job::{VERSIONS, libraries},
        prelude::*,
    },
};

/// Every operation, of 4,096 bytes on three ranks.
const COMMON: &str = "--ops allreduce,allgather,reducescatter,broadcast,bcast,reduce,sendrecv,alltoall \
     --bytes 4096 --iters 3 --ranks 3";
const THREADS: &str = "--mode threads --comms 2 --group 3";
const PROCESSES: &str = "--mode processes --comms 1 --group 1";

/// Attaches to a bed that is already up, lets it go, and waits for both. `None` if the machine lacks something.
fn run(version: &str, options: &str, workload: &str) -> Option<(World, ApiTrace)> {
    let mut world = World::start(version, &format!("{DEBUG_LOG} {CALL_LOG} {workload}"))?;
    world.record_all(&format!("--strict --level api {options}"));
    let trace = ApiTrace::read(&world.out()).unwrap();
    Some((world, trace))
}

/// Hits of each probed function, over all processes.
fn hits(session: &Value) -> BTreeMap<&str, u64> {
    let mut hits = BTreeMap::new();
    for probe in list(&session["probes"]) {
        *hits.entry(text(&probe["function"])).or_insert(0) += number(&probe["hits"]);
    }
    hits
}

/// Ranks as threads and as processes, one communicator and two, groups and none.
#[test]
fn every_call_is_there_as_nccl_logs_it() {
    for version in libraries() {
        for mode in [THREADS, PROCESSES] {
            let Some((world, trace)) = run(version, "", &format!("{COMMON} {mode}")) else { return };
            let log = world.log();
            compare::api_calls(&trace, &log).assert_clean(version);
            let calls: usize = trace.ranks.iter().map(|rank| rank.lines.len()).sum();
            // One trap for each call, and no other probe.
            assert_eq!(hits(&world.session()), BTreeMap::from([("ncclEnqueueCheck", calls as u64)]));
            for rank in &trace.ranks {
                // Before 2.26 the log's name of a communicator is another hash.
                if !version.starts_with("2.21") {
                    let logged =
                        log.communicators.iter().find(|other| other.comm == rank.lines[0].comm).unwrap();
                    assert_eq!(rank.folder, format!("0x{:016x}", logged.comm_hash.unwrap().0));
                }
                assert!(rank.lines.iter().all(|line| line.comm_hash.as_ref() == Some(&rank.folder)));
                assert!(rank.lines.iter().all(|line| line.bytes == Some(line.count * 4)), "float32");
            }
            assert!(trace.processes.is_empty());
            world.check_export();
        }
    }
}

/// Results and host times, against what the program itself saw; an error among them.
#[test]
fn every_return_is_there_as_the_program_saw_it() {
    let more = ["--returns", "--returns --links perf"].map(|options| ("2.27.5-cu12", PROCESSES, 1, options));
    for (version, mode, comms, options) in
        VERSIONS.map(|version| (version, THREADS, 2, "--returns")).into_iter().chain(more)
    {
        let workload = format!("{COMMON} {mode} --invalid-calls");
        let Some((world, trace)) = run(version, options, &workload) else { return };
        let session = world.session();
        let since = number(&session["clock"]["started_monotonic_ns"]);
        compare::api_returns(&trace, &world.calls(), since).assert_clean(version);
        let refused = trace.processes.iter().chain(trace.ranks.iter().flat_map(|rank| &rank.lines));
        let refused = refused.filter(|line| line.result.as_deref() == Some("ncclInvalidArgument")).count();
        assert_eq!(refused, 2 * 3 * comms, "two refused calls of each rank on each communicator");
        assert!(trace.others.iter().any(|call| call.function == "ncclCommDestroy"));
        assert_eq!(session["model"]["unreturned_calls"], 0);
        assert_eq!(session["model"]["uncalled_returns"], 0);
        world.check_export();
    }
}

/// Layouts that an earlier recording resolved are as good as fresh ones.
#[test]
fn cached_layouts_give_the_same_calls() {
    let workload = COMMON.replace("--iters 3", "");
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().join("layouts");
    for cached in [false, true, false, true] {
        let options = format!("--returns --cache-dir {}", folder.display());
        let Some((world, trace)) = run("2.32.3-cu12", &options, &workload) else { return };
        assert_eq!(world.session()["libraries"][0]["cached"], cached);
        compare::api_calls(&trace, &world.log()).assert_clean("cached");
        if cached {
            // Damaged, it is not there, and written anew.
            let entry = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
            let whole = fs::read(&entry).unwrap();
            fs::write(&entry, &whole[..whole.len() / 2]).unwrap();
        }
    }
}

/// A call without a communicator, and one that NCCL refuses for its data type, are calls all the same.
#[test]
fn calls_that_nccl_refuses_are_told() {
    let workload = "--ops allreduce --bytes 4096 --mode processes --invalid-calls";
    for version in libraries() {
        let Some((world, trace)) = run(version, "", workload) else { return };
        assert_eq!(trace.ranks.len(), 2);
        for rank in &trace.ranks {
            let types: Vec<_> = rank.lines.iter().map(|line| line.datatype.as_deref()).collect();
            assert_eq!(types, [None, Some("float32")], "{version}");
            assert_eq!(rank.lines[0].bytes, None);
        }
        assert_eq!(trace.processes.len(), 2);
        for line in &trace.processes {
            assert_eq!((line.comm, line.rank, &line.comm_hash, line.call), (0, None, &None, None));
            assert_eq!((line.function.as_str(), line.datatype.as_deref()), ("AllReduce", Some("float32")));
        }
        world.check_export();
    }
}
