//! `ncclflow dump` of a job whose ranks are Python programs that call NCCL through ctypes: the verdict names the line
//! at which the absent rank is. Every CPython that is found has its turn.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::Path,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use ncclflow_e2e::harness::{
    dumper::Dump,
    job::{COMES_TO_REST, VERSIONS, check_culprit},
    programs,
};
use serde_json::Value;
use test_support::{
    Interpreter, need_pythons, root,
    train::{ABSENT, SCRIPT, start_rank},
};

const RANKS: u32 = 3;

/// The ranks' processes. They end when this is dropped.
struct Ranks(Vec<Child>);

impl Ranks {
    fn start(python: &Path, nccl: &Path, folder: &Path, ranks: u32) -> Option<Self> {
        let (bed, nvml) = (programs::bed_library()?, programs::nvml_double()?);
        let rank =
            |rank| start_rank(Command::new(python), [&bed, nccl, &nvml], folder, (rank, ranks), &[]).unwrap();
        Some(Self((0..ranks).map(rank).collect()))
    }

    fn pids(&self) -> String {
        self.0.iter().map(|child| child.id().to_string()).collect::<Vec<_>>().join(",")
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The line of the script that has this comment.
fn line_of(comment: &str) -> u64 {
    let script = std::fs::read_to_string(SCRIPT).unwrap();
    let at = script.lines().position(|line| line.ends_with(&format!("# {comment}"))).unwrap();
    at as u64 + 1
}

fn stuck(ncclflow: &Path, ranks: &Ranks) -> Dump {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let dump = Dump::take_answered(ncclflow, &ranks.pids(), &[], &[]).unwrap();
        // Stuck with the absent rank in it: before that, ranks connect.
        let is_it = dump.code == Some(3) && dump.text.contains("load_batch");
        if is_it || Instant::now() > deadline {
            return dump;
        }
    }
}

/// Whether the absent rank alone is named, and all others are at one place. A rank that stood for a moment on its way there
/// can be behind, too.
fn is_at_rest(dump: &Dump) -> bool {
    let json: Value = serde_json::from_str(&dump.text).unwrap();
    let groups = json["communicators"][0]["pythonStacks"].as_array().map(Vec::len);
    groups == Some(2) && dump.communicators.iter().all(|one| one.verdict.culprits == [ABSENT])
}

/// (function, file's name, line) of each frame.
fn frames(of: &Value) -> Vec<(String, String, u64)> {
    let frame = |frame: &Value| {
        let file =
            Path::new(frame["file"].as_str().unwrap()).file_name().unwrap().to_string_lossy().into_owned();
        (frame["function"].as_str().unwrap().to_owned(), file, frame["line"].as_u64().unwrap())
    };
    of["frames"].as_array().unwrap().iter().map(frame).collect()
}

fn check(python: &Interpreter, version: &str) -> Option<()> {
    let (ncclflow, nccl) = (programs::ncclflow()?, programs::nccl(version)?);
    let folder = tempfile::tempdir().unwrap();
    let ranks = Ranks::start(&python.program, &nccl, folder.path(), RANKS)?;
    let mut dump = stuck(&ncclflow, &ranks);
    if !is_at_rest(&dump) {
        thread::sleep(COMES_TO_REST);
        dump = stuck(&ncclflow, &ranks);
    }
    let line = line_of("stays here");
    check_culprit(&dump, ABSENT, &format!("; its main thread is at train.py:{line} in load_batch"));
    check_culprit(&dump, ABSENT, &format!("rank {ABSENT} has not joined"));

    let json: Value = serde_json::from_str(&dump.text).unwrap();
    let groups = json["communicators"][0]["pythonStacks"].as_array().unwrap();
    let [largest, other] = &**groups else { panic!("{groups:#?}") };
    assert_eq!(
        (largest["ranks"].clone(), &largest["isLargest"]),
        (serde_json::json!([0, 2]), &Value::Bool(true))
    );
    assert_eq!(other["ranks"], serde_json::json!([ABSENT]));
    let functions =
        |group: &Value| frames(group).into_iter().map(|(function, ..)| function).collect::<Vec<_>>();
    assert_eq!(functions(other), ["load_batch", "main", "<module>"]);
    assert_eq!(functions(largest), ["synchronize", "step", "main", "<module>"]);
    assert_eq!(frames(largest)[0].2, line_of("waits here"));

    let minor = python.release.rsplit_once('.').unwrap().0;
    let suffix = if python.free_threaded { "t" } else { "" };
    for process in json["processes"].as_array().unwrap() {
        let said = &process["python"];
        assert_eq!(said["version"], format!("{minor}{suffix}"), "{said:#}");
        let main = &said["threads"][0];
        assert!(
            main["isMain"] == true && main["tid"] == process["pid"] && main["unknown"].is_null(),
            "{said:#}"
        );
    }
    let text = Command::new(&ncclflow).args(["dump", "-p", &ranks.pids()]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("load_batch (") && text.contains("ranks 0, 2, as most ranks:"), "{text}");
    Some(())
}

#[test]
fn the_line_of_the_rank_that_did_not_join_is_named() {
    let (Some(pythons), true) = (need_pythons(), root()) else { return };
    for (number, python) in pythons.iter().enumerate() {
        let version = VERSIONS[number % VERSIONS.len()];
        println!("Python {}, NCCL {version}", python.release);
        if check(python, version).is_none() {
            return;
        }
    }
}
