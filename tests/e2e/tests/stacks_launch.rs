//! Call stacks of ops: without `--api` that of the launch, which for a group is in `ncclGroupEnd`, and with it that of the
//! call. Against what the ranks, Python programs on the bed, wrote down themselves.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use ncclflow_e2e::{
    harness::{exported, programs, recorder::Recorder},
    json_lines,
};
use serde_json::Value;
use test_support::{eventually, need_pythons, root};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/launch.py");
const RANKS: usize = 2;
/// Ops of each rank: one alone and two in a group in each round.
const OPS: usize = 3 * 30;
/// Stacks are named within this.
const NAMED_WITHIN: Duration = Duration::from_mins(2);

/// The ranks' processes. They end when this is dropped.
struct Ranks(Vec<(Child, BufReader<ChildStdout>)>);

impl Ranks {
    fn start(python: &Path, nccl: &Path, folder: &Path) -> Option<Self> {
        let (bed, nvml) = (programs::bed_library()?, programs::nvml_double()?);
        let rank = |rank: usize| {
            let mut child = Command::new(python)
                .arg(SCRIPT)
                .args([&bed, nccl, &nvml, folder])
                .args([rank, RANKS].map(|number| number.to_string()))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let out = BufReader::new(child.stdout.take().unwrap());
            (child, out)
        };
        let mut ranks = Self((0..RANKS).map(rank).collect());
        ranks.say("ready");
        Some(ranks)
    }

    /// Waits until all have said so.
    fn say(&mut self, what: &str) {
        for (_, out) in &mut self.0 {
            let mut line = String::new();
            while !line.starts_with(what) {
                line.clear();
                assert_ne!(out.read_line(&mut line).unwrap(), 0, "a rank ended before `{what}`");
            }
        }
    }

    fn pids(&self) -> String {
        self.0.iter().map(|(child, _)| child.id().to_string()).collect::<Vec<_>>().join(",")
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Frames as the program wrote them down: function, file, line.
fn frames(row: &Value) -> Value {
    let frame = |frame: &Value| serde_json::json!([frame["function"], frame["file"], frame["line"]]);
    row["frames"].as_array().unwrap().iter().map(frame).collect()
}

/// What a rank wrote down of its ops, by their numbers.
fn truth(folder: &Path, rank: usize) -> Value {
    let text = fs::read_to_string(folder.join(format!("truth{rank}"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn check(python: &Path, options: &[&str], of: &str) -> Option<()> {
    let (ncclflow, nccl) = (programs::ncclflow()?, programs::nccl("2.27.5-cu12")?);
    let folder = tempfile::tempdir().unwrap();
    let mut ranks = Ranks::start(python, &nccl, folder.path())?;
    let out = folder.path().join("out");
    let options = [&["--strict", "--stacks"], options].concat();
    let recorder = Recorder::start(&ncclflow, &ranks.pids(), &out, &options).unwrap();
    File::create(folder.path().join("go")).unwrap();
    ranks.say("done");
    let truth: Vec<Value> = (0..RANKS).map(|rank| truth(folder.path(), rank)).collect();
    // The ranks' memory is needed until all stacks are named. Whether they are is seen below.
    let _ = eventually(NAMED_WITHIN, || {
        let exported = exported::until_now(&ncclflow, &out);
        let rows: Vec<Value> = json_lines::read(&exported.path().join("stacks.jsonl")).unwrap_or_default();
        let named: HashSet<String> = rows.iter().map(|row| frames(row).to_string()).collect();
        let mut ops = truth.iter().flat_map(|ops| ops.as_object().unwrap().values());
        ops.all(|op| named.contains(&op[of].to_string()))
    });
    drop(ranks);
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success(), "{said}");
    let stacks: Vec<Value> = json_lines::read(&out.join("stacks.jsonl")).unwrap();
    let stacks: HashMap<(u64, &str), &Value> = stacks
        .iter()
        .map(|row| ((row["pid"].as_u64().unwrap(), row["stack"].as_str().unwrap()), row))
        .collect();
    let communicator = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.join("proxy_flow_rank0.jsonl").exists())
        .unwrap();
    for (rank, truth) in truth.iter().enumerate() {
        let ops: Vec<Value> =
            json_lines::read(&communicator.join(format!("proxy_flow_rank{rank}.jsonl"))).unwrap();
        let mut seen = 0;
        for op in &ops {
            let what = || format!("{of} of rank {rank}: {op}");
            let expected = &truth[op["count"].as_u64().unwrap().to_string()][of];
            let stack = op["stack"].as_str().unwrap_or_else(|| panic!("{}", what()));
            let row =
                stacks.get(&(op["pid"].as_u64().unwrap(), stack)).unwrap_or_else(|| panic!("{}", what()));
            assert_eq!((&frames(row), &op["stack_of"]), (expected, &Value::from(of)), "{}", what());
            seen += 1;
        }
        assert_eq!((truth.as_object().unwrap().len(), seen), (OPS, OPS), "{of} of rank {rank}");
    }
    Some(())
}

#[test]
fn ops_have_the_stack_of_their_launch_or_with_calls_that_of_their_call() {
    let (Some(pythons), true) = (need_pythons(), root()) else { return };
    let python = &pythons.last().unwrap().program;
    if check(python, &[], "launch").is_some() {
        check(python, &["--api"], "call");
    }
}
