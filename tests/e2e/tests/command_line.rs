//! What `ncclflow` says and does when something is wrong: the exit code, the words, and what is left behind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use ncclflow_e2e::harness::{
    bed::Bed,
    kernel_objects::{self, KernelObjects},
    memory, program_files, programs, progress,
    recorder::Recorder,
};
use rustix::{
    param::clock_ticks_per_second,
    process::{Pid, Signal, WaitId, WaitIdOptions, waitid},
};
use test_support::{need, root, wait_until};

const VERSION: &str = "2.27.5-cu12";

fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Fails with 1 and these words, and makes no output folder.
fn refuses(program: &Path, arguments: &[&str], words: &[&str]) {
    assert_refused(&run(program, arguments), arguments, words);
}

fn assert_refused(output: &Output, arguments: &[&str], words: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{arguments:?} does not say `{word}`: {said}");
    }
}

/// Runs it, and says how long it and its children ran on a CPU. It may not say much.
fn run_timed(program: &Path, arguments: &[&str]) -> (Output, Duration) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = Vec::new();
    child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    // What it took can be read until it is waited for.
    waitid(WaitId::Pid(Pid::from_child(&child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    // utime, stime, cutime and cstime of proc_pid_stat(5).
    let times = stat.rsplit_once(") ").unwrap().1.split(' ').skip(11).take(4);
    let ticks: u64 = times.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    let took = Duration::from_millis(ticks * 1000 / clock_ticks_per_second());
    (Output { status: child.wait().unwrap(), stdout: Vec::new(), stderr }, took)
}

#[test]
fn processes_that_cannot_be_traced_are_named() {
    let Some(ncclflow) = programs::ncclflow() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out").display().to_string();
    // Larger than any pid_max.
    refuses(&ncclflow, &["record", "-p", "4194305", "-o", &out], &["there is no process 4194305"]);
    let mut sleep = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = sleep.id().to_string();
    refuses(&ncclflow, &["record", "-p", &pid, "-o", &out], &["has no NCCL library mapped", "sleep"]);
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    assert!(!Path::new(&out).exists(), "a recording that did not begin leaves nothing");

    let usage = run(&ncclflow, &["record"]);
    assert_eq!(usage.status.code(), Some(2), "{}", said(&usage));
    let returns = run(&ncclflow, &["record", "-p", "1", "--returns"]);
    assert_eq!(returns.status.code(), Some(2), "{}", said(&returns));
    for wrong in [["-p", "0"], ["-p", "x"], ["-d", "0"], ["-d", "-1"], ["--buffer-size", "0"]] {
        let output = run(&ncclflow, &["record", "-p", "1", wrong[0], wrong[1]]);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", said(&output));
    }
}

#[test]
fn libraries_that_cannot_be_read_are_named() {
    let (Some(ncclflow), Some(library)) = (programs::ncclflow(), programs::nccl(VERSION)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let name = |name: &str| folder.path().join(name).display().to_string();
    let whole = fs::metadata(&library).unwrap().len();
    for (file, length) in [("empty", 0), ("header", 64), ("half", whole / 2), ("nearly", whole - 100)] {
        let path = name(file);
        fs::copy(&library, &path).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        let arguments = ["symbols", &path];
        // Once more, where it was not quick: what the host takes from a virtual machine's CPU counts as its own.
        let is_quick = (0..3).any(|_| {
            let (output, took) = run_timed(&ncclflow, &arguments);
            assert_refused(&output, &arguments, &[file]);
            took < Duration::from_secs(1)
        });
        assert!(is_quick, "{file} took a second on a CPU");
        fs::remove_file(&path).unwrap();
    }
    let foreign = name("text");
    fs::write(&foreign, "no ELF file").unwrap();
    refuses(&ncclflow, &["symbols", &foreign], &["text"]);
    refuses(&ncclflow, &["symbols", &name("missing")], &["missing"]);
    // A folder of an older version: lines, and no recording.
    let lines = folder.path().join("old/0x1");
    fs::create_dir_all(&lines).unwrap();
    fs::write(lines.join("proxy_flow_rank0.jsonl"), "{}\n").unwrap();
    for command in ["check", "summary"] {
        refuses(&ncclflow, &[command, &name("old")], &["has no recording", "are for other programs"]);
    }
}

/// The kernel side tells processes apart by their numbers in the host's PID namespace, which one
/// of its own does not show.
#[test]
fn returns_that_cannot_be_told_apart_are_refused() {
    let Some(ncclflow) = programs::ncclflow() else { return };
    if !root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (ncclflow, out) = (ncclflow.display().to_string(), folder.path().join("out").display().to_string());
    let inside = ["--pid", "--fork", "--mount-proc", &ncclflow, "record", "-p", "1", "-o", &out];
    let returns = [&inside[..], &["--level", "api", "--returns", "--links", "perf"]].concat();
    refuses(Path::new("unshare"), &returns, &["`--returns`", "the host's PID namespace"]);
    let calls = [&inside[..], &["--level", "api", "--links", "perf"]].concat();
    refuses(Path::new("unshare"), &calls, &["has no NCCL library mapped"]);
    assert!(!Path::new(&out).exists(), "a recording that did not begin leaves nothing");
}

/// A bed that waits, in a folder of its own. `None` if the machine lacks something.
fn waiting_bed(arguments: &[&str]) -> Option<(PathBuf, PathBuf, tempfile::TempDir, Bed)> {
    let (ncclflow, bed, library) = (programs::ncclflow()?, programs::bed()?, programs::nccl(VERSION)?);
    if !root() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let bed = Bed::start(&bed, &library, folder.path(), arguments).unwrap();
    Some((ncclflow, library, folder, bed))
}

/// Every line of every JSON-lines file is whole.
fn assert_whole_lines(out: &Path) -> u64 {
    let mut lines = 0;
    for folder in fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        for file in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if file.extension().is_some_and(|extension| extension == "jsonl") {
                let text = fs::read_to_string(&file).unwrap();
                assert!(text.is_empty() || text.ends_with('\n'), "{} ends in the middle", file.display());
                for line in text.lines() {
                    serde_json::from_str::<serde_json::Value>(line).unwrap();
                    lines += 1;
                }
            }
        }
    }
    lines
}

fn session(out: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(out.join("session.json")).unwrap()).unwrap()
}

/// Folders that must not be written to, and a user who may not trace.
#[test]
fn folders_that_are_taken_and_users_without_rights_are_refused() {
    let Some((ncclflow, _library, folder, bed)) = waiting_bed(&["--ranks", "2"]) else { return };
    let pids = bed.pid_list();
    let full = folder.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("precious"), "mine").unwrap();
    let out = |path: &Path| path.display().to_string();
    refuses(&ncclflow, &["record", "-p", &pids, "-o", &out(&full), "-d", "1"], &["exists and is not empty"]);
    assert_eq!(fs::read_dir(&full).unwrap().count(), 1);
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    refuses(&ncclflow, &["record", "-p", &pids, "-o", &out(&file), "-d", "1"], &["file"]);
    refuses(&ncclflow, &["record", "-p", &pids, "-o", "/proc/ncclflow", "-d", "1"], &["/proc/ncclflow"]);
    refuses(&ncclflow, &["record", "-p", &pids, "-o", &out(&folder.path().join("a/b"))], &["does not exist"]);

    // The same as nobody: from a place that nobody can read.
    let public = folder.path().join("public");
    fs::create_dir(&public).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&public, fs::Permissions::from_mode(0o777)).unwrap();
    let program = public.join("ncclflow");
    program_files::copy(&ncclflow, &program).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let output = Command::new(&program).args(arguments).uid(65534).gid(65534).output().unwrap();
        (output.status.code(), said(&output))
    };
    let (code, words) = as_nobody(&["record", "-p", &pids, "-o", &out(&public.join("out"))]);
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("root"), "{words}");
    assert!(!public.join("out").exists(), "a recording that did not begin leaves nothing");

    // A kernel without BPF, as far as the program can tell.
    let bare = folder.path().join("bare");
    let output = without_bpf(&ncclflow, &["record", "-p", &pids, "-o", &out(&bare), "-d", "1"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("the kernel must have BPF"), "{}", said(&output));
    assert!(!bare.exists(), "a recording that did not begin leaves nothing");

    // Root owns it, others may not write.
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).unwrap();
    let nobody = as_nobody(&["check", &out(&closed)]);
    assert_eq!(nobody.0, Some(1), "{}", nobody.1);
}

/// Runs a program for which bpf(2) does not exist: ENOSYS, by a seccomp filter.
fn without_bpf(program: &Path, arguments: &[&str]) -> Output {
    use std::io;
    const SYS_BPF: u32 = 321; // x86-64
    const ENOSYS: u32 = 38;
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt,
        jf,
        k,
    };
    let mut filter: [libc::sock_filter; 4] = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // seccomp_data.nr
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, SYS_BPF),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | ENOSYS),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let mut command = Command::new(program);
    command.args(arguments);
    // SAFETY: the closure only makes two system calls, with a filter that it owns.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
            let done = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
            if done { Ok(()) } else { Err(io::Error::last_os_error()) }
        });
    }
    command.output().unwrap()
}

/// Only the named process gets breakpoints, and none is left after the end, however it comes.
#[test]
fn only_the_named_process_pays_and_nothing_is_left_behind() {
    let arguments = "--ranks 2 --bytes 65536 --iters 1000000 --interval-ms 5 --timeout 900";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let Some((ncclflow, library, folder, bed)) = waiting_bed(&arguments) else { return };
    let other_folder = tempfile::tempdir().unwrap();
    let Some(bed_program) = programs::bed() else { return };
    let other = Bed::start(&bed_program, &library, other_folder.path(), &["--ranks", "2"]).unwrap();
    let addresses =
        memory::function_addresses(&ncclflow, &library, &["ncclProxySaveOp", "SaveProxy"]).unwrap();
    let look = |pid: u32| memory::first_bytes(pid, &library, &addresses).unwrap();
    let (pid, other_pid) = (bed.ready.pids[0], other.ready.pids[0]);
    let untouched = look(other_pid);
    assert!(untouched.iter().all(|byte| *byte != memory::BREAKPOINT));

    // One link for all probes, and one for each.
    let kinds =
        [("multi", Signal::INT), ("multi", Signal::TERM), ("multi", Signal::KILL), ("perf", Signal::INT)];
    for (round, (links, signal)) in kinds.into_iter().enumerate() {
        let out = folder.path().join(format!("out{round}"));
        let options = ["--probes", "per-call", "--links", links];
        let recorder = Recorder::start(&ncclflow, &bed.pid_list(), &out, &options).unwrap();
        assert_eq!(look(pid), [memory::BREAKPOINT; 2], "the probes are there");
        assert_eq!(look(other_pid), untouched, "another process on the same library has none");
        bed.go().unwrap();
        if round == 0 {
            progress::wait_for_blocks(&out, 1);
        }
        let objects = kernel_objects::of_process(recorder.pid()).unwrap();
        let expected = if links == "multi" { 1 } else { 2 };
        assert!(!objects.programs.is_empty() && objects.links.len() == expected, "{links}: {objects:?}");
        assert_eq!(session(&out)["attach"]["links"], links);
        recorder.signal(signal).unwrap();
        let (status, words) = recorder.finish().unwrap();
        // The probes go at once; the program that they ran the kernel frees when its CPUs have come to rest (RCU).
        assert!(objects.still_there().unwrap().links.is_empty(), "{links}, after {signal:?}");
        wait_until(
            &format!("no program is left of {links}, after {signal:?}"),
            Duration::from_mins(3),
            || objects.still_there().unwrap() == KernelObjects::default(),
        );
        assert_eq!(look(pid), untouched, "no probe is left after {signal:?}");
        let lines = assert_whole_lines(&out);
        if signal == Signal::KILL {
            assert!(!status.success());
            assert_eq!(session(&out)["state"], "recording", "a killed session does not claim to be complete");
        } else {
            assert!(status.success(), "{words}");
            assert_eq!(session(&out)["state"], "complete");
            assert_eq!(session(&out)["loss"]["records_lost"], 0);
        }
        assert!(lines > 0 || round > 0, "the first round has seen the job at work");
    }
    let events = fs::read_to_string("/sys/kernel/tracing/uprobe_events").unwrap_or_default();
    assert!(!events.contains("libnccl"), "{events}");
}

/// A process that exits in the middle ends its recording, with everything that came until then.
#[test]
fn a_process_that_is_killed_while_it_is_traced_ends_the_recording() {
    let arguments = ["--ranks", "2", "--mode", "processes", "--iters", "2000", "--interval-ms", "5"];
    let Some((ncclflow, _library, folder, bed)) = waiting_bed(&arguments) else { return };
    let out = folder.path().join("out");
    // Of several processes those without NCCL are passed over, and said.
    let mut sleep = Command::new("sleep").arg("60").spawn().unwrap();
    let pids = format!("{},{}", sleep.id(), bed.pid_list());
    let recorder = Recorder::start(&ncclflow, &pids, &out, &[]).unwrap();
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    bed.go().unwrap();
    progress::wait_for_blocks(&out, 1);
    for &pid in &bed.ready.pids {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    let (status, words) = recorder.finish().unwrap();
    assert!(status.success(), "{words}");
    assert!(assert_whole_lines(&out) > 0);
    let session = session(&out);
    assert_eq!(session["state"], "complete");
    assert!(session["passed_over"][0].as_str().unwrap().contains("has no NCCL library mapped"));
    assert!(session["targets"].as_array().unwrap().iter().all(|target| target["exited"] == true));
}

/// A full disk: whole lines, a count of what is missing, and exit code 1.
#[test]
fn a_full_disk_is_said_and_leaves_whole_lines() {
    let arguments = ["--ranks", "2", "--iters", "150", "--bytes", "65536", "--interval-ms", "10"];
    let Some((ncclflow, _library, folder, mut bed)) = waiting_bed(&arguments) else { return };
    let small = folder.path().join("small");
    fs::create_dir(&small).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "ncclflow-test"]).arg(&small).status();
    if !need("mount", mounted.is_ok_and(|status| status.success()), "a tmpfs must be mountable") {
        return;
    }
    let out = small.join("out");
    let recorder = Recorder::start(&ncclflow, &bed.pid_list(), &out, &[]).unwrap();
    bed.go().unwrap();
    let (_, summary) = bed.finish().unwrap();
    let (status, words) = recorder.finish().unwrap();
    let lines = assert_whole_lines(&out);
    Command::new("umount").arg(&small).status().unwrap();
    assert!(summary.ok, "the job does not notice our disk");
    assert_eq!(status.code(), Some(1), "{words}");
    assert!(lines > 0);
    assert!(words.to_lowercase().contains("space"), "the reason is said: {words}");
    assert!(!words.contains(" 0 lines;"), "the lost lines are counted: {words}");
    let _ = std::io::stdout().flush();
}

/// Records that find the ring buffer full are counted to the last one: hits = delivered + lost + disarmed.
#[test]
fn every_hit_is_delivered_or_counted() {
    let arguments = ["--ranks", "2", "--iters", "100", "--bytes", "65536", "--ops", "allreduce,sendrecv"];
    let Some((ncclflow, _library, folder, mut bed)) = waiting_bed(&arguments) else { return };
    let out = folder.path().join("out");
    let recorder = Recorder::start(&ncclflow, &bed.pid_list(), &out, &["--buffer-size", "1"]).unwrap();
    // A reader that does not read.
    recorder.signal(Signal::STOP).unwrap();
    bed.go().unwrap();
    assert!(bed.finish().unwrap().1.ok);
    recorder.signal(Signal::CONT).unwrap();
    let (status, words) = recorder.finish().unwrap();
    assert!(status.success(), "{words}");
    let session = session(&out);
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let mut lost = 0;
    for probe in session["probes"].as_array().unwrap() {
        let accounted = number(&probe["delivered"]) + number(&probe["lost"]) + number(&probe["disarmed"]);
        assert_eq!(number(&probe["hits"]), accounted, "{probe}");
        lost += number(&probe["lost"]);
    }
    assert_eq!(number(&session["loss"]["records_lost"]), lost);
    assert!(assert_whole_lines(&out) > 0);
}
