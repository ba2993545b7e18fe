//! `dist/integrations/ncclflow_dump.py`, which watchdogs call, with scripts in place of ncclflow: whatever
//! that does, the watchdog goes on, in time. The examples beside it, with the real watchdogs of vLLM, SGLang, Ray and
//! torchrun, less what these import. And the examples of docs/INTEGRATIONS.md, as they stand there, with scripts in
//! place of what they call.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use test_support::{hooks, need, wait_until};

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
    let kept = fs::read_dir(folder.path().join("kept")).unwrap().flatten();
    assert_eq!(kept.filter(|entry| entry.path().extension().is_some_and(|end| end == "json")).count(), 2);
}

/// A run of one of the scripts in tests/integrations, which drive the real watchdogs of others. What they and the
/// stand-in of ncclflow do is in `log`, in its order.
struct Watched {
    folder: tempfile::TempDir,
    command: Command,
}

impl Watched {
    /// Returns it for this script, with words; `None`: without the watchdogs, the test is skipped. `ncclflow` is
    /// what stands in for it, if there is one.
    fn new(script: &str, words: &[&str], ncclflow: Option<&str>) -> Option<Self> {
        let hooks = hooks()?;
        let mut programs = vec![("py-spy", "echo py-spy >> log"), ("sudo", "shift; exec \"$@\"")];
        let ncclflow = ncclflow.map(|says| format!("echo \"ncclflow $*\" >> log; {says}"));
        programs.extend(ncclflow.iter().map(|script| ("ncclflow", script.as_str())));
        let folder = stand_ins(&programs);
        let python = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
        let python = String::from_utf8(python.unwrap().stdout).unwrap();
        let mut command = Command::new(python.trim());
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/integrations");
        command
            .arg(Path::new(scripts).join(script))
            .args(words)
            .current_dir(folder.path())
            // And no other folder: there may be an ncclflow on this machine.
            .env("PATH", folder.path())
            .env("PYTHONPATH", FOLDER)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NCCLFLOW_HOOKS", hooks.canonicalize().unwrap())
            .env("NCCLFLOW_TEST_LOG", folder.path().join("log"))
            .env("NCCLFLOW_DUMP_FOLDER", folder.path().join("kept"))
            .stdin(Stdio::null());
        Some(Self { folder, command })
    }

    /// Runs it to its end; gives the log, and what the project's own log has.
    fn run(&mut self) -> (String, String) {
        let output = self.command.output().unwrap();
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (self.log(), said.concat())
    }

    fn log(&self) -> String {
        text_of(self.folder.path(), "log")
    }
}

/// What stands in for ncclflow: one that finds a rank, one that fails, none, and one that comes to no end.
const NCCLFLOWS: [Option<&str>; 4] = [Some(FINDS), Some("exit 1"), None, Some("exec /bin/sleep 600")];
const FINDS: &str = r#"echo '{"schema": 1, "job": {"sentence": "stuck: rank 2"}}'; exit 3"#;

/// Runs a script with each of them. `log`: what it is to be, with the lines of ncclflow.
fn with_each(script: &str, words: &[&str], log: &[&str]) {
    for ncclflow in NCCLFLOWS {
        let Some(mut watched) = Watched::new(script, words, ncclflow) else { return };
        let is_endless = ncclflow == NCCLFLOWS[3];
        watched.command.env("NCCLFLOW_DUMP_SECONDS", if is_endless { "2" } else { "60" });
        let begun = Instant::now();
        let (found, said) = watched.run();
        let found = found.replace(&watched.folder.path().display().to_string(), ".");
        let is_expected = |line: &&&str| {
            // Where there is no time left, nothing is put together.
            (ncclflow.is_some() || !line.starts_with("ncclflow")) && !(is_endless && line.contains("--merge"))
        };
        let expected: Vec<&str> = log.iter().filter(is_expected).copied().collect();
        let numbers = |line: &str| line.chars().filter(|letter| !letter.is_ascii_digit()).collect::<String>();
        let same =
            |one: &str, other: &str| one == other || (one.contains("--merge") && numbers(one) == other);
        assert!(
            found.lines().count() == expected.len()
                && found.lines().zip(&expected).all(|(one, other)| same(one, other)),
            "{script} {words:?} with {ncclflow:?}: {found:?}, not {expected:?}: {said}"
        );
        let told =
            if ncclflow == NCCLFLOWS[0] { "stuck: rank 2 (exit code 3)" } else { "ncclflow could not tell" };
        let is_asked = log.iter().any(|line| line.starts_with("ncclflow"));
        assert_eq!(said.contains(told), is_asked, "{script} {words:?}: {said}");
        assert!(begun.elapsed() < Duration::from_secs(50), "{script}: {:?}", begun.elapsed());
    }
}

#[test]
fn sglang_asks_before_its_watchdog_ends_the_server() {
    with_each("with_sglang.py", &[], &["ncclflow dump --json", "py-spy", "the server ends"]);
}

#[test]
fn vllm_asks_before_its_engine_fails() {
    let fails = "the engine fails: RPC call to execute_model timed out.";
    let log = |asks| [asks, fails, "the call has returned", asks, fails, "tokens"];
    with_each("with_vllm.py", &["plugin", "7,8", "1"], &log("ncclflow dump --json -p 7,8"));
    // Engines whose workers wait for each other.
    with_each("with_vllm.py", &["option", "7", "2"], &log("ncclflow dump --json"));
}

#[test]
fn ray_asks_on_all_nodes_before_it_ends_workers() {
    let asks = [
        "on a:",
        "ncclflow dump --json -p 7,8",
        "on b:",
        "ncclflow dump --json -p 7,9",
        "ncclflow dump --json --merge ./kept/hosts-",
    ];
    let ends = ["process groups are ended", "workers are ended"];
    for how in ["failed", "hangs"] {
        with_each("with_ray.py", &[how], &[&asks[..], &ends[..]].concat());
    }
    with_each("with_ray.py", &["aborted"], &[&asks[..], &ends[1..]].concat());
    with_each("with_ray.py", &["finished"], &ends);
}

/// A program that torchrun starts: rank 0 waits; rank 1 as its word says.
const WORKER: &str = "\
import os, signal, sys, time
def note(what):
    with open(os.environ['NCCLFLOW_TEST_LOG'], 'a') as file:
        file.write(what + '\\n')
def end(*_):
    note('a worker gets its signal')
    sys.exit(1)
rank, how = os.environ['RANK'], sys.argv[1]
signal.signal(signal.SIGTERM, end)
open('up.' + rank, 'w').close()
while not (os.path.exists('up.0') and os.path.exists('up.1')):
    time.sleep(0.01)
if how == 'ends':
    sys.exit(0)
if how == 'fails' and rank == '1':
    sys.exit(3)
time.sleep(600)
";

/// torchrun with two workers, and the log with their PIDs left out.
fn torchrun(how: &str, ncclflow: Option<&str>) -> Option<Watched> {
    let mut watched = Watched::new("with_torchrun.py", &["worker.py", how], ncclflow)?;
    fs::write(watched.folder.path().join("worker.py"), WORKER).unwrap();
    // It leaves folders for logs there.
    watched.command.env("TMPDIR", watched.folder.path());
    Some(watched)
}

fn without_pids(log: &str) -> Vec<String> {
    log.lines().map(|line| line.split(" -p ").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn torchrun_asks_before_it_ends_what_is_left() {
    for ncclflow in NCCLFLOWS {
        let Some(mut watched) = torchrun("fails", ncclflow) else { return };
        watched.command.env("NCCLFLOW_DUMP_SECONDS", if ncclflow == NCCLFLOWS[3] { "1" } else { "60" });
        let (log, said) = watched.run();
        let expected = ["ncclflow dump --json", "a worker gets its signal"];
        let expected = if ncclflow.is_some() { &expected[..] } else { &expected[1..] };
        assert_eq!(without_pids(&log), expected, "{said}");
        assert!(said.contains("ChildFailedError"), "{said}");
        // Both are asked about: also that which has failed.
        assert!(ncclflow.is_none() || log.split(',').count() == 2, "{log}");
    }
    let Some(mut watched) = torchrun("ends", Some(FINDS)) else { return };
    assert_eq!(watched.run().0, "");
}

#[test]
fn torchrun_asks_before_it_passes_its_signal_on() {
    // With time to look, and with a second signal while it looks: then it is over.
    for (how, ncclflow, signals) in
        [("waits", FINDS, 1), ("fails", "exec /bin/sleep 30", 1), ("waits", "exec /bin/sleep 30", 2)]
    {
        let Some(mut watched) = torchrun(how, Some(ncclflow)) else { return };
        let mut running = watched.command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let up = ["up.0", "up.1"].map(|name| watched.folder.path().join(name));
        wait_until("the workers run", Duration::from_secs(60), || up.iter().all(|up| up.exists()));
        let begun = Instant::now();
        for sent in 0..signals {
            if how == "fails" || sent > 0 {
                wait_until("it is asked", Duration::from_secs(60), || !watched.log().is_empty());
            }
            let pid = running.id().to_string();
            assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        }
        running.wait().unwrap();
        let log = without_pids(&watched.log());
        let of_workers = if how == "waits" { 2 } else { 1 };
        assert_eq!(log[0], "ncclflow dump --json");
        assert_eq!(log[1..], vec!["a worker gets its signal"; of_workers], "{how}");
        assert!(begun.elapsed() < Duration::from_secs(25), "{how}: {:?}", begun.elapsed());
    }
}

#[test]
fn of_several_that_ask_for_the_host_one_dumps_and_all_have_its_answer() {
    let slow = format!("/bin/sleep 3; {FINDS}");
    let Some(watched) = Watched::new("", &[], Some(&slow)) else { return };
    // They ask when all have been started.
    let code = "import os, sys, time, ncclflow_dump as n\n\
                open('ready.' + sys.argv[1], 'w').close()\n\
                while not os.path.exists('go'): time.sleep(0.01)\n\
                print(n.dump(folder='kept'))";
    let start = |number: &str| {
        let mut python = Command::new(watched.command.get_program());
        let environment = watched.command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        python.args(["-c", code, number]).envs(environment).current_dir(watched.folder.path());
        python.stdout(Stdio::piped()).spawn().unwrap()
    };
    let numbers = ["0", "1", "2", "3"];
    let running = numbers.map(start);
    let is_ready = |number: &&str| watched.folder.path().join(format!("ready.{number}")).exists();
    wait_until("all are ready", Duration::from_secs(60), || numbers.iter().all(is_ready));
    fs::write(watched.folder.path().join("go"), "").unwrap();
    for python in running {
        let said = python.wait_with_output().unwrap().stdout;
        let expected = "(3, {'schema': 1, 'job': {'sentence': 'stuck: rank 2'}})\n";
        assert_eq!(String::from_utf8_lossy(&said), expected);
    }
    assert_eq!(watched.log(), "ncclflow dump --json\n");
}
