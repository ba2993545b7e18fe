//! What `ncclflow` says and does when something is wrong: the exit code, the words, and what is left behind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::Read as _,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
};

use ncclflow_e2e::harness::{
    disk::Disk,
    kernel_objects::{self, KernelObjects},
    memory,
    node::sleeper,
    prelude::*,
    program_files,
};
use rustix::{
    param::clock_ticks_per_second,
    process::{Pid, WaitId, WaitIdOptions, kill_process, waitid},
};

const VERSION: &str = "2.27.5-cu12";

/// Exits with 2.
fn is_not_understood(words: &str) {
    let ran = ncclflow(words);
    assert_eq!(ran.code(), Some(2), "{words}: {}", ran.stderr);
}

/// Runs it, and says how long it and its children ran on a CPU. It may not say much.
fn run_timed(command: &mut Command) -> (Ran, Duration) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    // What it took can be read until it is waited for.
    waitid(WaitId::Pid(Pid::from_child(&child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    // utime, stime, cutime and cstime of proc_pid_stat(5).
    let times = stat.rsplit_once(") ").unwrap().1.split(' ').skip(11).take(4);
    let ticks: u64 = times.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    let took = Duration::from_millis(ticks * 1000 / clock_ticks_per_second());
    (Ran { status: child.wait().unwrap(), command: String::new(), stdout: String::new(), stderr }, took)
}

#[test]
fn processes_that_cannot_be_traced_are_named() {
    let Some(_ncclflow) = programs::ncclflow() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    // Larger than any pid_max.
    ncclflow_of("record -p 4194305 -o", &[&out]).refused(&["there is no process 4194305"]);
    let sleep = sleeper();
    ncclflow_of(&format!("record -p {} -o", sleep.0.id()), &[&out])
        .refused(&["has no NCCL library mapped", "sleep"]);
    assert!(!out.exists(), "a recording that did not begin leaves nothing");
    for command in ["record", "top --once", "stacks", "dump", "history", "watch"] {
        ncclflow(&format!("{command} -p 4194305,4194306"))
            .refused(&["there are no processes 4194305, 4194306"]);
    }
    ncclflow(&format!("watch -d 5 -p {}", sleep.0.id())).refused(&["has no NCCL library mapped", "sleep"]);

    is_not_understood("record");
    is_not_understood("record -p 1 --returns");
    for wrong in ["-p 0", "-p x", "-d 0", "-d -1", "--buffer-size 0"] {
        is_not_understood(&format!("record -p 1 {wrong}"));
    }
}

#[test]
fn libraries_that_cannot_be_read_are_named() {
    let Some((ncclflow, library)) = programs::ncclflow().zip(programs::nccl(VERSION)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let name = |name: &str| folder.path().join(name);
    let whole = fs::metadata(&library).unwrap().len();
    for (file, length) in [("empty", 0), ("header", 64), ("half", whole / 2), ("nearly", whole - 100)] {
        let path = name(file);
        fs::copy(&library, &path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        // Once more, where it was not quick: what the host takes from a virtual machine's CPU counts as its own.
        let is_quick = (0..3).any(|_| {
            let (ran, took) = run_timed(Command::new(&ncclflow).arg("symbols").arg(&path));
            ran.refused(&[file]);
            took < Duration::from_secs(1)
        });
        assert!(is_quick, "{file} took a second on a CPU");
        fs::remove_file(&path).unwrap();
    }
    let foreign = name("text");
    fs::write(&foreign, "no ELF file").unwrap();
    ncclflow_of("symbols", &[&foreign]).refused(&["text"]);
    ncclflow_of("symbols", &["/bin/true"]).refused(&["is no NCCL library"]);
    ncclflow_of("symbols", &[name("missing")]).refused(&["missing"]);
    // A folder of an older version: lines, and no recording.
    let lines = folder.path().join("old/0x1");
    fs::create_dir_all(&lines).unwrap();
    fs::write(lines.join("proxy_flow_rank0.jsonl"), "{}\n").unwrap();
    for command in ["check", "summary"] {
        ncclflow_of(command, &[name("old")]).refused(&["has no recording", "are for other programs"]);
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
    let out = folder.path().join("out");
    let inside = |options: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc"]).arg(&ncclflow);
        unshare.args("record -p 1 --level api --links perf -o".split(' ')).arg(&out);
        run(unshare.args(options.split_whitespace()))
    };
    inside("--returns").refused(&["`--returns`", "the host's PID namespace"]);
    inside("").refused(&["has no NCCL library mapped"]);
    assert!(!out.exists(), "a recording that did not begin leaves nothing");
}

/// Every line of every JSON-lines file is whole.
fn assert_whole_lines(out: &Path) -> u64 {
    let mut count = 0;
    for (name, content) in exported::files_below(out) {
        if name.extension().is_some_and(|extension| extension == "jsonl") && name.components().count() > 1 {
            count += lines(&String::from_utf8(content).unwrap()).len() as u64;
        }
    }
    count
}

/// Folders that must not be written to, and a user who may not trace.
#[test]
fn folders_that_are_taken_and_users_without_rights_are_refused() {
    let Some(world) = World::start(VERSION, "--ranks 2") else { return };
    let record = format!("record -p {}", world.bed.pid_list());
    let full = world.path("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("precious"), "mine").unwrap();
    ncclflow_of(&format!("{record} -d 1 -o"), &[&full]).refused(&["exists and is not empty"]);
    assert_eq!(fs::read_dir(&full).unwrap().count(), 1);
    let file = world.path("file");
    fs::write(&file, "").unwrap();
    ncclflow_of(&format!("{record} -d 1 -o"), &[&file]).refused(&["file"]);
    ncclflow(&format!("{record} -d 1 -o /proc/ncclflow")).refused(&["/proc/ncclflow"]);
    ncclflow_of(&format!("{record} -d 1 -o"), &[world.path("a/b")]).ok();
    assert!(world.path("a/b/session.json").exists(), "the folder above is made");

    // The same as nobody: from a place that nobody can read.
    let public = world.path("public");
    fs::create_dir(&public).unwrap();
    fs::set_permissions(world.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&public, fs::Permissions::from_mode(0o777)).unwrap();
    let program = public.join("ncclflow");
    program_files::copy(&world.ncclflow, &program).unwrap();
    let as_nobody = |words: &str, path: &Path| {
        run(Command::new(&program).args(words.split(' ')).arg(path).uid(65534).gid(65534))
    };
    as_nobody(&format!("{record} -o"), &public.join("out")).refused(&["root"]);
    assert!(!public.join("out").exists(), "a recording that did not begin leaves nothing");

    // A kernel without BPF, as far as the program can tell.
    let bare = world.path("bare");
    let mut command = Command::new(&world.ncclflow);
    command.args(record.split(' ')).args(["-d", "1", "-o"]).arg(&bare);
    without_bpf(&mut command).refused(&["the kernel must have BPF"]);
    assert!(!bare.exists(), "a recording that did not begin leaves nothing");

    // Root owns it, others may not write.
    let closed = world.path("closed");
    fs::create_dir(&closed).unwrap();
    as_nobody("check", &closed).refused(&[]);
}

/// Runs a program for which bpf(2) does not exist: ENOSYS, by a seccomp filter.
fn without_bpf(command: &mut Command) -> Ran {
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
    // SAFETY: the closure only makes two system calls, with a filter that it owns.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
            let done = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
            if done { Ok(()) } else { Err(io::Error::last_os_error()) }
        });
    }
    run(command)
}

/// Only the named process gets breakpoints, and none is left after the end, however it comes.
#[test]
fn only_the_named_process_pays_and_nothing_is_left_behind() {
    let workload = "--ranks 2 --bytes 65536 --iters 1000000 --interval-ms 5 --timeout 900";
    let Some(world) = World::start(VERSION, workload) else { return };
    let Some(other) = World::start(VERSION, "--ranks 2") else { return };
    let functions = ["ncclProxySaveOp", "SaveProxy"];
    let addresses = memory::function_addresses(&world.ncclflow, &world.library, &functions).unwrap();
    let look = |pid: u32| memory::first_bytes(pid, &world.library, &addresses).unwrap();
    let (pid, other_pid) = (world.bed.ready.pids[0], other.bed.ready.pids[0]);
    let untouched = look(other_pid);
    assert!(untouched.iter().all(|byte| *byte != memory::BREAKPOINT));

    // One link for all probes, and one for each.
    let kinds =
        [("multi", Signal::INT), ("multi", Signal::TERM), ("multi", Signal::KILL), ("perf", Signal::INT)];
    for (round, (links, signal)) in kinds.into_iter().enumerate() {
        let name = format!("out{round}");
        let out = world.path(&name);
        let recorder = world.record_to(&name, &format!("--probes per-call --links {links}"));
        assert_eq!(look(pid), [memory::BREAKPOINT; 2], "the probes are there");
        assert_eq!(look(other_pid), untouched, "another process on the same library has none");
        world.bed.go().unwrap();
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
    let workload = "--ranks 2 --mode processes --iters 2000 --interval-ms 5";
    let Some(world) = World::start(VERSION, workload) else { return };
    // Of several processes those without NCCL are passed over, and said.
    let sleep = sleeper();
    let pids = format!("{},{}", sleep.0.id(), world.bed.pid_list());
    let recorder = Recorder::start(&world.ncclflow, &pids, &world.out(), &["--strict"]).unwrap();
    drop(sleep);
    world.bed.go().unwrap();
    progress::wait_for_blocks(&world.out(), 1);
    for &pid in &world.bed.ready.pids {
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    }
    let (status, said) = recorder.finish().unwrap();
    assert!(assert_whole_lines(&world.out()) > 0);
    let session = world.session();
    assert_eq!(session["state"], "complete");
    assert!(text(&session["passed_over"][0]).contains("has no NCCL library mapped"));
    assert_eq!(status.code(), Some(3), "--strict, and one of the processes was not traced: {said}");
    assert!(list(&session["targets"]).iter().all(|target| target["exited"] == true));
}

/// A full disk: whole lines, a count of what is missing, and exit code 1.
#[test]
fn a_full_disk_is_said_and_leaves_whole_lines() {
    let workload = "--ranks 2 --iters 150 --bytes 65536 --interval-ms 10";
    let Some(mut world) = World::start(VERSION, workload) else { return };
    let disk = Disk::mount_kib(&world.path("small"), 256);
    if !need("mount", disk.is_ok(), "a tmpfs must be mountable") {
        return;
    }
    let recorder = world.record_to("small/out", "");
    // The job does not notice our disk.
    world.run();
    let (status, words) = recorder.finish().unwrap();
    let count = assert_whole_lines(&world.path("small/out"));
    assert_eq!(status.code(), Some(1), "{words}");
    assert!(count > 0);
    assert!(words.to_lowercase().contains("space"), "the reason is said: {words}");
    let counts_lines = words.contains(" lines; undecodable") && !words.contains(" 0 lines;");
    assert!(counts_lines, "the lost lines are counted: {words}");
    let session = read_json(&world.path("small/out/session.json"));
    assert_eq!(session["state"], "write_failed", "the last word found no room: {session:#}");
    assert!(number(&session["loss"]["lines_lost"]) > 0, "{:#}", session["loss"]);
}

/// Records that find the ring buffer full are counted to the last one: hits = delivered + lost + disarmed.
#[test]
fn every_hit_is_delivered_or_counted() {
    let workload = "--ranks 2 --iters 100 --bytes 65536 --ops allreduce,sendrecv";
    let Some(mut world) = World::start(VERSION, workload) else { return };
    let recorder = world.record("--buffer-size 1");
    // A reader that does not read.
    recorder.signal(Signal::STOP).unwrap();
    world.run();
    recorder.signal(Signal::CONT).unwrap();
    recorder.end().unwrap();
    let session = world.session();
    for probe in list(&session["probes"]) {
        let [hits, accounted @ ..] = ["hits", "delivered", "lost", "disarmed"].map(|key| number(&probe[key]));
        assert_eq!(hits, accounted.iter().sum::<u64>(), "{probe}");
    }
    assert_eq!(number(&session["loss"]["records_lost"]), sum(&session["probes"], "lost"));
    assert!(assert_whole_lines(&world.out()) > 0);
}
