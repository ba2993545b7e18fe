//! `ncclflow record --level api` on a build of the real NCCL whose layouts nobody knows: every call by the
//! arguments of the exported functions. The truth is NCCL's own log, and what the program says it called.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::{
    api_trace::ApiTrace,
    compare,
    harness::{job::libraries, prelude::*, stripped},
};

const THREADS: &str = "--mode threads --comms 2 --group 3";
const PROCESSES: &str = "--mode processes --comms 1 --group 1";
const CALLS: &str = "--ops allreduce,allgather,reducescatter,broadcast,bcast,reduce,sendrecv,alltoall \
     --bytes 4096 --iters 3 --ranks 3";

/// A bed that waits, with such a library. `None` if the machine lacks something.
fn world(version: &str, workload: &str) -> Option<World> {
    let workload = format!("{DEBUG_LOG} {CALL_LOG} --timeout 120 {workload}");
    World::of_copy(version, stripped::foreign, &workload)
}

/// Records all that the bed does; what was said, and the calls.
fn record(world: &mut World, options: &str) -> (String, ApiTrace) {
    let said = world.record_all(&format!("--strict --level api {options}"));
    world.check_export();
    (said, ApiTrace::read(&world.out()).unwrap())
}

/// Says how the library's calls were recorded, and why not better.
fn check_library(library: &Value) {
    assert_eq!(
        (&library["symbols"], &library["calls"]),
        (&"stripped_only".into(), &"exported-functions".into())
    );
    let missing = &library["missing_probes"][0];
    assert_eq!(missing["function"], "ncclEnqueueCheck");
    assert!(text(&missing["why"]).contains("no layouts are shipped for NCCL 9."), "{missing}");
    assert!(text(&missing["lost"]).contains("arguments of the exported functions"), "{missing}");
}

/// Ranks as threads and as processes, one communicator and two, groups and none.
#[test]
fn every_call_has_its_arguments() {
    for version in libraries() {
        for mode in [THREADS, PROCESSES] {
            let Some(mut world) = world(version, &format!("{CALLS} {mode}")) else { return };
            let (said, trace) = record(&mut world, "");
            let (session, log) = (world.session(), world.log());
            compare::api_arguments(&trace, &log).assert_clean(version);
            assert!(trace.processes.iter().all(|line| line.bytes == Some(line.count * 4)), "float32");
            check_library(&session["libraries"][0]);
            assert!(said.contains("arguments of the exported functions"), "{said}");
            let calls = trace.processes.len();
            let words = format!("{calls} calls of libraries whose struct layouts are not known");
            assert!(said.contains(&words), "{said}");
            // One trap for each call.
            assert_eq!(sum(&session["probes"], "hits"), calls as u64, "{version}");
        }
    }
}

/// Results and host times, and calls that NCCL refuses.
#[test]
fn every_return_is_there_as_the_program_saw_it() {
    for version in libraries() {
        let Some(mut world) = world(version, &format!("{CALLS} {THREADS} --invalid-calls")) else { return };
        let (_, trace) = record(&mut world, "--returns");
        let session = world.session();
        let since = number(&session["clock"]["started_monotonic_ns"]);
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
    let Some(world) = world("2.27.5-cu12", PROCESSES) else { return };
    let (pids, out) = (world.bed.pid_list(), world.path("refused"));
    for level in ["flow", "steps"] {
        let refused = ncclflow_of(&format!("record --no-cache -p {pids} --level {level} -o"), &[&out]);
        refused.refused(&["no layouts are shipped", "`--level api` records"]);
        assert!(!out.exists());
    }
    let symbols = ncclflow_of("symbols", &[&world.library]).stdout;
    assert!(
        symbols.contains("api: calls are recorded by the arguments of the exported functions"),
        "{symbols}"
    );
    let (doctor, library) = (ncclflow("doctor").stdout, world.library.display().to_string());
    let line = doctor.lines().find(|line| line.contains(&library)).unwrap();
    assert!(line.contains("API calls can, by the arguments of the exported functions"), "{line}");
}

/// A node on which one job's library is known, and another's is not.
#[test]
fn libraries_with_layouts_and_without_side_by_side() {
    let common = "--ops allreduce,reduce --bytes 4096 --iters 5";
    let Some(mut world) = world("2.27.5-cu12", &format!("{common} {PROCESSES}")) else { return };
    let Some(mut known) = World::start("2.28.9-cu13", common) else { return };
    let out = world.path("all");
    let mut recorder = Recorder::start_all(&world.ncclflow, &out, &["--level", "api"]).unwrap();
    // Where there is much to look at, it begins before it has seen all processes.
    for pid in world.bed.ready.pids.iter().chain(&known.bed.ready.pids) {
        recorder.hear(&format!("{pid} (ncclflow-bed)")).unwrap();
    }
    world.bed.go().unwrap();
    known.run();
    world.bed.end();
    recorder.interrupt().unwrap();
    let (trace, session, log) = (ApiTrace::read(&out).unwrap(), session(&out), world.log());
    let is_own = |pid: u32| world.bed.ready.pids.contains(&pid);
    let mut processes = trace.processes.clone();
    processes.retain(|line| is_own(line.pid));
    let own = ApiTrace { processes, ..ApiTrace::default() };
    compare::api_arguments(&own, &log).assert_clean("the library that is not known");
    let ranks: Vec<_> = trace
        .ranks
        .iter()
        .filter(|rank| rank.folder == format!("0x{}", known.bed.ready.comm_hash.trim_start_matches("0x")))
        .collect();
    assert_eq!(ranks.len(), 2);
    for rank in ranks {
        assert_eq!(rank.lines.len(), 10);
        assert!(rank.lines.iter().all(|line| !line.by_arguments && line.n_ranks == Some(2)));
    }
    let libraries = list(&session["libraries"]);
    let of =
        |path: &Path| libraries.iter().find(|library| library["path"] == path.display().to_string()).unwrap();
    check_library(of(&world.library));
    assert_eq!(of(&known.library)["calls"], "enqueue-check");
}

/// A Megatrace log needs the rank in the job, which nothing says; a map of ranks does.
#[test]
fn megatrace_logs_need_the_jobs_rank() {
    for with_map in [false, true] {
        let Some(mut world) = world("2.27.5-cu12", &format!("{CALLS} {PROCESSES}")) else { return };
        let (map, logs) = (world.path("map"), world.path("logs"));
        let lines = world.bed.ready.pids.iter().zip(4..).map(|(pid, rank)| format!("{pid} {rank}\n"));
        fs::write(&map, lines.collect::<String>()).unwrap();
        let options = if with_map { format!("--rank-map {}", map.display()) } else { String::new() };
        let (_, trace) = record(&mut world, &options);
        let export = ncclflow_of("export --json -f megatrace -o", &[&logs, &world.out()]);
        if !with_map {
            export.refused(&["--rank-map", "layouts of its NCCL are not known"]);
            assert!(!logs.exists(), "a folder without files is left");
            continue;
        }
        let summary = export.ok().json();
        assert!(text(&summary["notes"][0]).contains("communicator's address"), "{summary}");
        let calls = world.calls();
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
