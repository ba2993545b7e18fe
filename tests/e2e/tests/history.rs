//! `ncclflow history`, and what `dump` says of torch's notes, on Python processes that have a stand-in of torch's libraries loaded
//! (`tests/torch-double`): against what was put into their rings, and the frames that Python itself has.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::SystemTime,
};

use ncclflow_e2e::harness::programs;
use serde_json::{Value, json};
use test_support::{TorchJob, need_pythons, root, tool, torch_double};

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
        let command = json!([
            "record",
            7,
            "3",
            "tensor_parallel",
            seq,
            0,
            seq,
            name,
            created,
            false,
            "6 1 1024",
            "6 1 1024"
        ]);
        let frames: Vec<Value> = serde_json::from_value(self.ask(&command)).unwrap();
        let frames = frames
            .into_iter()
            .map(|frame| (frame["name"].clone(), frame["filename"].clone(), frame["line"].clone()));
        let frames: Vec<Value> = frames
            .map(|(function, file, line)| json!({ "function": function, "file": file, "line": line }))
            .collect();
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

fn run(ncclflow: &Path, arguments: &[&str]) -> (Output, String) {
    let output = Command::new(ncclflow).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

fn pids(ranks: &[Rank]) -> String {
    ranks.iter().map(|rank| rank.job.pid().to_string()).collect::<Vec<_>>().join(",")
}

/// What these tests need: ncclflow and a Python.
fn needed() -> Option<(PathBuf, PathBuf)> {
    if !root() {
        return None;
    }
    Some((programs::ncclflow()?, need_pythons()?.pop()?.program))
}

/// The history of these processes as JSON, with the exit code.
fn history(ncclflow: &Path, pids: &str) -> (Value, Option<i32>) {
    let (output, text) = run(ncclflow, &["history", "-p", pids, "--json"]);
    assert!(!text.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (serde_json::from_str(&text).unwrap(), output.status.code())
}

#[test]
fn what_ranks_called_is_told_as_they_called_it_and_where_they_differ() {
    let Some((ncclflow, python)) = needed() else { return };
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

    let (all, code) = history(&ncclflow, &pids(&ranks));
    assert_eq!((&all["verdict"]["state"], code), (&json!("agree"), Some(0)), "{all:#}");
    for (number, (rank, process)) in (0..).zip(ranks.iter().zip(all["processes"].as_array().unwrap())) {
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
    let group = all["groups"]
        .as_array()
        .unwrap()
        .iter()
        .find(|group| group["description"] == "tensor_parallel")
        .unwrap();
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
    let write = ["history", "-p", &pids(&ranks), "-f", "flight-recorder", "-o", prefix.to_str().unwrap()];
    let (output, _) = run(&ncclflow, &write);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let script = "import json, pickle, sys; print(json.dumps([pickle.load(open(sys.argv[1] + str(rank), 'rb')) for rank in range(3)]))";
    let read = Command::new(&python).args(["-I", "-c", script]).arg(&prefix).output().unwrap();
    let files: Value = serde_json::from_slice(&read.stdout).unwrap();
    for (rank, file) in ranks.iter().zip(files.as_array().unwrap()) {
        assert_eq!(
            (file["entries"].as_array().unwrap().len(), &file["pg_config"]["3"]["ranks"]),
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
    let (late, code) = history(&ncclflow, &pids(&ranks));
    assert_eq!((&late["verdict"]["state"], code), (&json!("waiting"), Some(5)));
    let sentence = late["verdict"]["sentence"].as_str().unwrap();
    let expected = "\"tensor_parallel\" (3): rank 2 has not called collective 13, which ranks 0, 1 called 1";
    let place = format!("all_gather [1024] Float (job.py:{line})");
    assert!(sentence.starts_with(expected) && sentence.ends_with(&place), "{sentence}");
    let (_, text) = run(&ncclflow, &["history", "-p", &pids(&ranks), "--last", "2"]);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.starts_with(expected), "{text}");
    assert!(
        words.contains("12 all_reduce [1024] Float at job.py:") && words.contains("scheduled on ranks 0, 1"),
        "{text}"
    );
    assert!(!words.contains(" 11 all_reduce"), "{text}");

    // The dump of the same processes says it beside its verdict.
    let (_, dump) = run(&ncclflow, &["dump", "-p", &pids(&ranks), "--json", "--interval", "0.05"]);
    let dump: Value = serde_json::from_str(&dump).unwrap();
    let notes = dump["torchNotes"][0].as_str().unwrap();
    assert!(
        notes.starts_with("torch's flight recorder, the latest completion that torch noticed is "),
        "{notes}"
    );
    assert!(notes.contains("rank 2 has not called collective 13"), "{notes}");

    // It calls something else.
    ranks[2].call(13, "broadcast", created + 2 * SECOND);
    let (differ, code) = history(&ncclflow, &pids(&ranks));
    assert_eq!((&differ["verdict"]["state"], code), (&json!("differ"), Some(3)));
    let difference = &differ["groups"].as_array().unwrap().iter().find(|group| group["name"] == "3").unwrap()
        ["verdict"]["difference"];
    assert_eq!(difference["collectiveSeqId"], 13);
    let calls: Vec<&Value> =
        difference["calls"].as_array().unwrap().iter().map(|call| &call["ranks"]).collect();
    assert_eq!(calls, [&json!([0, 1]), &json!([2])]);

    // One group, by its name; and none of that name.
    let chosen = run(&ncclflow, &["history", "-p", &pids(&ranks), "--json", "--comm", "tensor_parallel"]).1;
    let chosen: Value = serde_json::from_str(&chosen).unwrap();
    assert_eq!(chosen["groups"].as_array().unwrap().len(), 1);
    let (output, _) = run(&ncclflow, &["history", "-p", &pids(&ranks), "--comm", "data_parallel"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("no process group is called `data_parallel`")
            && said.contains("\"tensor_parallel\" (3)"),
        "{said}"
    );
}

/// The oldest layouts, with the other kind of strings; and those of 2.15, whose `nccl` keeps its ring in libtorch_cpu.so.
#[test]
fn other_versions_are_read_too() {
    let Some((ncclflow, python)) = needed() else { return };
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
        let (_, text) = run(&ncclflow, &["history", "--all", "--json"]);
        let all: Value = serde_json::from_str(&text).unwrap();
        let own = |process: &&Value| process["pid"] == rank.job.pid();
        let process = all["processes"].as_array().unwrap().iter().find(own).unwrap();
        let from = if minor == 15 { "torch" } else { "RANK" };
        assert_eq!((&process["rank"], &process["rankFrom"]), (&json!(1), &json!(from)));
        let ring = &process["notes"]["rings"][0];
        assert_eq!(ring["backend"], backend, "{process:#}");
        rank.check(&ring["entries"]);
    }
}

#[test]
fn what_cannot_be_read_is_said_with_what_to_do() {
    let Some((ncclflow, python)) = needed() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = torch_double(folder.path(), 6, "libtorch_cuda.so") else { return };
    let said = |pid: u32| {
        let (output, _) = run(&ncclflow, &["history", "-p", &pid.to_string()]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let off = Rank::start(&python, &[&library], &[("TORCH_FR_BUFFER_SIZE", "0")]);
    let text = said(off.job.pid());
    assert!(
        text.contains("flight recorder is off") && text.contains("TORCH_NCCL_TRACE_BUFFER_SIZE=2000"),
        "{text}"
    );

    let mut other = Rank::start(&python, &[&library], &[]);
    other.call(1, "all_reduce", now());
    let version = folder.path().join("torch/version.py");
    fs::write(&version, "__version__ = '2.99.1'\n").unwrap();
    let text = said(other.job.pid());
    assert!(text.contains("the layouts of torch 2.99 are not known"), "{text}");
    // Layouts of another version do not fit, and nothing is made up.
    fs::write(&version, "__version__ = '2.11.0'\n").unwrap();
    let text = said(other.job.pid());
    assert!(text.contains("it has no flight recorder") || text.contains("contradicts itself"), "{text}");
    fs::remove_file(&version).unwrap();
    assert!(said(other.job.pid()).contains("`version.py` beside `"));

    let mut sleep = Command::new("sleep").arg("60").spawn().unwrap();
    let text = said(sleep.id());
    assert!(text.contains("it has not loaded torch"), "{text}");
    sleep.kill().unwrap();
    sleep.wait().unwrap();
}
