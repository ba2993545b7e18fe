//! Call stacks of ops: without `--api` that of the launch, which for a group is in `ncclGroupEnd`, and with it that of the
//! call. Against what the ranks, Python programs on the bed, wrote down themselves.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{HashMap, HashSet};

use ncclflow_e2e::{harness::prelude::*, json_lines};
use test_support::need_pythons;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/launch.py");
const RANKS: u32 = 2;
/// Ops of each rank: one alone and two in a group in each round.
const OPS: usize = 3 * 30;
/// Stacks are named within this.
const NAMED_WITHIN: Duration = Duration::from_mins(2);

fn start(python: &Path, nccl: &Path, folder: &Path) -> Option<Vec<Killed>> {
    let rank = |rank: u32| {
        let command = programs::python_rank(python, SCRIPT, nccl, folder, [rank, RANKS]);
        command.map(|mut command| Killed::start(&mut command).unwrap())
    };
    let mut ranks = (0..RANKS).map(rank).collect::<Option<Vec<Killed>>>()?;
    wait_for_word(&mut ranks, "ready");
    Some(ranks)
}

/// Waits until all have said so.
fn wait_for_word(ranks: &mut [Killed], word: &str) {
    for rank in ranks {
        while !rank.line().unwrap().starts_with(word) {}
    }
}

/// Frames as the program wrote them down: function, file, line.
fn frames(row: &Value) -> Value {
    let frame = |frame: &Value| json!([frame["function"], frame["file"], frame["line"]]);
    list(&row["frames"]).iter().map(frame).collect()
}

fn check(python: &Path, options: &[&str], of: &str) -> Option<()> {
    let (ncclflow, nccl) = (programs::ncclflow()?, programs::nccl("2.27.5-cu12")?);
    let folder = tempfile::tempdir().unwrap();
    let mut ranks = start(python, &nccl, folder.path())?;
    let out = folder.path().join("out");
    let options = [&["--strict", "--stacks"], options].concat();
    let recorder = Recorder::start(&ncclflow, &pid_list(&ranks), &out, &options).unwrap();
    File::create(folder.path().join("go")).unwrap();
    wait_for_word(&mut ranks, "done");
    // What each rank wrote down of its ops, by their numbers.
    let truth: Vec<Value> =
        (0..RANKS).map(|rank| read_json(&folder.path().join(format!("truth{rank}")))).collect();
    // The ranks' memory is needed until all stacks are named. Whether they are is seen below.
    let _ = eventually(NAMED_WITHIN, || {
        let exported = exported::until_now(&out);
        let rows: Vec<Value> = json_lines::read(&exported.path().join("stacks.jsonl")).unwrap_or_default();
        let named: HashSet<String> = rows.iter().map(|row| frames(row).to_string()).collect();
        let mut ops = truth.iter().flat_map(|ops| ops.as_object().unwrap().values());
        ops.all(|op| named.contains(&op[of].to_string()))
    });
    drop(ranks);
    recorder.end().unwrap();
    let rows = read_lines(&out.join("stacks.jsonl"));
    let key = |row: &Value| (number(&row["pid"]), text(&row["stack"]).to_owned());
    let stacks: HashMap<(u64, String), &Value> = rows.iter().map(|row| (key(row), row)).collect();
    let mut folders = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
    let communicator = folders.find(|path| path.join("proxy_flow_rank0.jsonl").exists()).unwrap();
    for (rank, truth) in truth.iter().enumerate() {
        let ops = read_lines(&communicator.join(format!("proxy_flow_rank{rank}.jsonl")));
        let seen = ops.len();
        for op in &ops {
            let what = || format!("{of} of rank {rank}: {op}");
            let expected = &truth[number(&op["count"]).to_string()][of];
            let row = stacks.get(&key(op)).unwrap_or_else(|| panic!("{}", what()));
            assert_eq!((&frames(row), &op["stack_of"]), (expected, &Value::from(of)), "{}", what());
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
