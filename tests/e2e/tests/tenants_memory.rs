//! Memory of tenants that does not answer, and whose reading must cost nobody else anything.
//!
//! A process can back its memory by `userfaultfd` or by a file system in user space: then it decides whether a copy of it
//! ever ends.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Mutex, PoisonError};

use nccl_library::{
    elf::Image,
    fields::{FieldRef, channel, comm},
    layouts::Layouts,
    symbols::shipped::Table,
};
use ncclflow_e2e::harness::{
    dumper::Dump,
    fuse::Fuse,
    job::{Shape, check_culprit},
    prelude::*,
    processes::status_field,
};

/// Where the process has what looks like a communicator, and the memory that does not answer.
const FORGED: u64 = 0x1000_0000_0000;
const FORGED_BYTES: u64 = 16 << 20;
const SILENT: u64 = 0x2000_0000_0000;
/// `NCCL_MAGIC`, src/include/comm.h.
const MAGIC: u64 = 0x0280_0280_0280_0280;
/// One test after the other: who attaches to a library waits for each process that has it mapped, also for that of
/// another test whose lock is held (docs/security/libraries.md).
static ALONE: Mutex<()> = Mutex::new(());
/// A copy may take 5 s; the rest is for a busy machine.
const BOUND: Duration = Duration::from_secs(90);
/// Dumps that are taken at most, where the machine kept somebody waiting who would have answered.
const TRIES: u32 = 3;

/// Loads NCCL, writes what it is told to where a communicator is looked for, and has memory that does not answer at
/// the place that this leads to.
const SCRIPT: &str = r#"
import ctypes, fcntl, json, os, signal, struct, sys, threading, time
# Nothing of this test outlives it.
signal.alarm(300)
how, library, file = sys.argv[1:4]
forged, forged_bytes, silent = (int(number) for number in sys.argv[4:7])
ctypes.CDLL(library)
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(1, signal.SIGKILL)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
NOREPLACE, ANONYMOUS, PRIVATE = 0x100000, 0x20, 2
def mapped(at, length, protection, flags, fd):
    assert libc.mmap(at, length, protection, flags | NOREPLACE, fd, 0) == at, ctypes.get_errno()
mapped(forged, forged_bytes, 3, PRIVATE | ANONYMOUS, -1)
for offset, value, size in json.loads(sys.stdin.readline()):
    ctypes.memmove(forged + offset, value.to_bytes(8, "little"), size)
if how == "userfaultfd":
    fd = libc.syscall(323, os.O_CLOEXEC)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    fcntl.ioctl(fd, 0xC018AA3F, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
    mapped(silent, 1 << 16, 3, PRIVATE | ANONYMOUS, -1)
    # Pages that are missing are asked for, and nobody answers.
    fcntl.ioctl(fd, 0xC020AA00, bytearray(struct.pack("QQQQ", silent, 1 << 16, 1, 0)))
else:
    mapped(silent, 1 << 16, 1, PRIVATE, os.open(file, os.O_RDONLY))
os.write(1, b"ok\n")
sys.stdin.readline()
if how.startswith("held"):
    # A read through /proc keeps the lock of the mappings while it waits for the file system (access_remote_vm).
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    threading.Thread(target=os.pread, args=(memory, 8, silent), daemon=True).start()
    os.write(1, b"ok\n")
    # Until the file system has been asked.
    sys.stdin.readline()
os.write(1, b"ok\n")
if how == "held, and waited for":
    # Who wants to change mappings waits for that, and with it all who come later.
    libc.mmap(None, 4096, 1, PRIVATE | ANONYMOUS, -1, 0)
time.sleep(600)
"#;

/// Children that copied memory for an ncclflow that has ended.
fn peekers_left() -> Vec<u32> {
    let text = |pid: u32, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let is_left = |pid: &u32| {
        let parent = status_field(*pid, "PPid").and_then(|parent| parent.parse().ok()).unwrap_or_default();
        text(*pid, "cmdline").contains("\0__child\0peek") && text(parent, "comm").trim_end() != "ncclflow"
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_left).collect()
}

/// The values of a communicator with two ranks, of which this process has the first: where, what, and how long.
fn forged(layouts: &Layouts) -> Vec<(u64, u64, usize)> {
    const BASE: u64 = 0x1000;
    let mut values = Vec::new();
    let mut write = |offset: u64, field: &FieldRef, value: u64| {
        let Some(field) = field.find_int(layouts) else { return };
        values.push((BASE + offset + field.offset(), value, field.size()));
    };
    for (field, value) in [
        (&comm::START_MAGIC, MAGIC),
        (&comm::END_MAGIC, MAGIC),
        (&comm::HASH, 0x1234),
        (&comm::RANK, 0),
        (&comm::N_RANKS, 2),
        (&comm::NODE, 0),
        (&comm::N_NODES, 1),
        (&comm::LOCAL_RANK, 0),
        (&comm::CUDA_DEV, 0),
        (&comm::N_CHANNELS, 1),
        (&comm::PROXY_STATE, SILENT),
    ] {
        write(0, field, value);
    }
    let channels = comm::CHANNELS.array(layouts).unwrap().offset;
    let along = 0xe0_0000;
    for (field, value) in
        [(&channel::RING_PREV, 1), (&channel::RING_NEXT, 1), (&channel::RING_USER_RANKS, FORGED + along)]
    {
        write(channels, field, value);
    }
    values.push((along, 1 << 32, 8));
    values
}

/// Those of exactly this build: others of its version differ.
fn layouts_of(library: &Path) -> Layouts {
    let (table, image) = (Table::shipped().unwrap(), Image::open(library).unwrap());
    let known = table.with_build_id(image.build_id().unwrap()).unwrap();
    table.layouts(known).unwrap()
}

/// A process of a tenant whose memory will not answer.
fn start(how: &str, library: &Path, file: &Path, values: &[(u64, u64, usize)]) -> Killed {
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT, how]).arg(library).arg(file);
    command.args([FORGED, FORGED_BYTES, SILENT].map(|number| number.to_string()));
    let mut child = Killed::start(&mut command).unwrap();
    child.ask(&serde_json::to_string(values).unwrap()).unwrap();
    child
}

/// The program, and the library that the tenant's processes load.
fn needed() -> Option<(PathBuf, PathBuf)> {
    let has_python = Command::new("python3").arg("-V").output().is_ok();
    let (ncclflow, library) = (programs::ncclflow()?, programs::nccl("2.21.5-cu12")?);
    (root() && need("python3", has_python, "install python3")).then_some((ncclflow, library))
}

/// A job of others, of which rank 1 stays away.
fn stuck_job() -> Option<World> {
    let shape = Shape { ranks: 2, processes: true, tree: false };
    let job = World::going("2.27.5-cu12", shape, "--absent 1@3 --iters 6").unwrap()?;
    job.check_stuck(1, "rank 1 has not joined").unwrap();
    Some(job)
}

/// What the report has of a process.
fn of_process(report: &Value, pid: u32) -> &Value {
    list(&report["processes"]).iter().find(|process| process["pid"] == pid).unwrap()
}

/// Dumps the job and processes that do not answer, all together: that takes no longer than it may, the job is judged as before, and the
/// others have an error that says so. Gives all of them, as `-p` takes them, and the report.
fn dump_beside(ncclflow: &Path, job: &World, silent: &[u32], how: &str) -> (String, Value) {
    let pids: Vec<String> = job.bed.ready.pids.iter().chain(silent).map(u32::to_string).collect();
    let pids = pids.join(",");
    let take = || {
        let begun = Instant::now();
        let dump = Dump::take(ncclflow, &pids, &[]).unwrap();
        assert!(begun.elapsed() < BOUND, "{how}: {:?}", begun.elapsed());
        let report: Value = serde_json::from_str(&dump.text).unwrap();
        (dump, report)
    };
    let is_disturbed =
        |report: &Value| report["lostReaders"]["unanswered"].as_u64() > Some(silent.len() as u64);
    let (mut dump, mut report) = take();
    for _ in 1..TRIES {
        if is_disturbed(&report) {
            (dump, report) = take();
        }
    }
    check_culprit(&dump, 1, "rank 1 has not joined");
    for pid in silent {
        let about = of_process(&report, *pid);
        assert!(about["error"].as_str().is_some_and(|error| error.contains("answer")), "{how}: {about:#}");
    }
    for pid in &job.bed.ready.pids {
        assert!(of_process(&report, *pid)["error"].is_null());
    }
    (pids, report)
}

#[test]
fn memory_that_does_not_answer_costs_its_own_process() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((ncclflow, library)) = needed() else { return };
    let Some(job) = stuck_job() else { return };

    let folder = tempfile::tempdir().unwrap();
    let point = folder.path().join("fuse");
    fs::create_dir(&point).unwrap();
    let values = forged(&layouts_of(&library));
    for how in ["userfaultfd", "fuse"] {
        // They are dropped the other way round: the process can end only after the file system has.
        let mut started = None;
        let fuse = Fuse::mount(&point, "data", vec![0; 1 << 16]).unwrap();
        let process = started.insert(start(how, &library, &point.join("data"), &values));
        fuse.fall_silent();
        process.ask("").unwrap();
        let tenant = process.pid();
        // Two of them, where that can be ended again by a signal.
        let mut second = (how == "userfaultfd").then(|| start(how, &library, &point.join("data"), &values));
        if let Some(second) = &mut second {
            second.ask("").unwrap();
        }
        let silent: Vec<u32> = [tenant].into_iter().chain(second.iter().map(Killed::pid)).collect();

        let (pids, report) = dump_beside(&ncclflow, &job, &silent, how);
        let lost = &report["lostReaders"];
        assert_eq!((&lost["unanswered"], &lost["died"]), (&json!(silent.len()), &json!(0)), "{how}");
        // What waits for userfaultfd can be killed; what waits for a file system in user space cannot.
        if how == "fuse" {
            assert_eq!(lost["left_behind"], 1, "{how}");
        } else {
            wait_until("no reader of its memory is left", BOUND, || peekers_left().is_empty());
        }
        // Who reads what every process has, like ps(1), is not kept waiting.
        assert!(fs::read(format!("/proc/{tenant}/cmdline")).is_ok_and(|text| !text.is_empty()));

        // The same while they are recorded, and a dump is made as nothing moves.
        let output = folder.path().join(format!("out-{how}"));
        let recorder = Recorder::start(&ncclflow, &pids, &output, &["--on-hang", "1"]).unwrap();
        let dumps = || -> Vec<PathBuf> {
            let files = fs::read_dir(&output).unwrap().flatten().map(|file| file.path());
            let is_dump = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("dump_");
            files.filter(is_dump).collect()
        };
        wait_until("a dump is there", BOUND, || !dumps().is_empty());
        recorder.signal(Signal::INT).unwrap();
        let begun = Instant::now();
        let (status, said) = recorder.finish().unwrap();
        assert!(status.success() && begun.elapsed() < BOUND, "{how}: {said}");
        let verdict = &read_json(&dumps()[0])["communicators"][0]["verdict"];
        assert_eq!(verdict["culprits"], json!([1]), "{how}: {verdict:#}");
        let lost = &session(&output)["lost_readers"];
        assert!(number(&lost["unanswered"]) >= 1, "{how}: {lost}");
        drop(fuse);
    }
}

/// A read of FUSE memory through `/proc/self/mem` holds the lock of the process's mappings; with somebody who waits to
/// change them, whoever reads `/proc/PID/cmdline` or copies memory waits, too.
#[test]
fn a_process_that_holds_the_lock_of_its_mappings_keeps_nobody_waiting() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((ncclflow, library)) = needed() else { return };
    let Some(job) = stuck_job() else { return };

    let folder = tempfile::tempdir().unwrap();
    let point = folder.path().join("fuse");
    fs::create_dir(&point).unwrap();
    let values = forged(&layouts_of(&library));
    for (how, is_waited_for) in [("held", false), ("held, and waited for", true)] {
        let mut started = None;
        let fuse = Fuse::mount(&point, "data", vec![0; 1 << 16]).unwrap();
        let process = started.insert(start(how, &library, &point.join("data"), &values));
        fuse.fall_silent();
        process.ask("").unwrap();
        wait_until("it holds the lock", BOUND, || fuse.is_read_in_vain());
        process.ask("").unwrap();
        let tenant = process.pid();
        if is_waited_for {
            // What it waits for, `stat` tells without the lock.
            let stat = || fs::read_to_string(format!("/proc/{tenant}/stat")).unwrap();
            wait_until("it waits for the lock", BOUND, || stat().contains(") D "));
        }

        dump_beside(&ncclflow, &job, &[tenant], how);

        let begun = Instant::now();
        let listed = crate::ncclflow("ps --json");
        assert!(begun.elapsed() < BOUND, "{how}: {:?}", begun.elapsed());
        let report = listed.json();
        for pid in &job.bed.ready.pids {
            of_process(&report, *pid);
        }
        assert!(is_waited_for || listed.stdout.contains(&tenant.to_string()), "{how}: {report:#}");
        drop(fuse);
    }
}
