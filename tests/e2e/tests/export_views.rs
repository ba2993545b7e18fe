//! `ncclflow export -f perfetto|chakra|inspector` of recordings of the real NCCL, as their own readers, or what their documents
//! say, take them apart (`tests/exports/*.py`), against the lines of the same recording and what the program was told to call.

use ncclflow_e2e::harness::{
    prelude::*,
    traced_run::{Plugin, TracedRun},
};

const NCCL: &str = "2.27.5-cu12";

/// Whether Python has what reads the views.
fn can_read() -> bool {
    let modules = "import perfetto.protos.perfetto.trace.perfetto_trace_pb2, chakra.src.jsonizer.jsonizer";
    let found = Command::new("python3").args(["-c", modules]).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    need("perfetto and mlc-chakra", found, "run `cargo xtask test`, which fetches them")
}

/// Exports a recording and compares the view with its lines.
fn compare(run: &TracedRun, format: &str, script: &str, arguments: &[&str]) -> Value {
    let view = run.folder().join(format);
    let version = if format == "inspector" { " --inspector-version v4.3" } else { "" };
    ncclflow_of(&format!("export -f {format}{version} -o"), &[&view, &run.out()]).ok();
    let script: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "exports", script].iter().collect();
    crate::run(Command::new("python3").arg(script).args([view, run.out()]).args(arguments)).ok().json()
}

/// Records what `--level steps` has, in all its detail.
fn steps(workload: &str) -> Option<TracedRun> {
    let workload =
        format!("--mode processes --ops allreduce,allgather,reducescatter,broadcast,sendrecv {workload}");
    TracedRun::new("--level steps --step-detail transitions", NCCL, Plugin::No, &workload)
}

fn of(compared: &Value, key: &str) -> u64 {
    compared[key].as_u64().unwrap_or(0)
}

#[test]
fn steps_are_drawn_simulated_and_told_as_inspector_tells_them() {
    if !can_read() {
        return;
    }
    let Some(run) = steps("--ranks 4 --bytes 65536 --iters 10 --comms 2") else { return };
    let drawn = compare(&run, "perfetto", "perfetto_trace.py", &[]);
    assert!(
        of(&drawn, "messages") > 1000 && of(&drawn, "arrows") > 400 && of(&drawn, "processes") == 4,
        "{drawn}"
    );
    let simulated = compare(&run, "chakra", "chakra_traces.py", &["--bytes", "65536"]);
    // An iteration is on one of the communicators: a collective of each kind, a send and a receive of each rank.
    assert_eq!((of(&simulated, "COMM_COLL_NODE"), of(&simulated, "groups")), (10 * 4 * 4, 2), "{simulated}");
    assert!(of(&simulated, "COMM_SEND_NODE") == 10 * 4, "{simulated}");
    assert_eq!(of(&simulated, "COMM_SEND_NODE"), of(&simulated, "COMM_RECV_NODE"), "{simulated}");
    let told = compare(&run, "inspector", "inspector_records.py", &[]);
    assert!(of(&told, "steps") > 1000 && of(&told, "timed") > 100, "{told}");
}

/// What ASTRA-sim does not run is written as what it is made of, and what a rank sends to itself has no node.
#[test]
fn what_no_simulator_runs_is_sends_and_receives() {
    if !can_read() {
        return;
    }
    let workload = "--ranks 4 --mode processes --ops reduce,alltoall --bytes 4096 --iters 5";
    for level in ["--level flow", "--level api"] {
        let Some(run) = TracedRun::new(level, NCCL, Plugin::No, workload) else { return };
        let simulated = compare(&run, "chakra", "chakra_traces.py", &[]);
        // A reduce of four ranks has three messages; a rank sends to three others.
        assert_eq!(of(&simulated, "COMM_SEND_NODE"), 5 * (3 + 4 * 3), "{simulated}");
        assert_eq!(of(&simulated, "COMM_COLL_NODE"), 0, "{simulated}");
    }
}

/// NVIDIA's own reader of Inspector's records, where it is to be had, has the numbers of `ncclflow summary`.
#[test]
fn nvidias_exporter_tells_of_our_records_what_summary_says() {
    let exporter = std::env::var_os("NCCLFLOW_INSPECTOR_EXPORTER").map(PathBuf::from);
    let Some(exporter) = exporter.filter(|exporter| exporter.exists()) else {
        let remedy = "set NCCLFLOW_INSPECTOR_EXPORTER to NVIDIA's perf_summary_exporter.py; `cargo xtask test` fetches it";
        return test_support::skip_always("NVIDIA's exporter", remedy);
    };
    let Some(run) = steps("--ranks 4 --bytes 262144 --iters 10") else { return };
    let (records, summary) = (run.folder().join("records"), run.folder().join("summary.json"));
    ncclflow_of("export -f inspector --inspector-version v4.0 -o", &[&records, &run.out()]).ok();
    fs::write(&summary, ncclflow_of("summary --json", &[run.out()]).stdout).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../exports/inspector_exporter.py");
    let mut python = Command::new("python3");
    let compared = crate::run(python.arg(script).arg(exporter).args([&records, &summary])).ok().json();
    let functions = json!(["AllGather", "AllReduce", "Broadcast", "ReduceScatter"]);
    assert!(compared["functions"] == functions && of(&compared, "compared") >= 30, "{compared}");
}

/// Calls say the stream, and how many collectives were launched before; those of a group run together.
#[test]
fn calls_are_nodes_and_slices() {
    if !can_read() {
        return;
    }
    let workload = "--ranks 2 --mode processes --ops allreduce,allgather,reducescatter,sendrecv \
         --bytes 4096 --iters 5 --group 2";
    let Some(run) = TracedRun::new("--level api --returns", NCCL, Plugin::No, workload) else { return };
    let drawn = compare(&run, "perfetto", "perfetto_trace.py", &[]);
    assert!(of(&drawn, "calls") > 40, "{drawn}");
    let simulated = compare(&run, "chakra", "chakra_traces.py", &["--bytes", "4096"]);
    assert_eq!(of(&simulated, "COMM_COLL_NODE"), 5 * 3 * 2, "{simulated}");
    assert!(of(&simulated, "COMM_SEND_NODE") >= 10 && of(&simulated, "dependencies") > 20, "{simulated}");
    let refused = run.folder().join("refused");
    ncclflow_of("export -f inspector -o", &[&refused, &run.out()]).refused(&["`record --level flow`"]);
    assert!(!refused.exists());
}

/// A full disk is said, and leaves nothing that could be taken for a whole view.
#[test]
fn a_full_disk_leaves_no_half_view() {
    let Some(ncclflow) = programs::ncclflow() else { return };
    let folder = tempfile::tempdir().unwrap();
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces/net_steps");
    for format in ["perfetto", "chakra", "inspector"] {
        let view = folder.path().join(format);
        // The largest file may have 512 bytes: writing more is an error, and no signal.
        let script = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
        let mut limited = Command::new("sh");
        limited.args(["-c", script, "sh"]).arg(&ncclflow).args(["export", "-f", format, "--last", "2.5s"]);
        run(limited.arg("-o").args([&view, &recording])).refused(&["File too large"]);
        assert!(!view.exists(), "{format} left something");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
