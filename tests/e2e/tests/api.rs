//! `ncclflow record --level api` on the real NCCL: every call as NCCL's own log and the program itself have
//! it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, fs, path::PathBuf};

use ncclflow_e2e::{
    api_trace::ApiTrace,
    compare,
    harness::{bed::Bed, exported, programs, recorder::Recorder},
    truth::{call_log, debug_log::DebugLog},
};
use test_support::root;

const VERSIONS: [&str; 4] = ["2.21.5-cu12", "2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"];
const ALL_OPS: &str = "allreduce,allgather,reducescatter,broadcast,bcast,reduce,sendrecv,alltoall";

/// One run of the bed under the tracer.
struct Run {
    folder: tempfile::TempDir,
}

impl Run {
    /// Attaches to a bed that is already up, lets it go, and waits for both. `None` if the
    /// machine lacks something.
    fn new(version: &str, tracing: &[&str], workload: &[&str]) -> Option<Self> {
        let (ncclflow, bed, library) = (programs::ncclflow()?, programs::bed()?, programs::nccl(version)?);
        if !root() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("log")).unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (log, calls) = (path("log/%p"), path("calls"));
        let mut arguments = vec!["--debug-file", &log, "--call-log", &calls];
        arguments.extend(workload);
        let mut bed = Bed::start(&bed, &library, folder.path(), &arguments).unwrap();
        let mut options = vec!["--strict", "--level", "api"];
        options.extend(tracing);
        let recorder =
            Recorder::start(&ncclflow, &bed.pid_list(), &folder.path().join("out"), &options).unwrap();
        bed.go().unwrap();
        let (status, summary) = bed.finish().unwrap();
        assert!(status.success() && summary.ok && summary.checked_elements > 0, "{summary:?}");
        let (status, said) = recorder.finish().unwrap();
        assert!(status.success(), "{said}");
        Some(Self { folder })
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    fn trace(&self) -> ApiTrace {
        ApiTrace::read(&self.out()).unwrap()
    }

    fn log(&self) -> DebugLog {
        DebugLog::read_directory(&self.folder.path().join("log")).unwrap()
    }

    fn session(&self) -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(self.out().join("session.json")).unwrap()).unwrap()
    }

    /// Hits of each probed function, over all processes.
    fn hits(&self) -> BTreeMap<String, u64> {
        let mut hits = BTreeMap::new();
        for probe in self.session()["probes"].as_array().unwrap() {
            let function = probe["function"].as_str().unwrap().to_owned();
            *hits.entry(function).or_insert(0) += probe["hits"].as_u64().unwrap();
        }
        hits
    }

    /// An export, which needs no root, makes the same files, byte for byte.
    fn check_export(&self) {
        exported::check(&programs::ncclflow().unwrap(), &self.out());
    }
}

/// Ranks as threads and as processes, one communicator and two, groups and none.
#[test]
fn every_call_is_there_as_nccl_logs_it() {
    let common = ["--ops", ALL_OPS, "--bytes", "4096", "--iters", "3", "--ranks", "3"];
    for version in VERSIONS {
        for more in [
            ["--mode", "threads", "--comms", "2", "--group", "3"],
            ["--mode", "processes", "--comms", "1", "--group", "1"],
        ] {
            let workload: Vec<&str> = common.iter().chain(&more).copied().collect();
            let Some(run) = Run::new(version, &[], &workload) else { return };
            let (trace, log) = (run.trace(), run.log());
            compare::api_calls(&trace, &log).assert_clean(version);
            let calls: usize = trace.ranks.iter().map(|rank| rank.lines.len()).sum();
            // One trap for each call, and no other probe.
            assert_eq!(run.hits(), BTreeMap::from([("ncclEnqueueCheck".to_owned(), calls as u64)]));
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
            run.check_export();
        }
    }
}

/// Results and host times, against what the program itself saw; an error among them.
#[test]
fn every_return_is_there_as_the_program_saw_it() {
    let threads = ["--mode", "threads", "--comms", "2", "--group", "3"];
    let processes = ["--mode", "processes", "--comms", "1", "--group", "1"];
    let (auto, perf) = (["--returns"].as_slice(), ["--returns", "--links", "perf"].as_slice());
    let more = [("2.27.5-cu12", processes, auto), ("2.27.5-cu12", processes, perf)];
    for (version, more, tracing) in VERSIONS.map(|version| (version, threads, auto)).into_iter().chain(more) {
        let common = ["--ops", ALL_OPS, "--bytes", "4096", "--iters", "3", "--ranks", "3", "--invalid-calls"];
        let workload: Vec<&str> = common.iter().chain(&more).copied().collect();
        let Some(run) = Run::new(version, tracing, &workload) else { return };
        let (trace, session) = (run.trace(), run.session());
        let calls = call_log::read(&run.folder.path().join("calls")).unwrap();
        let since = session["clock"]["started_monotonic_ns"].as_u64().unwrap();
        compare::api_returns(&trace, &calls, since).assert_clean(version);
        let refused = trace.processes.iter().chain(trace.ranks.iter().flat_map(|rank| &rank.lines));
        let refused = refused.filter(|line| line.result.as_deref() == Some("ncclInvalidArgument")).count();
        let comms: usize = more[3].parse().unwrap();
        assert_eq!(refused, 2 * 3 * comms, "two refused calls of each rank on each communicator");
        assert!(trace.others.iter().any(|call| call.function == "ncclCommDestroy"));
        assert_eq!(session["model"]["unreturned_calls"], 0);
        assert_eq!(session["model"]["uncalled_returns"], 0);
        run.check_export();
    }
}

/// Layouts that an earlier recording resolved are as good as fresh ones.
#[test]
fn cached_layouts_give_the_same_calls() {
    let workload = ["--ops", ALL_OPS, "--bytes", "4096", "--ranks", "3"];
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().join("layouts").display().to_string();
    for cached in [false, true, false, true] {
        let tracing = ["--returns", "--cache-dir", &folder];
        let Some(run) = Run::new("2.32.3-cu12", &tracing, &workload) else { return };
        assert_eq!(run.session()["libraries"][0]["cached"], cached);
        compare::api_calls(&run.trace(), &run.log()).assert_clean("cached");
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
    let workload = ["--ops", "allreduce", "--bytes", "4096", "--mode", "processes", "--invalid-calls"];
    for version in VERSIONS {
        let Some(run) = Run::new(version, &[], &workload) else { return };
        let trace = run.trace();
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
        run.check_export();
    }
}
