//! What torch has noted, in the verdict of `ncclflow dump`: Python ranks of a job on the bed that have a stand-in of torch's
//! libraries loaded (`tests/torch-double`), against what was put into their rings.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::SystemTime;

use ncclflow_e2e::harness::{dumper::Dump, prelude::*};
use test_support::{need_pythons, torch_double};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dump_torch/rank.py");
const SECOND: u64 = 1_000_000_000;
const RANKS: u32 = 3;

struct Rank(Killed);

impl Rank {
    fn start(python: &Path, nccl: &Path, folder: &Path, double: &Path, rank: u32) -> Option<Self> {
        let mut command = programs::python_rank(python, SCRIPT, nccl, folder, [rank, RANKS])?;
        Some(Self(Killed::start(command.arg(double)).unwrap()))
    }

    fn ask(&mut self, command: &Value) -> Value {
        serde_json::from_str(&self.0.ask(&command.to_string()).unwrap()).unwrap()
    }

    /// A collective of 1,024 floats; gives the line of code that called it.
    fn call(&mut self, seq: u64, function: &str, created: u64) -> u64 {
        let name = format!("nccl:{function}");
        let size = "6 1 1024";
        let command =
            json!(["record", 7, "3", "tensor_parallel", seq, 0, seq, name, created, false, size, size]);
        self.ask(&command)[0]["line"].as_u64().unwrap()
    }
}

fn dump(ncclflow: &Path, ranks: &[&Rank]) -> Dump {
    let pids = pid_list(ranks.iter().map(|rank| &rank.0));
    Dump::take_answered(ncclflow, &pids, &["--interval", "0.3"], &[]).unwrap()
}

/// The only communicator: it must be judged so, and the evidence must have these words.
#[track_caller]
fn check(dump: &Dump, state: &str, culprits: &[u32], words: &[&str]) {
    let [communicator] = &*dump.communicators else { panic!("not one communicator: {}", dump.text) };
    let verdict = &communicator.verdict;
    assert_eq!((&*verdict.state, &*verdict.culprits), (state, culprits), "{verdict:#?}");
    for words in words {
        assert!(verdict.evidence.iter().any(|one| one.contains(words)), "`{words}`: {verdict:#?}");
    }
}

/// All-to-alls are sends and receives, which NCCL's counters leave out: what they are called in torch's notes decides.
#[test]
fn the_rank_that_is_behind_in_torchs_notes_is_named_where_nccl_cannot_tell() {
    if !root() {
        return;
    }
    let (Some(ncclflow), Some(nccl)) = (programs::ncclflow(), programs::nccl("2.28.9-cu13")) else { return };
    let Some(python) = need_pythons().and_then(|mut all| all.pop()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(double) = torch_double(folder.path(), 11, "libtorch_cuda.so") else { return };
    let start = |rank| Rank::start(&python.program, &nccl, folder.path(), &double, rank);
    let Some(mut ranks) = (0..RANKS).map(start).collect::<Option<Vec<Rank>>>() else { return };

    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let begin = u64::try_from(now.as_nanos()).unwrap() - 60 * SECOND;
    for rank in &mut ranks {
        rank.ask(&json!(["begin"]));
        rank.ask(&json!(["group", "3", "tensor_parallel", "0 1 2"]));
        for seq in 1..=4 {
            rank.call(seq, "all_to_all", begin + seq * SECOND);
            rank.ask(&json!(["notice", seq - 1, 0, begin + seq * SECOND + SECOND / 2, -1, true]));
        }
    }
    let take = |ranks: &[Rank]| dump(&ncclflow, &ranks.iter().collect::<Vec<_>>());
    // All have called the same: nothing is wrong.
    check(&take(&ranks), "healthy", &[], &[]);
    let mut line = 0;
    for rank in [0, 2] {
        line = ranks[rank].call(5, "all_to_all", begin + 10 * SECOND);
    }
    let late = "rank 1 has not called collective 5 of \"tensor_parallel\" (3), which ranks 0, 2 called ";
    let call = format!("by torch's flight recorder: all_to_all [1024] Float (job.py:{line})");
    let words = [late, &call, "the watchdog can hang, too", "rank 1 completed 4 (all_to_all"];
    let late_one = take(&ranks);
    check(&late_one, "stuck", &[1], &words);
    let said =
        late_one.communicators[0].verdict.evidence.iter().find_map(|one| one.strip_prefix(late)).unwrap();
    let age: f64 = said.split_once(" s before").unwrap().0.parse().unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let at_most = now.as_secs_f64() - Duration::from_nanos(begin + 10 * SECOND).as_secs_f64();
    // It is told to a tenth of a second.
    assert!((49.9..at_most + 0.1).contains(&age), "{said}");
    assert_eq!(late_one.communicators[0].verdict.kind.as_deref(), Some("notJoined"));
    assert!(late_one.job.sentence.contains("waits for rank 1"), "{}", late_one.job.sentence);

    // The same from dumps of parts: each alone says nothing, together they do.
    let parts = [&[0, 1][..], &[2]].map(|part| {
        let chosen: Vec<&Rank> = part.iter().map(|rank| &ranks[*rank]).collect();
        let path = folder.path().join(format!("{}.json", part.len()));
        fs::write(&path, dump(&ncclflow, &chosen).text).unwrap();
        path.display().to_string()
    });
    let merged = Dump::take(&ncclflow, "", &["--merge", &parts[0], &parts[1]]).unwrap();
    check(&merged, "stuck", &[1], &words);

    // It calls something else: both lines are said.
    let other = ranks[1].call(5, "broadcast", begin + 11 * SECOND);
    let both = format!("ranks 0, 2 called all_to_all [1024] Float (job.py:{line})");
    let and = format!("rank 1 called broadcast [1024] Float (job.py:{other})");
    check(&take(&ranks), "healthy", &[], &["collective 5 of \"tensor_parallel\" (3) differs", &both, &and]);
}
