//! Jobs whose ranks are Python programs that call NCCL through ctypes, and of which one does something else than the others:
//! `check` names the first difference with the lines that the programs themselves wrote down, and torch's own analyser
//! finds it in the files that `export -f flight-recorder` and `dump --flight-recorder` make.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::prelude::*;
use test_support::{need_pythons, torch_analyser};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/flight_recorder/differing.py");
const READER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../exports/flight_recorder_files.py");
const NCCL: &str = "2.27.5-cu12";
const RANKS: u32 = 3;
const CULPRIT: u32 = 1;
/// Of the collective at which the ranks differ, from 0 on.
const DIFFERS: u64 = 3;

/// A call as the program wrote it down.
#[derive(Debug)]
struct Called {
    function: String,
    count: u64,
    tid: u64,
    /// Name, file, line; innermost first.
    frames: Vec<(String, String, u64)>,
}

/// A job that was recorded.
struct Job {
    ranks: Vec<Killed>,
    folder: tempfile::TempDir,
    /// By rank.
    truth: Vec<Vec<Called>>,
}

impl Job {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pids(&self, ranks: &[usize]) -> String {
        pid_list(ranks.iter().map(|rank| &self.ranks[*rank]))
    }

    /// The folders of a recording: calls are recorded as if ranks 0 and 1 were on one host, and rank 2 on another.
    fn folders(&self, name: &str) -> Vec<PathBuf> {
        let names = if name == "calls" { vec!["calls0", "calls1"] } else { vec![name] };
        names.into_iter().map(|name| self.path(name)).collect()
    }

    /// Whether a recording of these ranks has a line of each call, and the stack of each line.
    fn has_all(&self, name: &str, ranks: &[usize]) -> bool {
        let exported = exported::until_now(&self.path(name));
        let folder = exported.path();
        let lines = |kinds: &[&str]| -> usize {
            let is_one = |path: &PathBuf| {
                let name = path.file_name().unwrap().to_string_lossy();
                kinds.iter().any(|kind| name.starts_with(kind))
            };
            let files = exported::names_below(folder).into_iter().filter(is_one);
            files.map(|name| fs::read_to_string(folder.join(name)).unwrap().matches('\n').count()).sum()
        };
        let called: Vec<Vec<Called>> =
            ranks.iter().map(|rank| truth(&self.path(&format!("truth{rank}")))).collect();
        let calls: usize = called.iter().map(Vec::len).sum();
        let stacks_of =
            |called: &Vec<Called>| called.iter().map(|call| &call.frames).collect::<BTreeSet<_>>().len();
        let stacks: usize = called.iter().map(stacks_of).sum();
        lines(&["api_rank", "proxy_flow_rank"]) >= calls && lines(&["stacks.jsonl"]) >= stacks
    }

    /// Runs until each rank has called all that it calls; records it twice, with ops and with calls only. `meanwhile` is told
    /// when nothing moves any more.
    fn record(what: &str, meanwhile: impl FnOnce(&Self)) -> Option<Self> {
        let (program, library) = (programs::ncclflow()?, programs::nccl(NCCL)?);
        let python = need_pythons()?.into_iter().next()?;
        let folder = tempfile::tempdir().unwrap();
        let start = |rank: u32| {
            let mut command =
                programs::python_rank(&python.program, SCRIPT, &library, folder.path(), [rank, RANKS])?;
            Some(Killed::start(command.args([what, &CULPRIT.to_string()])).unwrap())
        };
        let ranks = (0..RANKS).map(start).collect::<Option<Vec<_>>>()?;
        let mut job = Self { ranks, folder, truth: Vec::new() };
        let wait_for = |wanted: &str, ranks: &[usize], job: &mut Self| {
            for rank in ranks {
                let line = job.ranks[*rank].line();
                let errors = fs::read_to_string(job.path(&format!("{rank}.err"))).unwrap();
                assert_eq!(line.unwrap_or_default(), wanted, "rank {rank}: {errors}");
            }
        };
        wait_for("ready", &[0, 1, 2], &mut job);
        let record = |name: &str, level: &str, ranks: &[usize]| {
            let options = ["--stacks", "--level", level];
            Recorder::start(&program, &job.pids(ranks), &job.path(name), &options).unwrap()
        };
        let recordings =
            [("calls0", "api", &[0, 1][..]), ("calls1", "api", &[2]), ("ops", "flow", &[0, 1, 2])];
        let recorders = recordings.map(|(name, level, ranks)| record(name, level, ranks));
        File::create(job.path("go")).unwrap();
        let others: Vec<usize> = if what == "absent" { vec![0, 2] } else { vec![0, 1, 2] };
        wait_for("called", &others, &mut job);
        // Who names the frames of stacks reads the processes.
        for (name, _, ranks) in recordings {
            wait_until("all is recorded", Duration::from_mins(1), || job.has_all(name, ranks));
        }
        // A rank that was watched for a second longer has not joined.
        thread::sleep(Duration::from_millis(1500));
        meanwhile(&job);
        job.ranks.iter_mut().for_each(Killed::kill);
        for recorder in recorders {
            recorder.end().unwrap();
        }
        job.truth = (0..RANKS).map(|rank| truth(&job.path(&format!("truth{rank}")))).collect();
        Some(job)
    }

    /// What `check` says of a recording's only communicator, and its text.
    fn check(&self, name: &str) -> (Value, String) {
        let check = |words: &str| {
            let ran = ncclflow_of(words, &self.folders(name));
            assert_eq!(ran.code(), Some(3), "{}", ran.stderr);
            ran
        };
        let report = check("check --json").json();
        let [communicator] = &**list(&report["communicators"]) else { panic!("{report:#}") };
        (communicator.clone(), check("check").stdout)
    }

    /// What Python and torch's analyser read in the files that are made of a recording.
    fn exported(&self, name: &str, analyser: &Path) -> Value {
        let folder = self.path(&format!("fr-{name}"));
        fs::create_dir(&folder).unwrap();
        let prefix = folder.join("rank_");
        let paths = [vec![prefix.clone()], self.folders(name)].concat();
        ncclflow_of("export -f flight-recorder -o", &paths).ok();
        read(&prefix, analyser)
    }

    /// The line at which a rank made its last call: `differing.py:88`.
    fn place(&self, rank: usize) -> String {
        let (_, _, line) = self.truth[rank].last().unwrap().frames[0];
        format!("differing.py:{line}")
    }
}

fn truth(path: &Path) -> Vec<Called> {
    let called = read_lines(path).into_iter().map(|line| {
        let frame =
            |frame: &Value| (text(&frame[0]).to_owned(), text(&frame[1]).to_owned(), number(&frame[2]));
        Called {
            function: text(&line["function"]).to_owned(),
            count: number(&line["count"]),
            tid: number(&line["tid"]),
            frames: list(&line["frames"]).iter().map(frame).collect(),
        }
    });
    called.collect()
}

fn read(prefix: &Path, analyser: &Path) -> Value {
    run(Command::new("python3").arg(READER).arg(analyser).arg(prefix)).ok().json()
}

fn frames(entry: &Value) -> Vec<(String, String, u64)> {
    let frame = |frame: &Value| {
        (text(&frame["name"]).to_owned(), text(&frame["filename"]).to_owned(), number(&frame["line"]))
    };
    list(&entry["frames"]).iter().map(frame).collect()
}

/// The entries of all ranks are the calls that the programs wrote down. Of ops, the element types of some are not those of
/// the call, and so their counts are not.
fn same_calls(job: &Job, found: &Value, of_calls: bool) {
    let names = BTreeMap::from([("AllReduce", "nccl:all_reduce"), ("AllGather", "nccl:_all_gather_base")]);
    for (rank, called) in job.truth.iter().enumerate() {
        let dump = &found["dumps"][rank.to_string()];
        let entries = list(&dump["entries"]);
        assert_eq!(entries.len(), called.len(), "rank {rank}: {dump:#}");
        for (at, (entry, called)) in (0u64..).zip(entries.iter().zip(called)) {
            assert_eq!(entry["profiling_name"], names[called.function.as_str()], "{entry:#}");
            assert_eq!((&entry["record_id"], &entry["collective_seq_id"]), (&json!(at), &json!(at + 1)));
            assert_eq!(frames(entry), called.frames, "{entry:#}");
            assert_eq!(entry["thread_id"], called.tid.to_string());
            if of_calls {
                assert_eq!(entry["input_sizes"], json!([[called.count]]), "{entry:#}");
                assert_eq!(entry["input_dtypes"], json!(["Float"]));
            }
        }
        assert_eq!(dump["pg_config"].as_object().unwrap().len(), 1);
        let group = dump["pg_config"].as_object().unwrap().values().next().unwrap();
        assert_eq!(group["ranks"], "[0, 1, 2]");
    }
}

/// What the analyser says of the collective at which the ranks differ. Those before it match.
fn differing(found: &Value) -> &Value {
    let collectives = list(&found["collectives"]);
    let first = collectives.iter().find(|one| one["passed"] == false || one["missing"] != json!([])).unwrap();
    assert_eq!(first["seq"], DIFFERS + 1, "{found:#}");
    let before = collectives.iter().filter(|one| number(&one["seq"]) <= DIFFERS);
    assert_eq!(before.filter(|one| one["passed"] == true).count() as u64, DIFFERS, "{found:#}");
    first
}

#[test]
fn another_collective_is_named_with_its_line() {
    let (Some(analyser), true) = (torch_analyser(), root()) else { return };
    let Some(job) = Job::record("order", |_| ()) else { return };
    assert_ne!(job.place(0), job.place(1));
    let said = format!(
        "collective {DIFFERS}: rank 1 called AllGather at {}, ranks 0, 2 AllReduce at {}",
        job.place(1),
        job.place(0)
    );
    for name in ["calls", "ops"] {
        let (report, said_all) = job.check(name);
        let first = &report["firstDifference"];
        assert_eq!((&first["text"], &first["seq"]), (&json!(said), &json!(DIFFERS * 2)), "{report:#}");
        assert!(said_all.contains(&format!("first difference: {said}")), "{said_all}");
        let [other, most] = &**list(&first["groups"]) else { panic!("{first:#}") };
        assert_eq!((&other["ranks"], &most["ranks"]), (&json!([1]), &json!([0, 2])));
        assert_eq!(other["call"]["function"], "AllGather");
        let whole: Vec<_> = list(&other["frames"]).iter().rev().map(|frame| number(&frame["line"])).collect();
        let expected: Vec<u64> = job.truth[1].last().unwrap().frames.iter().map(|frame| frame.2).collect();
        assert_eq!(whole, expected);
        let found = job.exported(name, &analyser);
        same_calls(&job, &found, name == "calls");
        let mismatches = &differing(&found)["mismatches"];
        assert!(text(&mismatches["1"]).contains("COLLECTIVE_TYPE_MISMATCH"), "{found:#}");
        assert_eq!(mismatches.as_object().unwrap().len(), 1, "{found:#}");
        assert_eq!(found["dumps"]["1"]["version"], "2.10");
    }
}

#[test]
fn another_size_is_named_with_its_line() {
    let (Some(analyser), true) = (torch_analyser(), root()) else { return };
    let Some(job) = Job::record("size", |_| ()) else { return };
    let (least, most) = (job.truth[1].last().unwrap().count, job.truth[0].last().unwrap().count);
    let said = format!(
        "collective {DIFFERS}: rank 1 called AllReduce of {least} at {}, ranks 0, 2 AllReduce of {most} at {}",
        job.place(1),
        job.place(0)
    );
    for name in ["calls", "ops"] {
        let (report, _) = job.check(name);
        assert_eq!(report["firstDifference"]["text"], said, "{report:#}");
        let found = job.exported(name, &analyser);
        same_calls(&job, &found, name == "calls");
        let mismatches = &differing(&found)["mismatches"];
        assert!(text(&mismatches["1"]).contains("SIZE_OR_SYNTAX_MISMATCH"), "{found:#}");
    }
}

#[test]
fn an_absent_rank_is_named_with_its_line() {
    let (Some(analyser), true) = (torch_analyser(), root()) else { return };
    let dump = |job: &Job| {
        let folder = job.path("fr-dump");
        let (begun, mut tries) = (Instant::now(), 0);
        // It is stuck when the last rank has come to rest.
        let errors = loop {
            tries += 1;
            fs::create_dir(&folder).unwrap();
            let words = format!("dump -p {} --flight-recorder", job.pids(&[0, 1, 2]));
            let ran = ncclflow_of(&words, &[folder.join("rank_")]);
            if ran.code() == Some(3) {
                break ran.stderr;
            }
            assert!(begun.elapsed() < Duration::from_mins(1), "{tries} dumps, the last: {ran:?}");
            fs::remove_dir_all(&folder).unwrap();
        };
        assert!(errors.contains(" entries of 3 ranks written to"), "{errors}");
        println!("{tries} dumps took {:.1} s", begun.elapsed().as_secs_f64());
    };
    let Some(job) = Job::record("absent", dump) else { return };
    assert_eq!(job.truth[1].len() as u64, DIFFERS);
    let said = format!(
        "collective {DIFFERS}: rank 1 did not call it (last called collective {} at {}), ranks 0, 2 called AllReduce at {}",
        DIFFERS - 1,
        job.place(1),
        job.place(0)
    );
    for name in ["calls", "ops"] {
        let (report, _) = job.check(name);
        assert_eq!(report["firstDifference"]["text"], said, "{report:#}");
        let found = job.exported(name, &analyser);
        same_calls(&job, &found, name == "calls");
        let first = differing(&found);
        assert_eq!(first["missing"], json!([1]), "{found:#}");
        assert_eq!(frames(&json!({"frames": first["frames"]})), job.truth[0].last().unwrap().frames);
        assert!(list(&found["said"]).contains(&json!("missing ranks: {1}")), "{found:#}");
    }
    // Of the hang alone, without a recording: the line where each rank is now.
    let found = read(&job.path("fr-dump/rank_"), &analyser);
    let collectives = list(&found["collectives"]);
    let missing: Vec<_> = collectives.iter().filter(|one| one["missing"] != json!([])).collect();
    let [missing] = &*missing else { panic!("{found:#}") };
    assert_eq!((&missing["seq"], &missing["missing"]), (&json!(DIFFERS + 1), &json!([1])), "{found:#}");
    assert_eq!(missing["name"], "nccl:all_reduce");
    let absent = list(&found["dumps"]["1"]["entries"]).last().unwrap();
    let script = fs::read_to_string(SCRIPT).unwrap();
    let line = script.lines().position(|line| line.ends_with("# stays here")).unwrap() as u64 + 1;
    let (name, _, at) = frames(absent)[0].clone();
    assert_eq!((name.as_str(), at), ("load_batch", line), "{absent:#}");
}
