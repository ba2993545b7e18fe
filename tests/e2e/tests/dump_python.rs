//! `ncclflow dump` of a job whose ranks are Python programs that call NCCL through ctypes: the verdict names the line
//! at which the absent rank is. Every CPython that is found has its turn.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::{
    dumper::Dump,
    job::{COMES_TO_REST, VERSIONS, check_culprit},
    prelude::*,
};
use test_support::{
    Interpreter, need_pythons,
    train::{ABSENT, SCRIPT, start_rank},
};

const RANKS: u32 = 3;

fn start(python: &Path, nccl: &Path, folder: &Path, in_thread: bool) -> Option<Vec<Killed>> {
    let (bed, nvml) = (programs::bed_library()?, programs::nvml_double()?);
    let rank = |rank| {
        let mut command = Command::new(python);
        command.envs(in_thread.then_some(("IN_THREAD", "1")));
        start_rank(command, [&bed, nccl, &nvml], folder, (rank, RANKS), &[]).unwrap()
    };
    Some((0..RANKS).map(|number| Killed(rank(number))).collect())
}

/// The line of the script that has this comment.
fn line_of(comment: &str) -> u64 {
    let script = fs::read_to_string(SCRIPT).unwrap();
    let at = script.lines().position(|line| line.ends_with(&format!("# {comment}"))).unwrap();
    at as u64 + 1
}

fn stuck(ncclflow: &Path, pids: &str) -> Dump {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let dump = Dump::take_answered(ncclflow, pids, &[], &[]).unwrap();
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
        let file = Path::new(text(&frame["file"])).file_name().unwrap().to_string_lossy().into_owned();
        (text(&frame["function"]).to_owned(), file, number(&frame["line"]))
    };
    list(&of["frames"]).iter().map(frame).collect()
}

fn check(python: &Interpreter, version: &str) -> Option<()> {
    let (ncclflow, nccl) = (programs::ncclflow()?, programs::nccl(version)?);
    let folder = tempfile::tempdir().unwrap();
    let ranks = start(&python.program, &nccl, folder.path(), false)?;
    let pids = pid_list(&ranks);
    let mut dump = stuck(&ncclflow, &pids);
    if !is_at_rest(&dump) {
        thread::sleep(COMES_TO_REST);
        dump = stuck(&ncclflow, &pids);
    }
    let line = line_of("stays here");
    check_culprit(&dump, ABSENT, &format!("; its main thread is at train.py:{line} in load_batch"));
    check_culprit(&dump, ABSENT, &format!("rank {ABSENT} has not joined"));

    let json: Value = serde_json::from_str(&dump.text).unwrap();
    let groups = list(&json["communicators"][0]["pythonStacks"]);
    let [largest, other] = &**groups else { panic!("{groups:#?}") };
    assert_eq!((&largest["ranks"], &largest["isLargest"]), (&json!([0, 2]), &json!(true)));
    assert_eq!(other["ranks"], json!([ABSENT]));
    let functions =
        |group: &Value| frames(group).into_iter().map(|(function, ..)| function).collect::<Vec<_>>();
    assert_eq!(functions(other), ["load_batch", "main", "<module>"]);
    assert_eq!(functions(largest), ["synchronize", "step", "main", "<module>"]);
    assert_eq!(frames(largest)[0].2, line_of("waits here"));

    let minor = python.release.rsplit_once('.').unwrap().0;
    let suffix = if python.free_threaded { "t" } else { "" };
    for process in list(&json["processes"]) {
        let said = &process["python"];
        assert_eq!(said["version"], format!("{minor}{suffix}"), "{said:#}");
        let main = &said["threads"][0];
        assert!(
            main["isMain"] == true && main["tid"] == process["pid"] && main["unknown"].is_null(),
            "{said:#}"
        );
    }
    let text = crate::ncclflow(&format!("dump -p {pids}")).stdout;
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

/// The first thread of each rank waits for another one, which calls NCCL; a thread of the absent rank spins beside them.
#[test]
fn the_line_of_a_rank_that_works_in_another_thread_is_that_threads() {
    let (Some(pythons), true) = (need_pythons(), root()) else { return };
    let (Some(nccl), Some(ncclflow)) = (programs::nccl("2.27.5-cu12"), programs::ncclflow()) else { return };
    let Some(python) = pythons.last() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(ranks) = start(&python.program, &nccl, folder.path(), true) else { return };
    let dump = stuck(&ncclflow, &pid_list(&ranks));
    let line = line_of("stays here");
    check_culprit(&dump, ABSENT, &format!("), which calls NCCL, is at train.py:{line} in load_batch"));
    check_culprit(
        &dump,
        ABSENT,
        &format!("called from train.py:{} in serve; thread ", line_of("waits for it")),
    );
    let json: Value = serde_json::from_str(&dump.text).unwrap();
    let absent = ranks[ABSENT as usize].pid();
    let process = list(&json["processes"]).iter().find(|process| process["pid"] == absent).unwrap();
    // Its other threads have not called NCCL, or are NCCL's.
    let [caller] = &**list(&process["ncclCallers"]) else { panic!("{process:#}") };
    let of_worker = list(&process["python"]["threads"]).iter().find(|thread| thread["tid"] == caller["tid"]);
    let functions: Vec<String> =
        frames(of_worker.unwrap()).into_iter().map(|(function, ..)| function).take(2).collect();
    assert_eq!(functions, ["load_batch", "main"]);
}

/// A job before its first communicator: two ranks are in torch's set-up, and one is elsewhere.
#[test]
fn a_rank_that_has_not_come_to_torchs_set_up_is_named_with_its_line() {
    const JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dump_python/set_up.py");
    let (Some(pythons), true) = (need_pythons(), root()) else { return };
    let (Some(nccl), Some(_)) = (programs::nccl("2.27.5-cu12"), programs::ncclflow()) else { return };
    let Some(python) = pythons.first() else { return };
    let folder = tempfile::tempdir().unwrap();
    let packages = folder.path().join("lib/python3/site-packages");
    let distributed = packages.join("torch/distributed");
    fs::create_dir_all(&distributed).unwrap();
    let waits =
        "import os\n\n\ndef init_process_group():\n    print(\"there\", flush=True)\n    os.read(0, 1)\n";
    fs::write(distributed.join("distributed_c10d.py"), waits).unwrap();
    let mut ranks: Vec<Killed> = (0..3)
        .map(|rank: u32| {
            let mut command = Command::new(&python.program);
            command.arg(JOB).args([&nccl, &packages]);
            command.envs([("RANK", rank.to_string()), ("WORLD_SIZE", "3".to_owned())]);
            Killed::start(&mut command).unwrap()
        })
        .collect();
    for rank in &mut ranks {
        assert_eq!(rank.line().unwrap(), "there");
    }
    thread::sleep(COMES_TO_REST);
    let pids = pid_list(&ranks);
    let dump = crate::ncclflow(&format!("dump --json -p {pids}"));
    let job = &serde_json::from_str::<Value>(&dump.stdout).unwrap()["job"];
    let line =
        fs::read_to_string(JOB).unwrap().lines().position(|line| line.ends_with("# stays here")).unwrap() + 1;
    let expected = format!(
        "stuck: 2 of 3 ranks of the job are in torch's init_process_group; rank 2 (process {}) has not called it: \
         set_up.py:{line} in load_model",
        ranks[2].pid()
    );
    assert_eq!((text(&job["sentence"]), text(&job["kind"])), (&*expected, "callNotMade"), "{}", dump.stdout);
    assert_eq!(dump.code(), Some(3), "{}", dump.stderr);
    // Who was not read is not accused.
    let two = pid_list(&ranks[..2]);
    let said = crate::ncclflow(&format!("dump --json -p {two}"));
    assert!(said.stdout.contains("wait for rank 2, which was not read"), "{}", said.stdout);
}
