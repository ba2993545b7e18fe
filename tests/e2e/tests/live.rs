//! `top` and the metrics of `record`, against what the program did: its ops and bytes, and the bytes
//! that went through each slot.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::{
    harness::{
        job::{VERSIONS, libraries},
        prelude::*,
        scrape::{self, Sample},
        top::Top,
    },
    truth::transfer_log::TransferLog,
};

const RANKS: u32 = 3;
const BYTES: u64 = 65536;
const ITERATIONS: u64 = 5;

/// A bed that waits, with a log of its transfers. `None` if the machine lacks something.
fn waiting_job(version: &str, workload: &str) -> Option<World> {
    let fixed = "--mode processes --channels 2 --ops allreduce,allgather,sendrecv";
    let sizes = format!("--ranks {RANKS} --bytes {BYTES} --iters {ITERATIONS}");
    World::start(version, &format!("{fixed} {sizes} {TRANSFER_LOG} {workload}"))
}

/// What went through the slots, by rank, direction and peer.
fn moved(job: &World) -> BTreeMap<(i32, String, i32), u64> {
    let mut moved = BTreeMap::new();
    let log = TransferLog::read(&job.path("transfers"), RANKS).unwrap();
    for transfer in log.ranks.values().flatten() {
        let direction = format!("{:?}", transfer.direction).to_uppercase();
        *moved.entry((transfer.rank, direction, transfer.peer)).or_insert(0) += transfer.wire_bytes;
    }
    moved
}

#[test]
fn top_counts_the_ops_and_bytes_that_the_program_asked_for() {
    for version in libraries() {
        for level in ["api", "flow", "steps"] {
            let Some(mut job) = waiting_job(version, "") else { return };
            let options = ["-i", "300", "--level", level];
            let top = Top::start(&job.ncclflow, &job.bed.pid_list(), &options).unwrap();
            job.run();
            assert_counted(&top.finish().unwrap(), version, level, &job);
        }
    }
}

/// The report has what the program did.
fn assert_counted(report: &Value, version: &str, level: &str, job: &World) {
    let what = format!("{version} {level}: {report:#}");
    assert_eq!(report["recordsLost"], 0, "{what}");
    let ranks = list(&report["ranks"]);
    assert_eq!(ranks.len(), usize::try_from(RANKS).unwrap(), "{what}");
    for (at, rank) in ranks.iter().enumerate() {
        assert_eq!(number(&rank["rank"]), at as u64, "{what}");
        assert_eq!(number(&rank["pid"]), u64::from(job.bed.ready.pids[at]), "{what}");
        let kinds = list(&rank["kinds"]).iter().map(|kind| (text(&kind["coll"]), kind));
        let kinds: BTreeMap<&str, &Value> = kinds.collect();
        let names: Vec<&str> = kinds.keys().copied().collect();
        assert_eq!(names, ["AllGather", "AllReduce", "Recv", "Send"], "{what}");
        // Before 2.23, what an op is called with is known of reductions only.
        let is_sized = |name: &str| level == "api" || !version.starts_with("2.21") || name == "AllReduce";
        for (name, kind) in kinds {
            assert_eq!(number(&kind["ops"]), ITERATIONS, "{name} {what}");
            let bytes = if is_sized(name) { ITERATIONS * BYTES } else { 0 };
            assert_eq!(number(&kind["bytes"]), bytes, "{name} {what}");
            let unsized_ops = if is_sized(name) { 0 } else { ITERATIONS };
            assert_eq!(number(&kind["unsizedOps"]), unsized_ops, "{name} {what}");
            if level != "api" {
                assert_eq!(kind["protocol"], "SIMPLE", "{what}");
            }
        }
        assert!(rank["lag"].is_null() || level == "steps", "{what}");
    }
    let mut measured = BTreeMap::new();
    for rank in ranks {
        for peer in list(&rank["peers"]) {
            let of = |value: &Value| i32::try_from(value.as_i64().unwrap()).unwrap();
            let key = (of(&rank["rank"]), text(&peer["op"]).to_owned(), of(&peer["peer"]));
            measured.insert(key, number(&peer["bytesMeasured"]));
        }
    }
    // Sizes are told from 2.27 on.
    match level {
        "steps" if !version.starts_with("2.21") => assert_eq!(measured, moved(job), "{what}"),
        "steps" => assert_eq!(measured.len(), moved(job).len(), "{what}"),
        _ => assert!(measured.is_empty(), "{what}"),
    }
}

/// Of a recording that is over, and of one that is written meanwhile.
#[test]
fn top_counts_the_same_in_a_recording() {
    for level in ["flow", "steps"] {
        let version = "2.27.5-cu12";
        let Some(mut job) = waiting_job(version, "") else { return };
        let recorder = job.record(&format!("--level {level} --files none"));
        let follows = Top::of_recording(&job.ncclflow, &job.out(), &["-i", "300"]).unwrap();
        job.run();
        recorder.end().unwrap();
        let afterwards = ncclflow_of("top --once --json --recording", &[job.out()]).ok().json();
        for report in [follows.finish().unwrap(), afterwards] {
            assert_counted(&report, version, level, &job);
            let processes = list(&report["processes"]).iter();
            let pids = processes.map(|process| u32::try_from(number(&process["pid"])).unwrap());
            assert_eq!(pids.collect::<Vec<_>>(), job.bed.ready.pids);
            assert_eq!(
                (&report["level"], &report["processes"][0]["nccl"]),
                (&level.into(), &"2.27.5".into())
            );
        }
    }
}

/// Rank 1 stops joining: the others have launched one collective more.
#[test]
fn top_marks_the_rank_that_is_behind() {
    let workload =
        "--mode processes --ranks 3 --iters 9 --channels 1 --ops allreduce --sync --absent 1@3 --timeout 300";
    let watched = |seconds: &str| {
        let job = World::start("2.27.5-cu12", workload)?;
        let top = Top::start(&job.ncclflow, &job.bed.pid_list(), &["-i", seconds]).unwrap();
        job.bed.go().unwrap();
        Some(top.finish().unwrap())
    };
    let marks_it = |report: &Value| {
        let ranks = list(&report["ranks"]);
        let lags: Vec<&Value> = ranks.iter().map(|rank| &rank["lag"]).collect();
        lags.len() == 3 && lags[1]["behind"] == 1 && lags[0].is_null() && lags[2].is_null()
    };
    // By half of this time the ranks must stand where they stay. On a machine that is too slow they get longer.
    let Some(first) = watched("16") else { return };
    if !marks_it(&first) {
        let report = watched("90").unwrap();
        assert!(marks_it(&report), "{report:#}");
    }
}

/// Scrapes until so many ops are there, as the job holds its communicators and does nothing more.
fn scrape_until(address: &str, ops: u64) -> Vec<Sample> {
    let mut samples = Vec::new();
    wait_until("the metrics count all ops", Duration::from_mins(2), || {
        samples = scrape::parse(&scrape::fetch(address).unwrap()).unwrap();
        scrape::count(&samples, "ncclflow_ops_total", &[]) >= ops
    });
    samples
}

#[test]
fn metrics_agree_with_the_program_and_are_open_metrics() {
    if !scrape::can_parse() {
        return;
    }
    for version in libraries() {
        let Some(mut job) = waiting_job(version, "--hold-file {}/hold") else { return };
        let recorder = job.record("--level steps --metrics 0");
        let address = recorder.metrics_address().unwrap();
        assert!(address.starts_with("127.0.0.1:"), "loopback unless told otherwise: {address}");
        let empty = scrape::parse(&scrape::fetch(address).unwrap()).unwrap();
        assert_eq!(scrape::count(&empty, "ncclflow_ops_total", &[]), 0);
        job.bed.go().unwrap();
        let all = u64::from(RANKS) * 4 * ITERATIONS;
        let samples = scrape_until(address, all);
        let sum = |name: &str, labels: &[(&str, &str)]| scrape::count(&samples, name, labels);
        let comm = format!("0x{}", job.bed.ready.comm_hash);
        for rank in 0..RANKS {
            let (number, pid) = (rank.to_string(), job.bed.ready.pids[rank as usize].to_string());
            for coll in ["AllReduce", "AllGather", "Send", "Recv"] {
                let labels = [
                    ("comm", &*comm),
                    ("rank", &*number),
                    ("pid", &*pid),
                    ("coll", coll),
                    ("protocol", "SIMPLE"),
                ];
                assert_eq!(sum("ncclflow_ops_total", &labels), ITERATIONS, "{version} {labels:?}");
                let known = !version.starts_with("2.21") || coll == "AllReduce";
                let bytes = if known { ITERATIONS * BYTES } else { 0 };
                assert_eq!(sum("ncclflow_op_bytes_total", &labels), bytes, "{version} {labels:?}");
            }
        }
        assert_eq!(sum("ncclflow_records_lost_total", &[]), 0);
        assert_eq!(sum("ncclflow_records_undecodable_total", &[]), 0);
        job.touch("hold");
        job.bed.end();
        recorder.end().unwrap();
        let moved = moved(&job);
        for (direction, rank) in
            ["SEND", "RECV"].into_iter().flat_map(|way| (0..RANKS).map(move |rank| (way, rank)))
        {
            let (number, key) = (rank.to_string(), i32::try_from(rank).unwrap());
            let labels = [("rank", &*number), ("direction", direction), ("peer_kind", "NET")];
            let through = moved.iter().filter(|((of, way, _), _)| *of == key && way == direction);
            let bytes: u64 = through.map(|(_, bytes)| bytes).sum();
            if !version.starts_with("2.21") {
                assert_eq!(sum("ncclflow_message_bytes_total", &labels), bytes, "{version} {labels:?}");
            }
            let messages = sum("ncclflow_messages_total", &labels);
            assert!(messages > 0, "{version} {labels:?}");
            let durations = sum("ncclflow_message_duration_seconds_count", &labels);
            assert_eq!(durations, messages, "{version} {labels:?}");
        }
    }
}

/// The connection of whoever watched is closed. `top` must not stay behind, with probes in the job and a core in use.
#[test]
fn top_ends_with_its_terminal() {
    const PROGRAM: &str = r"import fcntl, os, pty, select, struct, sys, termios, time
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('4H', 24, 80, 0, 0))
# It draws when its probes are armed. Behind what it draws it hides the cursor.
drawn, end = b'', time.monotonic() + 60
while b'\x1b[?25l' not in drawn.partition(b'ncclflow top')[2]:
    if not select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
        sys.exit(f'it draws nothing: {drawn}')
    drawn += os.read(terminal, 65536)
os.close(terminal)
end = time.monotonic() + 60
while time.monotonic() < end:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
        sys.exit(f'it ended with {status}' if status else 0)
    time.sleep(0.05)
os.kill(pid, 9)
sys.exit('it is still there')
";
    let Some(job) = waiting_job(VERSIONS[0], "") else { return };
    let mut python = Command::new("python3");
    run(python.args(["-c", PROGRAM]).arg(&job.ncclflow).args(["top", "-p", &job.bed.pid_list()])).ok();
}
