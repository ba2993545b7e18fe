//! `ncclflow record --level api` on a build of the real NCCL whose layouts nobody knows: every call by the
//! arguments of the exported functions. The truth is NCCL's own log, and what the program says it called.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use ncclflow_e2e::{
    api_trace::ApiTrace,
    compare,
    harness::{bed::Bed, exported, programs, recorder::Recorder, stripped},
    truth::{
        call_log::{self, Call},
        debug_log::DebugLog,
    },
};
use serde_json::Value;
use test_support::root;

const VERSIONS: [&str; 4] = ["2.21.5-cu12", "2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"];
const ALL_OPS: &str = "allreduce,allgather,reducescatter,broadcast,bcast,reduce,sendrecv,alltoall";
const THREADS: [&str; 6] = ["--mode", "threads", "--comms", "2", "--group", "3"];
const PROCESSES: [&str; 6] = ["--mode", "processes", "--comms", "1", "--group", "1"];
const CALLS: [&str; 8] = ["--ops", ALL_OPS, "--bytes", "4096", "--iters", "3", "--ranks", "3"];

/// A bed that waits, with such a library.
struct World {
    ncclflow: PathBuf,
    folder: tempfile::TempDir,
    bed: Bed,
}

impl World {
    /// `None` if the machine lacks something.
    fn new(version: &str, workload: &[&str]) -> Option<Self> {
        let (ncclflow, bed, library) = (programs::ncclflow()?, programs::bed()?, programs::nccl(version)?);
        if !root() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("log")).unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let copy = stripped::foreign(&library, folder.path()).unwrap();
        let symbols = library.display().to_string();
        let (log, calls) = (path("log/%p"), path("calls"));
        let own = ["--symbols", &symbols, "--debug-file", &log, "--call-log", &calls, "--timeout", "120"];
        let bed = Bed::start(&bed, &copy, folder.path(), &[&own, workload].concat()).unwrap();
        Some(Self { ncclflow, folder, bed })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Records all that the bed does; what was said.
    fn record(&mut self, options: &[&str]) -> String {
        let options = [&["--strict", "--level", "api"], options].concat();
        let recorder =
            Recorder::start(&self.ncclflow, &self.bed.pid_list(), &self.path("out"), &options).unwrap();
        self.bed.go().unwrap();
        let (status, summary) = self.bed.finish().unwrap();
        assert!(status.success() && summary.ok && summary.checked_elements > 0, "{summary:?}");
        let (status, said) = recorder.finish().unwrap();
        assert!(status.success(), "{said}");
        exported::check(&self.ncclflow, &self.path("out"));
        said
    }

    fn trace(&self) -> ApiTrace {
        ApiTrace::read(&self.path("out")).unwrap()
    }

    fn session(&self) -> Value {
        session(&self.path("out"))
    }

    fn calls(&self) -> Vec<Call> {
        call_log::read(&self.path("calls")).unwrap()
    }
}

fn session(out: &Path) -> Value {
    serde_json::from_slice(&fs::read(out.join("session.json")).unwrap()).unwrap()
}

/// Says how the library's calls were recorded, and why not better.
fn check_library(library: &Value) {
    assert_eq!(
        (&library["symbols"], &library["calls"]),
        (&"stripped_only".into(), &"exported-functions".into())
    );
    let missing = &library["missing_probes"][0];
    assert_eq!(missing["function"], "ncclEnqueueCheck");
    assert!(missing["why"].as_str().unwrap().contains("no layouts are shipped for NCCL 9."), "{missing}");
    assert!(missing["lost"].as_str().unwrap().contains("arguments of the exported functions"), "{missing}");
}

/// Ranks as threads and as processes, one communicator and two, groups and none.
#[test]
fn every_call_has_its_arguments() {
    for version in VERSIONS {
        for mode in [THREADS, PROCESSES] {
            let Some(mut world) = World::new(version, &[&CALLS[..], &mode].concat()) else { return };
            let said = world.record(&[]);
            let (trace, session) = (world.trace(), world.session());
            let log = DebugLog::read_directory(&world.path("log")).unwrap();
            compare::api_arguments(&trace, &log).assert_clean(version);
            assert!(trace.processes.iter().all(|line| line.bytes == Some(line.count * 4)), "float32");
            check_library(&session["libraries"][0]);
            assert!(said.contains("arguments of the exported functions"), "{said}");
            let calls = trace.processes.len();
            assert!(
                said.contains(&format!("{calls} calls of libraries whose struct layouts are not known")),
                "{said}"
            );
            // One trap for each call.
            let hits: u64 = session["probes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|probe| probe["hits"].as_u64().unwrap())
                .sum();
            assert_eq!(hits, calls as u64, "{version}");
        }
    }
}

/// Results and host times, and calls that NCCL refuses.
#[test]
fn every_return_is_there_as_the_program_saw_it() {
    for version in VERSIONS {
        let workload = [&CALLS[..], &THREADS, &["--invalid-calls"]].concat();
        let Some(mut world) = World::new(version, &workload) else { return };
        world.record(&["--returns"]);
        let (trace, session) = (world.trace(), world.session());
        let since = session["clock"]["started_monotonic_ns"].as_u64().unwrap();
        compare::api_returns(&trace, &world.calls(), since).assert_clean(version);
        let refused =
            || trace.processes.iter().filter(|line| line.result.as_deref() == Some("ncclInvalidArgument"));
        assert_eq!(refused().count(), 2 * 3 * 2, "two refused calls of each rank on each communicator");
        assert_eq!(refused().filter(|line| line.comm == 0).count(), 3 * 2);
        assert_eq!(refused().filter(|line| line.datatype.is_none() && line.bytes.is_none()).count(), 3 * 2);
        assert_eq!(
            (&session["model"]["unreturned_calls"], &session["model"]["uncalled_returns"]),
            (&0.into(), &0.into())
        );
    }
}

/// The other levels cannot, and say which can; so do the commands that look at the library.
#[test]
fn other_levels_name_the_one_that_can() {
    let Some(world) = World::new("2.27.5-cu12", &PROCESSES) else { return };
    let (pids, out) = (world.bed.pid_list(), world.path("refused").display().to_string());
    for level in ["flow", "steps"] {
        let refused = Command::new(&world.ncclflow)
            .args(["record", "--no-cache", "-p", &pids, "-o", &out, "--level", level])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("no layouts are shipped") && said.contains("`--level api` records"), "{said}");
        assert!(!Path::new(&out).exists());
    }
    let said = |arguments: &[&str]| {
        let output = Command::new(&world.ncclflow).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let library = world.path("libnccl.so.2").display().to_string();
    let symbols = said(&["symbols", &library]);
    assert!(
        symbols.contains("api: calls are recorded by the arguments of the exported functions"),
        "{symbols}"
    );
    let doctor = said(&["doctor"]);
    let line = doctor.lines().find(|line| line.contains(&library)).unwrap();
    assert!(line.contains("API calls can, by the arguments of the exported functions"), "{line}");
}

/// A node on which one job's library is known, and another's is not.
#[test]
fn libraries_with_layouts_and_without_side_by_side() {
    let common = ["--ops", "allreduce,reduce", "--bytes", "4096", "--iters", "5"];
    let Some(mut world) = World::new("2.27.5-cu12", &[&common[..], &PROCESSES].concat()) else { return };
    let other = tempfile::tempdir().unwrap();
    let library = programs::nccl("2.28.9-cu13").unwrap();
    let mut known = Bed::start(&programs::bed().unwrap(), &library, other.path(), &common).unwrap();
    let out = world.path("all");
    let mut recorder = Recorder::start_all(&world.ncclflow, &out, &["--level", "api"]).unwrap();
    // Where there is much to look at, it begins before it has seen all processes.
    for pid in world.bed.ready.pids.iter().chain(&known.ready.pids) {
        recorder.hear(&format!("process {pid} (ncclflow-bed): NCCL ")).unwrap();
    }
    world.bed.go().unwrap();
    known.go().unwrap();
    assert!(world.bed.finish().unwrap().1.ok && known.finish().unwrap().1.ok);
    recorder.signal(rustix::process::Signal::INT).unwrap();
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success(), "{said}");
    let (trace, session) = (ApiTrace::read(&out).unwrap(), session(&out));
    let log = DebugLog::read_directory(&world.path("log")).unwrap();
    let is_own = |pid: u32| world.bed.ready.pids.contains(&pid);
    let mut processes = trace.processes.clone();
    processes.retain(|line| is_own(line.pid));
    let own = ApiTrace { processes, ..ApiTrace::default() };
    compare::api_arguments(&own, &log).assert_clean("the library that is not known");
    let ranks: Vec<_> = trace
        .ranks
        .iter()
        .filter(|rank| rank.folder == format!("0x{}", known.ready.comm_hash.trim_start_matches("0x")))
        .collect();
    assert_eq!(ranks.len(), 2);
    for rank in ranks {
        assert_eq!(rank.lines.len(), 10);
        assert!(rank.lines.iter().all(|line| !line.by_arguments && line.n_ranks == Some(2)));
    }
    let libraries = session["libraries"].as_array().unwrap();
    let of =
        |path: &Path| libraries.iter().find(|library| library["path"] == path.display().to_string()).unwrap();
    check_library(of(&world.path("libnccl.so.2")));
    assert_eq!(of(&library)["calls"], "enqueue-check");
}

/// A Megatrace log needs the rank in the job, which nothing says; a map of ranks does.
#[test]
fn megatrace_logs_need_the_jobs_rank() {
    for with_map in [false, true] {
        let Some(mut world) = World::new("2.27.5-cu12", &[&CALLS[..], &PROCESSES].concat()) else { return };
        let (map, logs) = (world.path("map"), world.path("logs"));
        let lines = world.bed.ready.pids.iter().zip(4..).map(|(pid, rank)| format!("{pid} {rank}\n"));
        fs::write(&map, lines.collect::<String>()).unwrap();
        let map = map.display().to_string();
        let options = ["--rank-map", &map];
        world.record(if with_map { &options } else { &[] });
        let export = Command::new(&world.ncclflow)
            .args(["export", "--json", "-f", "megatrace"])
            .arg(world.path("out"))
            .arg("-o")
            .arg(&logs)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&export.stderr);
        if !with_map {
            assert_eq!(export.status.code(), Some(1), "{said}");
            assert!(
                said.contains("--rank-map") && said.contains("layouts of its NCCL are not known"),
                "{said}"
            );
            assert!(!logs.exists(), "a folder without files is left");
            continue;
        }
        assert!(export.status.success(), "{said}");
        let summary: Value = serde_json::from_slice(&export.stdout).unwrap();
        assert!(summary["notes"][0].as_str().unwrap().contains("communicator's address"), "{summary}");
        let (trace, calls) = (world.trace(), world.calls());
        for (pid, rank) in world.bed.ready.pids.iter().zip(4..) {
            let text = fs::read_to_string(logs.join(format!("rank_{rank}.log"))).unwrap();
            let made: Vec<&str> = calls
                .iter()
                .filter(|call| {
                    call.pid == *pid && !call.function.contains("Group") && !call.function.contains("Comm")
                })
                .map(
                    |call| {
                        if call.function == "ncclBcast" { "ncclBroadcast" } else { call.function.as_str() }
                    },
                )
                .collect();
            let comm = trace.processes.iter().find(|line| line.pid == *pid).unwrap().comm;
            let words: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
            assert_eq!(words.iter().map(|words| words[6]).collect::<Vec<_>>(), made);
            for words in words {
                assert_eq!((words[4], words[14]), (format!("{rank}]").as_str(), comm.to_string().as_str()));
            }
        }
        assert_eq!(fs::read_dir(&logs).unwrap().count(), 3);
    }
}
