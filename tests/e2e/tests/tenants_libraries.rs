//! Files of tenants that change, do not answer, or take all memory, while the node is recorded.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{Read as _, Write as _},
    process::Output,
    sync::{Mutex, PoisonError},
};

use ncclflow_e2e::harness::{
    fuse::Fuse,
    memory::{self, BREAKPOINT},
    prelude::*,
    processes::{children_of, resident_bytes, status_field},
};
use rustix::process::{Pid, kill_process};
use test_support::hostile_file::overlapping_tables;

const JOB: &str = "--mode processes --iters 5 --bytes 4096 --channels 1 --sync --hold-file {}/hold";

/// Whoever records the node sees the processes of the other tests, too, and what becomes of their libraries.
static ALONE: Mutex<()> = Mutex::new(());
/// For what takes a second or two; the rest is for a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);
/// A program that would wait for a silent file system would take longer: that is silent for two minutes.
const BOUND: Duration = Duration::from_secs(90);

/// Writes over a file, which stays the same inode: `cat NEW > FILE`.
fn write_over(file: &Path, new: &Path) {
    let mut from = File::open(new).unwrap();
    let mut to = File::options().write(true).truncate(true).open(file).unwrap();
    std::io::copy(&mut from, &mut to).unwrap();
}

/// A process that has mapped the first page of a file as code.
fn mapping(file: &Path) -> Killed {
    let text = "import mmap, sys, time\n\
                file = open(sys.argv[1], 'rb')\n\
                code = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)\n\
                print('done', flush=True)\ntime.sleep(600)\n";
    let mut child = Killed::start(Command::new("python3").args(["-c", text]).arg(file)).unwrap();
    assert_eq!(child.line().unwrap(), "done");
    child
}

/// Runs a program that has to end by itself.
fn run_bounded(program: &Path, arguments: &[&str], limit: Duration) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Killed(command.spawn().unwrap());
    let started = Instant::now();
    while child.0.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < limit, "{arguments:?} does not end");
        thread::sleep(Duration::from_millis(20));
    }
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.0.stdout.as_mut().unwrap().read_to_end(&mut stdout).unwrap();
    child.0.stderr.as_mut().unwrap().read_to_end(&mut stderr).unwrap();
    Output { status: child.0.wait().unwrap(), stdout, stderr }
}

/// The child of a program with this argument.
fn child_of(pid: u32, role: &str) -> Option<Pid> {
    let has_role = |child: &u32| {
        fs::read_to_string(format!("/proc/{child}/cmdline")).is_ok_and(|line| line.contains(role))
    };
    Pid::from_raw(children_of(pid).into_iter().find(has_role)?.cast_signed())
}

fn job(program: &Path, library: &Path, place: &Path) -> Bed {
    Bed::of_words(program, library, place, JOB).unwrap()
}

fn let_end(mut bed: Bed, place: &Path) {
    bed.go().unwrap();
    File::create(place.join("hold")).unwrap();
    bed.end();
}

/// How many changed libraries the report names.
fn changed_libraries(output: &Path) -> usize {
    session(output)["changed_libraries"].as_array().map_or(0, Vec::len)
}

/// A reader that the machine has kept waiting is lost, too. What costs readers costs them each time.
fn assert_none_lost(record: impl Fn() -> (Value, String)) {
    const TRIES: usize = 3;
    let mut lost = String::new();
    for _ in 0..TRIES {
        let (session, said) = record();
        if session["lost_readers"].is_null() {
            return;
        }
        lost = format!("{session:#}\n{said}");
    }
    panic!("readers are lost each time: {lost}");
}

#[test]
fn a_library_rewritten_in_place_gets_no_probe_where_its_former_content_had_one() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let [Some((ncclflow, program, old)), Some((_, _, new))] =
        ["2.27.5-cu12", "2.21.5-cu12"].map(programs::needed)
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libnccl.so.2");
    fs::copy(&old, &library).unwrap();
    let former = memory::function_addresses(&ncclflow, &library, &["ncclLaunchKernelAfter_NoCuda"]).unwrap();
    let output = folder.path().join("out");
    let recorder = Recorder::of_node(&output, "").unwrap();
    let first = folder.path().join("first");
    let bed = job(&program, &library, &first);
    let pids = bed.ready.pids.clone();
    wait_until("the first job is traced", Duration::from_secs(30), || are_traced(&session(&output), &pids));
    assert_eq!(memory::first_bytes(pids[0], &library, &former).unwrap(), [BREAKPOINT], "it is probed");
    let_end(bed, &first);

    write_over(&library, &new);
    wait_until("the change is seen", PATIENCE, || changed_libraries(&output) == 1);
    let second = folder.path().join("second");
    let bed = job(&program, &library, &second);
    assert_eq!(bed.ready.nccl, "2.21.5");
    let pids = bed.ready.pids.clone();
    let now = memory::first_bytes(pids[0], &library, &former).unwrap();
    assert_ne!(now, [BREAKPOINT], "a breakpoint at an address of the former content");
    wait_until("the second job is traced", Duration::from_secs(30), || are_traced(&session(&output), &pids));
    let_end(bed, &second);
    let said = recorder.interrupt().unwrap();
    let session = session(&output);
    let is_it = |known: &&Value| known["path"] == library.display().to_string();
    let [changed] = &**list(&session["changed_libraries"]) else { panic!("{said}") };
    assert!(is_it(&changed), "{changed}");
    let of_it: Vec<&Value> = list(&session["libraries"]).iter().filter(is_it).collect();
    let [first, second] = *of_it else { panic!("{of_it:?}") };
    assert_ne!(first["nccl_version"], second["nccl_version"]);
}

#[test]
fn probes_go_and_processes_are_named_when_a_mapped_library_changes() {
    /// Half a second is promised, and a tracer that comes late has more to do.
    const PROMISED: Duration = Duration::from_secs(2);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((ncclflow, program, library)) = programs::needed("2.27.5-cu12") else { return };
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("libnccl.so.2");
    fs::copy(&library, &copy).unwrap();
    let place = folder.path().join("job");
    let bed = job(&program, &copy, &place);
    let address = memory::function_addresses(&ncclflow, &copy, &["ncclLaunchKernelAfter_NoCuda"]).unwrap();
    let byte = |pid| memory::first_bytes(pid, &copy, &address).unwrap()[0];
    let pid = bed.ready.pids[0];
    let untouched = byte(pid);
    let pids = bed.pid_list();
    for whom in ["all", "some"] {
        // One change after the other, until one is seen as soon as it should be: none is by a tracer that is slow.
        let mut fastest = Duration::MAX;
        for number in 0..5 {
            let output = folder.path().join(format!("{whom}-{number}"));
            let recorder = if whom == "all" {
                Recorder::of_node(&output, "").unwrap()
            } else {
                Recorder::start(&ncclflow, &pids, &output, &[]).unwrap()
            };
            wait_until("it is probed", PATIENCE, || byte(pid) == BREAKPOINT);
            // Another name of the file changes its ctime, and nothing else.
            let link = folder.path().join("another-name");
            fs::hard_link(&copy, &link).unwrap();
            fs::remove_file(&link).unwrap();
            thread::sleep(Duration::from_secs(1));
            assert_eq!(byte(pid), BREAKPOINT, "what did not change stays probed");
            // The last byte, which no probe stands on, and which no process needs.
            let mut file = File::options().append(true).open(&copy).unwrap();
            file.write_all(b"x").unwrap();
            let changed = Instant::now();
            wait_until("the probes are gone", PATIENCE, || byte(pid) == untouched);
            fastest = fastest.min(changed.elapsed());
            wait_until("it is in the report", PATIENCE, || changed_libraries(&output) == 1);
            let said = recorder.interrupt().unwrap();
            let session = session(&output);
            let changed = &session["changed_libraries"][0];
            assert!(list(&changed["pids"]).contains(&pid.into()), "{changed:#} {said}");
            let untraced = &target(&session, pid).unwrap()["untraced"];
            assert!(text(untraced).contains("changed in place"), "{said}");
            assert!(said.contains("changed in place"), "{said}");
            if fastest < PROMISED {
                break;
            }
        }
        assert!(fastest < PROMISED, "{fastest:?}");
    }
    let_end(bed, &place);
}

#[test]
fn a_file_system_that_does_not_answer_keeps_nobody_waiting() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(ncclflow) = programs::tracer() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().join("mount");
    fs::create_dir(&mount).unwrap();
    // Dropped last: it can only end when the file system has.
    let tenant: Killed;
    let mounted = Fuse::mount(&mount, "libnccl.so.2", vec![0x90; 8192]);
    if !need("mount", mounted.is_ok(), "run where /dev/fuse may be mounted") {
        return;
    }
    let fuse = mounted.unwrap();
    tenant = mapping(&mount.join("libnccl.so.2"));
    let pid = tenant.pid().to_string();
    fuse.fall_silent();

    // Not asked: named.
    assert_none_lost(|| {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("out").display().to_string();
        let arguments = ["record", "--all", "--no-cache", "-d", "1", "-o", &output];
        let done = run_bounded(&ncclflow, &arguments, BOUND);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{said}");
        let session = session(Path::new(&output));
        let passed_over = session["passed_over"].to_string() + &session["targets"].to_string();
        assert!(passed_over.contains(&pid) && passed_over.contains("FUSE"), "{passed_over}\n{said}");
        (session, said)
    });
    let listed = run_bounded(&ncclflow, &["ps", "--no-comms", "--json"], BOUND);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let entry = list(&listed["processes"]).iter().find(|entry| entry["pid"] == tenant.pid());
    assert!(entry.unwrap()["errors"].to_string().contains("FUSE"), "{listed:#}");

    // Asked: whoever asked is lost, and the program goes on.
    let output = folder.path().join("asked").display().to_string();
    let arguments = ["record", "--all", "--allow-fuse", "--no-cache", "-d", "25", "-o", &output];
    let done = run_bounded(&ncclflow, &arguments, BOUND);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    let session = session(Path::new(&output));
    assert!(number(&session["lost_readers"]["unanswered"]) >= 1, "{session:#}\n{said}");
    let about_it = format!("process {pid}: no answer");
    let mut passed_over = list(&session["passed_over"]).iter();
    assert!(passed_over.any(|what| text(what).starts_with(&about_it)), "{session:#}");
    drop(fuse);
}

/// Resident memory of a process and its descendants, in bytes.
fn resident(pid: u32) -> u64 {
    resident_bytes(pid) + children_of(pid).into_iter().map(resident).sum::<u64>()
}

#[test]
fn a_small_file_that_takes_all_memory_ends_its_reader_and_nobody_else() {
    const MOST: u64 = 1300 << 20;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(_ncclflow) = programs::tracer() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libnccl.so.2");
    fs::write(&file, overlapping_tables()).unwrap();
    assert!(fs::metadata(&file).unwrap().len() < 1_200_000);
    let tenant = mapping(&file);
    let output = folder.path().join("out");
    let recorder = Recorder::of_node(&output, "").unwrap();
    let mut peak = 0;
    wait_until("the file was read", Duration::from_mins(2), || {
        peak = resident(recorder.pid()).max(peak);
        target(&session(&output), tenant.pid()).is_some()
    });
    let said = recorder.interrupt().unwrap();
    assert!(peak < MOST, "{peak} bytes");
    let session = session(&output);
    let untraced = &target(&session, tenant.pid()).unwrap()["untraced"];
    assert!(untraced.is_string(), "{session:#}\n{said}");
}

#[test]
fn a_reader_that_is_killed_or_stopped_is_replaced() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_, program, library)) = programs::needed("2.27.5-cu12") else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out");
    let recorder = Recorder::of_node(&output, "").unwrap();
    for (round, signal) in [Signal::KILL, Signal::STOP].into_iter().enumerate() {
        kill_process(child_of(recorder.pid(), "look").unwrap(), signal).unwrap();
        let place = folder.path().join(format!("job-{round}"));
        let bed = job(&program, &library, &place);
        wait_until("the job is traced", Duration::from_mins(1), || {
            are_traced(&session(&output), &bed.ready.pids)
        });
        let_end(bed, &place);
    }
    let said = recorder.interrupt().unwrap();
    assert!(session(&output)["changed_libraries"].is_null(), "{said}");
}

#[test]
fn files_that_are_cut_or_have_holes_cost_nobody_else() {
    const SPARSE: u64 = 1 << 40;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_, _, library)) = programs::needed("2.21.5-cu12") else { return };
    assert_none_lost(|| {
        let folder = tempfile::tempdir().unwrap();
        let cut = folder.path().join("libnccl.so.2");
        fs::copy(&library, &cut).unwrap();
        // A library's first page, and nothing after it.
        let sparse = folder.path().join("libnccl-sparse.so.2");
        let mut head = Vec::new();
        File::open(&library).unwrap().take(4096).read_to_end(&mut head).unwrap();
        fs::write(&sparse, head).unwrap();
        File::options().write(true).open(&sparse).unwrap().set_len(SPARSE).unwrap();
        let (of_cut, of_sparse) = (mapping(&cut), mapping(&sparse));
        let output = folder.path().join("out");
        let recorder = Recorder::of_node(&output, "").unwrap();
        wait_until("the whole one is traced", PATIENCE, || are_traced(&session(&output), &[of_cut.pid()]));
        wait_until("the other is not", PATIENCE, || {
            let session = session(&output);
            target(&session, of_sparse.pid()).is_some_and(|known| known["untraced"].is_string())
        });
        // Nobody looks into what is cut off, but the tracer.
        File::options().write(true).open(&cut).unwrap().set_len(10_000).unwrap();
        wait_until("its probes are gone", PATIENCE, || changed_libraries(&output) == 1);
        let said = recorder.interrupt().unwrap();
        (session(&output), said)
    });
}

/// What the children may not do, seen from outside.
#[test]
fn who_reads_has_no_capability_and_no_descriptor_of_the_session() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(_ncclflow) = programs::tracer() else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out");
    let recorder = Recorder::of_node(&output, "").unwrap();
    let status =
        |pid: Pid, name: &str| status_field(pid.as_raw_pid().cast_unsigned(), name).unwrap_or_default();
    let looker = || child_of(recorder.pid(), "look");
    // A new one comes after each library; it restricts itself before it reads.
    let reader = |looker: Pid| {
        let reader = child_of(looker.as_raw_pid().cast_unsigned(), "look")?;
        (status(reader, "Seccomp_filters") == "2").then_some(reader)
    };
    let descriptors = |pid: Pid| -> Vec<String> {
        let entries = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid())).into_iter().flatten().flatten();
        let paths = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        paths.map(|path| path.display().to_string()).collect()
    };
    let look = |pid: Pid| {
        let of = ["NoNewPrivs", "Seccomp", "CapPrm"].map(|name| status(pid, name));
        (of, descriptors(pid))
    };
    // What was seen of both is true if they are still there afterwards.
    let mut seen = None;
    wait_until("a reader waits for work, and stays while it is looked at", PATIENCE, || {
        let Some(looker_pid) = looker() else { return false };
        let Some(reader_pid) = reader(looker_pid) else { return false };
        seen = Some([look(looker_pid), look(reader_pid)]);
        looker() == Some(looker_pid) && reader(looker_pid) == Some(reader_pid)
    });
    // The looker has CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE; the reader nothing.
    let capabilities = [1u64 << 2 | 1 << 19 | 1 << 40, 0];
    for ((status, descriptors), capabilities) in seen.unwrap().into_iter().zip(capabilities) {
        assert_eq!(status, ["1".to_owned(), "2".to_owned(), format!("{capabilities:016x}")]);
        for path in descriptors {
            let is_known = ["socket:", "/memfd:ncclflow", "/dev/null", "/proc/"]
                .iter()
                .any(|known| path.starts_with(known));
            assert!(is_known, "{path}");
        }
    }
    recorder.interrupt().unwrap();
}
