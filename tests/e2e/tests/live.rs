//! `top` and the metrics of `record`, against what the program did: its ops and bytes, and the bytes
//! that went through each slot.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, fs::File, path::Path, process::Command, time::Duration};

use ncclflow_e2e::{
    harness::{
        bed::Bed,
        job::VERSIONS,
        programs,
        recorder::Recorder,
        scrape::{self, Sample},
        top::Top,
    },
    truth::transfer_log::TransferLog,
};
use serde_json::Value;
use test_support::{root, wait_until};

const RANKS: u32 = 3;
const BYTES: u64 = 65536;
const ITERATIONS: u64 = 5;

/// A bed that waits, with a log of its transfers. `None` if the machine lacks something.
fn waiting_bed(version: &str, more: &[&str]) -> Option<(tempfile::TempDir, Bed)> {
    let (bed, library) = (programs::bed()?, programs::nccl(version)?);
    if !root() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    let (ranks, bytes, iters) = (RANKS.to_string(), BYTES.to_string(), ITERATIONS.to_string());
    let mut arguments: Vec<String> =
        ["--mode", "processes", "--ranks", &ranks, "--bytes", &bytes, "--iters", &iters]
            .map(str::to_owned)
            .to_vec();
    arguments.extend(["--channels", "2", "--ops", "allreduce,allgather,sendrecv"].map(str::to_owned));
    arguments.extend(["--transfer-log".to_owned(), format!("{path}/moved")]);
    arguments.extend(more.iter().map(|argument| argument.replace("{}", &path)));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let bed = Bed::start(&bed, &library, folder.path(), &arguments).unwrap();
    Some((folder, bed))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// What went through the slots, by rank, direction and peer.
fn moved(folder: &tempfile::TempDir) -> BTreeMap<(i32, String, i32), u64> {
    let mut moved = BTreeMap::new();
    let log = TransferLog::read(&folder.path().join("moved"), RANKS).unwrap();
    for transfer in log.ranks.values().flatten() {
        let direction = format!("{:?}", transfer.direction).to_uppercase();
        *moved.entry((transfer.rank, direction, transfer.peer)).or_insert(0) += transfer.wire_bytes;
    }
    moved
}

#[test]
fn top_counts_the_ops_and_bytes_that_the_program_asked_for() {
    let Some(ncclflow) = programs::ncclflow() else { return };
    for version in VERSIONS {
        for level in ["api", "flow", "steps"] {
            let Some((folder, mut bed)) = waiting_bed(version, &[]) else { return };
            let top = Top::start(&ncclflow, &bed.pid_list(), &["-i", "300", "--level", level]).unwrap();
            bed.go().unwrap();
            assert!(bed.finish().unwrap().1.ok);
            let report = top.finish().unwrap();
            assert_counted(&report, version, level, &bed, &folder);
        }
    }
}

/// The report has what the program did.
fn assert_counted(report: &Value, version: &str, level: &str, bed: &Bed, folder: &tempfile::TempDir) {
    let what = format!("{version} {level}: {report:#}");
    assert_eq!(report["records_lost"], 0, "{what}");
    let ranks = report["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), usize::try_from(RANKS).unwrap(), "{what}");
    for (at, rank) in ranks.iter().enumerate() {
        assert_eq!(number(&rank["rank"]), at as u64, "{what}");
        assert_eq!(number(&rank["pid"]), u64::from(bed.ready.pids[at]), "{what}");
        let kinds: BTreeMap<&str, &Value> = rank["kinds"]
            .as_array()
            .unwrap()
            .iter()
            .map(|kind| (kind["coll"].as_str().unwrap(), kind))
            .collect();
        let names: Vec<&str> = kinds.keys().copied().collect();
        assert_eq!(names, ["AllGather", "AllReduce", "Recv", "Send"], "{what}");
        // Before 2.23, what an op is called with is known of reductions only.
        let is_sized = |name: &str| level == "api" || !version.starts_with("2.21") || name == "AllReduce";
        for (name, kind) in kinds {
            assert_eq!(number(&kind["ops"]), ITERATIONS, "{name} {what}");
            let bytes = if is_sized(name) { ITERATIONS * BYTES } else { 0 };
            assert_eq!(number(&kind["bytes"]), bytes, "{name} {what}");
            let unsized_ops = if is_sized(name) { 0 } else { ITERATIONS };
            assert_eq!(number(&kind["unsized_ops"]), unsized_ops, "{name} {what}");
            if level != "api" {
                assert_eq!(kind["protocol"], "SIMPLE", "{what}");
            }
        }
        assert!(rank["lag"].is_null() || level == "steps", "{what}");
    }
    let mut measured = BTreeMap::new();
    for rank in ranks {
        for peer in rank["peers"].as_array().unwrap() {
            let of = |key: &str| i32::try_from(peer[key].as_i64().unwrap()).unwrap();
            let rank = i32::try_from(rank["rank"].as_i64().unwrap()).unwrap();
            let key = (rank, peer["op"].as_str().unwrap().to_owned(), of("peer"));
            measured.insert(key, number(&peer["bytes_measured"]));
        }
    }
    // Sizes are told from 2.27 on.
    match level {
        "steps" if !version.starts_with("2.21") => assert_eq!(measured, moved(folder), "{what}"),
        "steps" => assert_eq!(measured.len(), moved(folder).len(), "{what}"),
        _ => assert!(measured.is_empty(), "{what}"),
    }
}

/// The report of `top --recording` of one that is over.
fn top_of(recording: &Path) -> Value {
    let mut top = Command::new(programs::ncclflow().unwrap());
    top.args(["top", "--once", "--json", "--recording"]).arg(recording);
    let top = top.output().unwrap();
    assert!(top.status.success(), "{}", String::from_utf8_lossy(&top.stderr));
    serde_json::from_slice(&top.stdout).unwrap()
}

/// Of a recording that is over, and of one that is written meanwhile.
#[test]
fn top_counts_the_same_in_a_recording() {
    let Some(ncclflow) = programs::ncclflow() else { return };
    for level in ["flow", "steps"] {
        let version = "2.27.5-cu12";
        let Some((folder, mut bed)) = waiting_bed(version, &[]) else { return };
        let out = folder.path().join("out");
        let options = ["--level", level, "--files", "none"];
        let recorder = Recorder::start(&ncclflow, &bed.pid_list(), &out, &options).unwrap();
        let follows = Top::of_recording(&ncclflow, &out, &["-i", "300"]).unwrap();
        bed.go().unwrap();
        assert!(bed.finish().unwrap().1.ok);
        let (status, said) = recorder.finish().unwrap();
        assert!(status.success(), "{said}");
        for report in [follows.finish().unwrap(), top_of(&out)] {
            assert_counted(&report, version, level, &bed, &folder);
            let pids: Vec<u64> = report["processes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|process| number(&process["pid"]))
                .collect();
            assert_eq!(pids, bed.ready.pids.iter().map(|pid| u64::from(*pid)).collect::<Vec<_>>());
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
    let Some(ncclflow) = programs::ncclflow() else { return };
    let Some((bed_program, library)) = programs::bed().zip(programs::nccl("2.27.5-cu12")) else { return };
    if !root() {
        return;
    }
    let arguments =
        "--mode processes --ranks 3 --iters 9 --channels 1 --ops allreduce --sync --absent 1@3 --timeout 300";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let watched = |seconds: &str| {
        let folder = tempfile::tempdir().unwrap();
        let bed = Bed::start(&bed_program, &library, folder.path(), &arguments).unwrap();
        let top = Top::start(&ncclflow, &bed.pid_list(), &["-i", seconds]).unwrap();
        bed.go().unwrap();
        top.finish().unwrap()
    };
    let marks_it = |report: &Value| {
        let ranks = report["ranks"].as_array().unwrap();
        let lags: Vec<&Value> = ranks.iter().map(|rank| &rank["lag"]).collect();
        lags.len() == 3 && lags[1]["behind"] == 1 && lags[0].is_null() && lags[2].is_null()
    };
    // By half of this time the ranks must stand where they stay. On a machine that is too slow they get longer.
    if !marks_it(&watched("16")) {
        let report = watched("90");
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
    let Some(ncclflow) = programs::ncclflow() else { return };
    if !scrape::can_parse() {
        return;
    }
    for version in VERSIONS {
        let Some((folder, mut bed)) = waiting_bed(version, &["--hold-file", "{}/hold"]) else { return };
        let arguments = ["--level", "steps", "--metrics", "0"];
        let out = folder.path().join("out");
        let recorder = Recorder::start(&ncclflow, &bed.pid_list(), &out, &arguments).unwrap();
        let (_, address) = recorder.said().split_once("metrics at http://").unwrap();
        let (address, _) = address.split_once("/metrics").unwrap();
        assert!(address.starts_with("127.0.0.1:"), "loopback unless told otherwise: {address}");
        let empty = scrape::parse(&scrape::fetch(address).unwrap()).unwrap();
        assert_eq!(scrape::count(&empty, "ncclflow_ops_total", &[]), 0);
        bed.go().unwrap();
        let all = u64::from(RANKS) * 4 * ITERATIONS;
        let samples = scrape_until(address, all);
        let sum = |name: &str, labels: &[(&str, &str)]| scrape::count(&samples, name, labels);
        let comm = format!("0x{}", bed.ready.comm_hash);
        for rank in 0..RANKS {
            let (number, pid) = (rank.to_string(), bed.ready.pids[rank as usize].to_string());
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
        File::create(folder.path().join("hold")).unwrap();
        assert!(bed.finish().unwrap().1.ok);
        let (status, words) = recorder.finish().unwrap();
        assert!(status.success(), "{words}");
        let moved = moved(&folder);
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
    let (Some(ncclflow), Some((_folder, bed))) = (programs::ncclflow(), waiting_bed(VERSIONS[0], &[])) else {
        return;
    };
    let mut python = Command::new("python3");
    let ran =
        python.args(["-c", PROGRAM]).arg(&ncclflow).args(["top", "-p", &bed.pid_list()]).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
