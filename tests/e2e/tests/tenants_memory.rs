//! Memory of tenants that does not answer, while it is dumped.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fmt::Write as _,
    fs,
    io::Read as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nccl_library::{
    fields::{FieldRef, comm},
    layouts::Layouts,
    symbols::shipped,
};
use ncclflow_e2e::harness::{bed::Bed, fuse::Fuse, node::Killed, programs};
use serde_json::Value;
use test_support::{need, root};

/// `NCCL_MAGIC`, src/include/comm.h.
const MAGIC: u64 = 0x0280_0280_0280_0280;

/// Takes the library, a file, and what to write into memory: offset, bytes, value, or `file` for the address at which the
/// file is mapped. Nothing of the file is read.
const FORGER: &str = "
import ctypes, mmap, sys, time
library, backing = open(sys.argv[1], 'rb'), open(sys.argv[2], 'rb')
code = mmap.mmap(library.fileno(), 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)
silent = mmap.mmap(backing.fileno(), 8192, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
address = ctypes.addressof(ctypes.c_char.from_buffer(silent))
memory = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for field in sys.argv[3].split():
    offset, size, value = field.split(',')
    value = address if value == 'file' else int(value)
    memory[int(offset):int(offset) + int(size)] = value.to_bytes(int(size), 'little')
print('done', flush=True)
time.sleep(600)
";

/// A communicator as a dump looks for one. What its proxy has in flight lies in the file.
fn forged(layouts: &Layouts) -> String {
    let mut fields = String::new();
    let mut write = |field: &FieldRef, value: &str| {
        if let Some(field) = field.find_int(layouts) {
            write!(fields, "{},{},{value} ", field.offset(), field.size()).unwrap();
        }
    };
    let magic = MAGIC.to_string();
    for (field, value) in [
        (&comm::START_MAGIC, &*magic),
        (&comm::END_MAGIC, &magic),
        (&comm::HASH, "4660"),
        (&comm::RANK, "0"),
        (&comm::N_RANKS, "2"),
        (&comm::NODE, "0"),
        (&comm::N_NODES, "1"),
        (&comm::LOCAL_RANK, "0"),
        (&comm::N_CHANNELS, "0"),
        (&comm::PROXY_STATE, "file"),
        (&comm::SHARED_RESOURCES, "file"),
    ] {
        write(field, value);
    }
    fields
}

fn forger(library: &Path, backing: &Path, fields: &str) -> Killed {
    let mut command = Command::new("python3");
    command.args(["-c", FORGER]).args([library, backing]).arg(fields);
    let mut child = Killed(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    let mut word = [0; 4];
    child.0.stdout.as_mut().unwrap().read_exact(&mut word).unwrap();
    child
}

#[test]
fn a_dump_goes_on_without_memory_that_does_not_answer() {
    const LIMIT: Duration = Duration::from_secs(60);
    let (Some(ncclflow), Some(program), Some(library), true) =
        (programs::ncclflow(), programs::bed(), programs::nccl("2.21.5-cu12"), root())
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().join("mount");
    fs::create_dir(&mount).unwrap();
    // Dropped last: it can only end when the file system has.
    let forger: Killed;
    let mounted = Fuse::mount(&mount, "backing", vec![0; 8192]);
    if !need("mount", mounted.is_ok(), "run where /dev/fuse may be mounted") {
        return;
    }
    let fuse = mounted.unwrap();
    // From 2.24 on the library has a list of its communicators, which this process has not.
    let table = shipped::Table::shipped().unwrap();
    let known = table.libraries().iter().find(|known| known.nccl.to_string() == "2.21.5").unwrap();
    forger = self::forger(&library, &mount.join("backing"), &forged(&table.layouts(known).unwrap()));
    fuse.fall_silent();

    let job = folder.path().join("job");
    fs::create_dir(&job).unwrap();
    let bed = Bed::start(&program, &library, &job, &["--ranks", "2", "--mode", "processes"]).unwrap();
    // The silent one comes first.
    let pids = format!("{},{}", forger.0.id(), bed.pid_list());
    let begun = Instant::now();
    let mut dump = Killed(
        Command::new(&ncclflow)
            .args(["dump", "--json", "-p", &pids])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut text = String::new();
    while dump.0.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < LIMIT, "it waits for memory that does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    dump.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    let process = |pid: u32| {
        report["processes"].as_array().unwrap().iter().find(|process| process["pid"] == pid).unwrap()
    };
    let silent = process(forger.0.id());
    assert!(silent["error"].as_str().is_some_and(|why| why.contains("does not answer")), "{silent:#}");
    let hash = format!("0x{}", bed.ready.comm_hash);
    let ours = report["communicators"].as_array().unwrap().iter().find(|found| found["commHash"] == hash);
    let ranks = ours.unwrap()["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2, "the others are dumped as if nothing was: {text}");
    drop(fuse);
}
