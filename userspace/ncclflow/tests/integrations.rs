//! `dist/integrations/ncclflow_dump.py`, which watchdogs call, with scripts in place of ncclflow: whatever
//! that does, the watchdog goes on, in time. And the examples of docs/INTEGRATIONS.md, as they stand there, with scripts
//! in place of what they call.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use test_support::{need, wait_until};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/integrations");

/// Calls `dump` with this script as ncclflow; gives what it returns, what the log would say, and the words
/// that the script got.
fn call(script: &str) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("ncclflow");
    fs::write(&program, format!("#!/bin/sh\necho \"$*\" > '{}/words'\n{script}", folder.path().display()))
        .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let code = format!(
        "import json, ncclflow_dump as n\n\
         code, report = n.dump([7, 8], seconds=3, folder={kept:?}, program=[{program:?}])\n\
         print(json.dumps([code, report, n.sentence(report)]))",
        kept = folder.path().join("kept/below").display().to_string(),
        program = program.display().to_string(),
    );
    let mut python = Command::new("python3");
    let output =
        python.args(["-c", &code]).env("PYTHONPATH", FOLDER).env("PYTHONDONTWRITEBYTECODE", "1").output();
    let output = output.unwrap();
    let words = fs::read_to_string(folder.path().join("words")).unwrap_or_default();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"));
    let kept = fs::read_dir(folder.path().join("kept/below")).map_or(0, Iterator::count);
    assert!(kept <= 1);
    (value, format!("{}; {kept} kept", words.trim()))
}

#[test]
fn a_watchdog_goes_on_whatever_ncclflow_does() {
    let has_python = Command::new("python3").arg("--version").output().is_ok();
    if !need("python3", has_python, "install it") {
        return;
    }
    assert!(Path::new(FOLDER).join("ncclflow_dump.py").exists());
    let (answer, said) = call(r#"echo '{"schema": 1, "job": {"sentence": "stuck: rank 2"}}'; exit 3"#);
    assert_eq!(answer, json!([3, { "schema": 1, "job": { "sentence": "stuck: rank 2" } }, "stuck: rank 2"]));
    assert_eq!(said, "dump --json -p 7,8; 1 kept");
    let unknown = "ncclflow could not tell";
    let (answer, _) = call(r#"echo '{"schema": 1, "job": null}'; exit 4"#);
    assert_eq!(answer, json!([4, { "schema": 1, "job": null }, unknown]));
    for script in ["echo no >&2; exit 1", "head -c 100000 /dev/urandom", "exec kill -9 $$"] {
        let (answer, said) = call(script);
        assert_eq!(answer, json!([null, null, unknown]), "{script}");
        assert!(said.ends_with("0 kept"), "{said}");
    }
    let begun = Instant::now();
    assert_eq!(call("exec sleep 600").0, json!([null, null, unknown]));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

const DOCUMENT: &str = include_str!("../../../docs/INTEGRATIONS.md");

/// Returns the example that has these words.
fn example(words: &str) -> &'static str {
    let mut blocks = DOCUMENT.split("\n```").skip(1).step_by(2);
    let block =
        blocks.find(|block| block.contains(words)).unwrap_or_else(|| panic!("no example has `{words}`"));
    block.split_once('\n').unwrap().1
}

/// Programs by name, as scripts, in a folder in which an example runs. Each adds its words to `NAME.words`.
fn stand_ins(scripts: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, script) in scripts {
        let program = folder.path().join(name);
        let words = folder.path().join(format!("{name}.words"));
        fs::write(&program, format!("#!/bin/sh\necho \"$*\" >> {}\n{script}\n", words.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

fn shell(folder: &Path, script: &str) -> Command {
    let mut shell = Command::new("sh");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    shell.args(["-c", script]).current_dir(folder).env("PATH", path).stdin(Stdio::null());
    shell
}

fn text_of(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_default()
}

const STUCK: &str = r#"echo '{"schema": 1, "job": {"sentence": "stuck: rank 2"}}'"#;

#[test]
fn a_script_tells_the_log_of_a_hang_and_of_nothing_else() {
    let has_jq = Command::new("jq").arg("--version").output().is_ok();
    if !need("jq", has_jq, "install it") {
        return;
    }
    let script = example("logger -t ncclflow");
    for (code, logged) in [(3, "stuck: rank 2\n"), (5, "stuck: rank 2\n"), (0, ""), (4, ""), (1, "")] {
        let folder = stand_ins(&[("ncclflow", &format!("{STUCK}; exit {code}")), ("logger", "cat > logged")]);
        assert!(shell(folder.path(), script).status().unwrap().success());
        assert_eq!((text_of(folder.path(), "logged").as_str(), code), (logged, code));
        assert_eq!(text_of(folder.path(), "ncclflow.words"), "dump --json\n");
    }
    // The pod is told by the same sentence.
    let folder = stand_ins(&[("kubectl", "")]);
    fs::write(folder.path().join("hang.json"), r#"{"job": {"sentence": "stuck: rank 2"}}"#).unwrap();
    let script = example("kubectl annotate");
    assert!(shell(folder.path(), script).env("POD", "train-0").status().unwrap().success());
    let words = "annotate --overwrite pod train-0 ncclflow.io/verdict=stuck: rank 2\n";
    assert_eq!(text_of(folder.path(), "kubectl.words"), words);
}

/// Slurm sends the signal to the batch script, which goes on until its step has ended.
#[test]
fn a_batch_script_dumps_before_its_time_is_over_and_does_not_end_the_job() {
    let srun = "until [ -e over ]; do sleep 0.1; done";
    let folder = stand_ins(&[("ncclflow", &format!("{STUCK}; exit 3")), ("srun", srun)]);
    let mut script =
        shell(folder.path(), example("--signal=B:USR1@300")).env("SLURM_JOB_ID", "17").spawn().unwrap();
    let kept = |name: &str| text_of(folder.path(), name);
    wait_until("the step runs", Duration::from_secs(60), || !kept("srun.words").is_empty());
    let signal =
        || Command::new("kill").args(["-USR1", &script.id().to_string()]).status().unwrap().success();
    assert!(signal());
    wait_until("it has dumped", Duration::from_secs(60), || kept("hang-17.json").contains("stuck: rank 2"));
    assert_eq!(kept("ncclflow.words"), "dump --slurm 17 --json\n");
    // Nothing happens: it has time to end.
    std::thread::sleep(Duration::from_secs(1));
    assert!(script.try_wait().unwrap().is_none(), "the job goes on");
    fs::write(folder.path().join("over"), "").unwrap();
    script.wait().unwrap();
    assert_eq!(kept("srun.words"), "python train.py\n");
}

#[test]
fn an_epilog_keeps_what_is_left_and_never_fails() {
    let script = example("/var/log/slurm").replace("/var/log/slurm", ".");
    for (says, keeps) in [(STUCK, true), ("exit 1", false), ("exit 127", false)] {
        let folder = stand_ins(&[("ncclflow", says)]);
        assert!(
            shell(folder.path(), &script).env("SLURM_JOB_ID", "17").status().unwrap().success(),
            "{says}"
        );
        assert_eq!(folder.path().join("ncclflow-17.json").exists(), keeps, "{says}");
    }
}

#[test]
fn a_watchdog_of_the_documentation_dumps_once_and_before_torch_ends_the_rank() {
    let has_python = Command::new("python3").arg("--version").output().is_ok();
    if !need("python3", has_python, "install it") {
        return;
    }
    let folder = stand_ins(&[("ncclflow", &format!("{STUCK}; exit 3")), ("sudo", "shift; exec \"$@\"")]);
    // Its clock goes on when it sleeps; the job makes progress for a hundred seconds.
    let code = format!(
        "import logging, os, sys\n\
         logging.basicConfig(stream=sys.stdout, format='%(message)s')\n\
         logger, pids = logging.getLogger(), [7]\n\
         class time:\n    now = 0.0\n    monotonic = lambda: time.now\n\
         \x20   def sleep(seconds): time.now += seconds\n\
         {}\n{}\n\
         look_before(600, lambda: min(time.now, 100))\n\
         print('after', time.now)",
        example("from ncclflow_dump import").replace("/var/tmp/hangs", "kept"),
        example("def look_before").replace("/var/tmp/hangs", "kept"),
    );
    let mut python = Command::new("python3");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    python.args(["-c", &code]).current_dir(folder.path()).env("PATH", path).env("PYTHONPATH", FOLDER);
    let output = python.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let line = "stuck: rank 2 (ncclflow exit code 3)\n";
    assert_eq!(said, format!("{line}{line}after 615.0\n"), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text_of(folder.path(), "ncclflow.words"), "dump --json -p 7\ndump --json\n");
    assert_eq!(fs::read_dir(folder.path().join("kept")).unwrap().count(), 2);
}
