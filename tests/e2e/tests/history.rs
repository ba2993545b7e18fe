//! `ncclflow history`, and what `dump` says of torch's notes, on Python processes that have a stand-in of torch's libraries loaded
//! (`tests/torch-double`): against what was put into their rings, and the frames that Python itself has.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::SystemTime;

use ncclflow_e2e::harness::{node::sleeper, prelude::*};
use test_support::{TorchJob, need_pythons, tool, torch_double};

const SECOND: u64 = 1_000_000_000;
const RANKS: u64 = 3;

fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_nanos()).unwrap()
}

/// A rank, and the entries that its ring has to have.
struct Rank {
    job: TorchJob,
    entries: Vec<Value>,
}

impl Rank {
    fn start(python: &Path, libraries: &[&Path], environment: &[(&str, &str)]) -> Self {
        Self { job: TorchJob::start(python, libraries, environment), entries: Vec::new() }
    }

    fn ask(&mut self, command: &Value) -> Value {
        serde_json::from_str(&self.job.ask(&command.to_string())).unwrap()
    }

    /// A collective of 1,024 floats, called at `created`.
    fn call(&mut self, seq: u64, function: &str, created: u64) {
        let id = self.entries.len();
        let name = format!("nccl:{function}");
        let size = "6 1 1024";
        let command =
            json!(["record", 7, "3", "tensor_parallel", seq, 0, seq, name, created, false, size, size]);
        let frame = |frame: &Value| json!({ "function": frame["name"], "file": frame["filename"], "line": frame["line"] });
        let frames: Vec<Value> = list(&self.ask(&command)).iter().map(frame).collect();
        self.entries.push(json!({
            "recordId": id, "pgId": 7, "processGroup": ["3", "tensor_parallel"], "collectiveSeqId": seq, "p2pSeqId": 0,
            "opId": seq, "profilingName": name, "inputSizes": [[1024]], "inputDtypes": ["Float"], "outputSizes": [[1024]],
            "outputDtypes": ["Float"], "state": "scheduled", "timeCreatedNs": created, "timeDiscoveredStartedNs": null,
            "timeDiscoveredCompletedNs": null, "durationMs": null, "isP2p": false, "retired": false, "frames": frames,
        }));
    }

    fn complete(&mut self, id: usize, at: u64) {
        self.ask(&json!(["notice", id, 0, at, -1, true]));
        let entry = &mut self.entries[id];
        entry["state"] = json!("completed");
        entry["timeDiscoveredCompletedNs"] = json!(at);
        entry["retired"] = json!(true);
    }

    /// Whether these are its entries. Names of functions that CPython qualifies, threads and timeouts are not known here.
    fn check(&self, entries: &Value) {
        let mut entries = entries.clone();
        for entry in entries.as_array_mut().unwrap() {
            for key in ["threadId", "threadName", "timeoutMs"] {
                entry.as_object_mut().unwrap().remove(key).unwrap();
            }
            for frame in entry["frames"].as_array_mut().unwrap() {
                frame.as_object_mut().unwrap().remove("qualname");
            }
        }
        assert_eq!(entries, Value::Array(self.entries.clone()));
    }
}

fn pids(ranks: &[Rank]) -> String {
    ranks.iter().map(|rank| rank.job.pid().to_string()).collect::<Vec<_>>().join(",")
}

/// What these tests need: ncclflow, root and a Python, which this gives.
fn python() -> Option<PathBuf> {
    programs::tracer()?;
    Some(need_pythons()?.pop()?.program)
}

/// The history of these processes as JSON, with the exit code.
fn history(pids: &str) -> (Value, Option<i32>) {
    let ran = ncclflow(&format!("history -p {pids} --json"));
    (ran.json(), ran.code())
}

#[test]
fn what_ranks_called_is_told_as_they_called_it_and_where_they_differ() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = torch_double(folder.path(), 11, "libtorch_cuda.so") else { return };
    let begin = now() - 300 * SECOND;
    let rank = |number: u64| {
        let number = number.to_string();
        Rank::start(&python, &[&library], &[("RANK", &number), ("WORLD_SIZE", "3")])
    };
    let mut ranks: Vec<Rank> = (0..RANKS).map(rank).collect();
    for (number, rank) in (0..).zip(&mut ranks) {
        rank.ask(&json!(["group", "0", "default_pg", "0 1 2"]));
        rank.ask(&json!(["group", "3", "tensor_parallel", "0 1 2"]));
        rank.ask(&json!(["library", "2.28.9", number]));
        for seq in 1..=12 {
            rank.call(seq, "all_reduce", begin + seq * SECOND + number * 1000);
            rank.complete(usize::try_from(seq).unwrap() - 1, begin + seq * SECOND + 500_000 + number * 1000);
        }
        rank.ask(&json!(["status", 7, 12, -1, 12, "ALLREDUCE", 1024]));
    }

    let (all, code) = history(&pids(&ranks));
    assert_eq!((&all["verdict"]["state"], code), (&json!("agree"), Some(0)), "{all:#}");
    for (number, (rank, process)) in (0..).zip(ranks.iter().zip(list(&all["processes"]))) {
        assert_eq!((&process["rank"], &process["rankFrom"]), (&json!(number), &json!("RANK")), "{process:#}");
        let notes = &process["notes"];
        assert_eq!(notes["torch"], "2.11.0+cu128");
        let ring = &notes["rings"][0];
        let head = ["backend", "enabled", "maxEntries", "recorded", "libraryVersion", "torn"]
            .map(|key| ring[key].clone());
        assert_eq!(json!(head), json!(["nccl", true, 2000, 12, "2.28.9", 0]));
        rank.check(&ring["entries"]);
        let noticed = begin + 12 * SECOND + 500_000 + number * 1000;
        assert_eq!(ring["noticedNs"], noticed);
    }
    let group = list(&all["groups"]).iter().find(|group| group["description"] == "tensor_parallel").unwrap();
    assert_eq!((&group["ranks"], &group["backend"]), (&json!([0, 1, 2]), &json!("nccl")));
    let status = |work: &str| group["members"][1]["status"][work].clone();
    assert_eq!(
        status("lastEnqueued"),
        json!({ "seq": 12, "name": "ALLREDUCE", "elementsIn": 1024, "elementsOut": 1024 })
    );
    assert_eq!(status("lastStarted")["seq"], -1);
    assert_eq!(group["verdict"]["completedLast"]["ranks"], json!([2]));

    // The same as torch's own files.
    let prefix = folder.path().join("trace_");
    ncclflow_of(&format!("history -p {} -f flight-recorder -o", pids(&ranks)), &[&prefix]).ok();
    let script = "import json, pickle, sys; print(json.dumps([pickle.load(open(sys.argv[1] + str(rank), 'rb')) for rank in range(3)]))";
    let files = run(Command::new(&python).args(["-I", "-c", script]).arg(&prefix)).ok().json();
    for (rank, file) in ranks.iter().zip(list(&files)) {
        assert_eq!(
            (list(&file["entries"]).len(), &file["pg_config"]["3"]["ranks"]),
            (12, &json!("[0, 1, 2]"))
        );
        let (last, own) = (&file["entries"][11], &rank.entries[11]);
        let keys = [
            ("record_id", "recordId"),
            ("time_created_ns", "timeCreatedNs"),
            ("input_sizes", "inputSizes"),
            ("state", "state"),
        ];
        for (theirs, ours) in keys {
            assert_eq!(last[theirs], own[ours]);
        }
        assert_eq!(
            (&last["process_group"], &last["frames"][0]["line"]),
            (&json!(["3", "tensor_parallel"]), &own["frames"][0]["line"])
        );
        assert_eq!(file["pg_status"]["7"]["last_completed_collective"], 12);
    }

    // Ranks 0 and 1 go on 120 s before, rank 2 does not.
    let created = now() - 120 * SECOND;
    for rank in &mut ranks[..2] {
        rank.call(13, "all_gather", created);
    }
    let line = ranks[0].entries[12]["frames"][0]["line"].clone();
    let (late, code) = history(&pids(&ranks));
    assert_eq!((&late["verdict"]["state"], code), (&json!("waiting"), Some(5)));
    let sentence = text(&late["verdict"]["sentence"]);
    let expected = "\"tensor_parallel\" (3): rank 2 has not called collective 13, which ranks 0, 1 called 1";
    let place = format!("all_gather [1024] Float (job.py:{line})");
    assert!(sentence.starts_with(expected) && sentence.ends_with(&place), "{sentence}");
    let said = ncclflow(&format!("history -p {} --last 2", pids(&ranks))).stdout;
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.starts_with(expected), "{said}");
    assert!(
        words.contains("12 all_reduce [1024] Float at job.py:") && words.contains("scheduled on ranks 0, 1"),
        "{said}"
    );
    assert!(!words.contains(" 11 all_reduce"), "{said}");

    // The dump of the same processes says it beside its verdict.
    let dump = ncclflow(&format!("dump -p {} --json --interval 0.05", pids(&ranks))).json();
    let notes = text(&dump["torchNotes"][0]);
    assert!(
        notes.starts_with("torch's flight recorder, the latest completion that torch noticed is "),
        "{notes}"
    );
    assert!(notes.contains("rank 2 has not called collective 13"), "{notes}");

    // It calls something else.
    ranks[2].call(13, "broadcast", created + 2 * SECOND);
    let (differ, code) = history(&pids(&ranks));
    assert_eq!((&differ["verdict"]["state"], code), (&json!("differ"), Some(3)));
    let group = list(&differ["groups"]).iter().find(|group| group["name"] == "3").unwrap();
    let difference = &group["verdict"]["difference"];
    assert_eq!(difference["collectiveSeqId"], 13);
    let calls: Vec<&Value> = list(&difference["calls"]).iter().map(|call| &call["ranks"]).collect();
    assert_eq!(calls, [&json!([0, 1]), &json!([2])]);

    // One group, by its name; and none of that name.
    let of_group = |name: &str| ncclflow(&format!("history -p {} --json --comm {name}", pids(&ranks)));
    assert_eq!(list(&of_group("tensor_parallel").json()["groups"]).len(), 1);
    let words = ["no process group is called `data_parallel`", "\"tensor_parallel\" (3)"];
    of_group("data_parallel").refused(&words);
}

/// The oldest layouts, with the other kind of strings; and those of 2.15, whose `nccl` keeps its ring in libtorch_cpu.so.
#[test]
fn other_versions_are_read_too() {
    let Some(python) = python() else { return };
    for (minor, name, backend) in [(5, "libtorch_cuda.so", "nccl"), (15, "libtorch_cpu.so", "nccl2")] {
        let folder = tempfile::tempdir().unwrap();
        let Some(library) = torch_double(folder.path(), minor, name) else { return };
        // With NCCL, so that --all sees it.
        let nccl = folder.path().join("libnccl.so.2");
        let Some(mut compiler) = tool("g++", "CXX", "g++") else { return };
        fs::write(folder.path().join("empty.cpp"), "int nothing;").unwrap();
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&nccl).arg(folder.path().join("empty.cpp"));
        assert!(compiler.status().unwrap().success());
        let mut rank = Rank::start(&python, &[&nccl, &library], &[("RANK", "1"), ("WORLD_SIZE", "2")]);
        rank.ask(&json!(["group", "3", "tensor_parallel", "0 1"]));
        rank.ask(&json!(["library", "2.30.7", 1]));
        for seq in 1..=5 {
            rank.call(seq, "all_reduce", now());
        }
        let all = ncclflow("history --all --json").json();
        let own = |process: &&Value| process["pid"] == rank.job.pid();
        let process = list(&all["processes"]).iter().find(own).unwrap();
        let from = if minor == 15 { "torch" } else { "RANK" };
        assert_eq!((&process["rank"], &process["rankFrom"]), (&json!(1), &json!(from)));
        let ring = &process["notes"]["rings"][0];
        assert_eq!(ring["backend"], backend, "{process:#}");
        rank.check(&ring["entries"]);
    }
}

#[test]
fn what_cannot_be_read_is_said_with_what_to_do() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = torch_double(folder.path(), 6, "libtorch_cuda.so") else { return };
    let refused = |pid: u32, words: &[&str]| ncclflow(&format!("history -p {pid}")).refused(words);
    let off = Rank::start(&python, &[&library], &[("TORCH_FR_BUFFER_SIZE", "0")]);
    refused(off.job.pid(), &["flight recorder is off", "TORCH_NCCL_TRACE_BUFFER_SIZE=2000"]);

    let mut other = Rank::start(&python, &[&library], &[]);
    other.call(1, "all_reduce", now());
    let version = folder.path().join("torch/version.py");
    fs::write(&version, "__version__ = '2.99.1'\n").unwrap();
    refused(other.job.pid(), &["the layouts of torch 2.99 are not known"]);
    // Layouts of another version do not fit, and nothing is made up.
    fs::write(&version, "__version__ = '2.11.0'\n").unwrap();
    refused(other.job.pid(), &["it has no flight recorder"]);
    fs::remove_file(&version).unwrap();
    refused(other.job.pid(), &["`version.py` beside `"]);

    refused(sleeper().pid(), &["torch is not loaded"]);
}
