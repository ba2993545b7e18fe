//! `ncclflow mem`: what it says of NCCL's memory, against what NCCL has asked the emulated CUDA for, and against the
//! shared memory that its processes map.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::{job::libraries, prelude::*, schemas};

const RANKS: u64 = 3;

fn mem(job: &World) -> Value {
    let mem = run(Command::new(&job.ncclflow).args(["mem", "--json", "-p", &job.bed.pid_list()])).ok();
    let report = serde_json::from_str(&mem.stdout).unwrap();
    schemas::assert_valid("mem", &report);
    report
}

/// The parts of each process's only communicator, by transport and purpose.
fn parts(process: &Value) -> BTreeMap<(String, String), Value> {
    let [one] = &list(&process["communicators"])[..] else { panic!("{process:#}") };
    assert_eq!((number(&one["nRanks"]), list(&one["remarks"]).len()), (RANKS, 0), "{one:#}");
    let of = |part: &Value| (text(&part["transport"]).to_owned(), text(&part["purpose"]).to_owned());
    list(&one["parts"]).iter().map(|part| (of(part), part.clone())).collect()
}

fn part<'a>(parts: &'a BTreeMap<(String, String), Value>, transport: &str, purpose: &str) -> &'a Value {
    parts.get(&(transport.to_owned(), purpose.to_owned())).unwrap_or_else(|| panic!("{transport} {parts:#?}"))
}

/// How often a process has host memory of each size that NCCL has asked for.
fn allocated(job: &World, pid: u32) -> BTreeMap<u64, i64> {
    let mut found = BTreeMap::new();
    for line in fs::read_to_string(job.path(&format!("allocated.{pid}"))).unwrap().lines() {
        if let Some(bytes) = line.strip_prefix("host ") {
            let bytes: i64 = bytes.parse().unwrap();
            *found.entry(bytes.unsigned_abs()).or_default() += bytes.signum();
        }
    }
    found
}

fn busy(version: &str, more: &str) -> Option<World> {
    let fixed =
        "--mode processes --ranks 3 --channels 2 --bytes 4096 --ops allreduce,sendrecv --iters 100000000";
    let job = World::start(version, &format!("{fixed} --interval-ms 5 --allocations {{}}/allocated {more}"))?;
    job.bed.go().unwrap();
    // Connections are made at the first operations.
    let is_up = || list(&mem(&job)["processes"]).iter().all(|process| number(&process["hostBytes"]) > 0);
    assert!(eventually(Duration::from_secs(60), is_up));
    std::thread::sleep(Duration::from_secs(2));
    Some(job)
}

#[test]
fn buffers_of_sockets_are_what_nccl_has_asked_cuda_for() {
    for version in libraries() {
        let Some(job) = busy(version, "") else { return };
        let report = mem(&job);
        for process in list(&report["processes"]) {
            let (parts, asked) =
                (parts(process), allocated(&job, number(&process["pid"]).try_into().unwrap()));
            let rings = part(&parts, "NET", "collectives");
            let (ends, bytes) = (number(&rings["connections"]), number(&rings["hostBytes"]));
            let each = (bytes / ends).next_multiple_of(4096);
            assert!(each > 1 << 20, "{rings}");
            assert_eq!(asked.get(&each), Some(&ends.cast_signed()), "{version} {rings} {asked:?}");
            // Buffers of sends and receives are shared by all connections of one direction.
            let shared = number(&part(&parts, "NET", "sendRecv")["hostBytes"]);
            let large = asked.iter().filter(|(size, _)| **size > 1 << 20 && **size != each);
            let large: u64 = large.map(|(size, count)| size * count.unsigned_abs()).sum();
            assert!((large..large + (1 << 17)).contains(&shared), "{version} {shared} {large} {asked:?}");
            if let Some(work) = parts.get(&("work".to_owned(), "collectives".to_owned())) {
                assert!(asked.contains_key(&number(&work["hostBytes"])), "{version} {work} {asked:?}");
            }
            let sum: u64 = parts.values().map(|part| number(&part["hostBytes"])).sum();
            assert_eq!((number(&process["hostBytes"]), number(&process["gpuBytes"])), (sum, 0), "{version}");
        }
    }
}

/// Segments of NCCL's that a process maps: bytes by inode.
fn segments(pid: u32) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for line in fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [range, _, _, _, inode, path, ..] = &words[..]
            && path.starts_with("/dev/shm/nccl-")
        {
            let (from, to) = range.split_once('-').unwrap();
            let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
            found.insert((*inode).to_owned(), to - from);
        }
    }
    found
}

#[test]
fn buffers_in_shared_memory_are_those_that_processes_map() {
    let Some(job) = busy("2.27.5-cu12", "--env NCCL_SHM_DISABLE=0") else { return };
    let report = mem(&job);
    let (mut told, mut ends): (BTreeMap<u64, u64>, u64) = (BTreeMap::new(), 0);
    for process in list(&report["processes"]) {
        let parts = parts(process);
        for purpose in ["collectives", "sendRecv"] {
            let part = part(&parts, "SHM", purpose);
            ends += number(&part["connections"]);
            *told.entry(number(&process["pid"])).or_insert(0) += number(&part["hostBytes"]);
        }
    }
    // A segment of each end, which both map, with a page in which NCCL counts who has it. The larger ones are the
    // proxies' queues.
    let all: BTreeMap<String, u64> = job.bed.ready.pids.iter().flat_map(|pid| segments(*pid)).collect();
    let buffers: Vec<u64> = all.values().copied().filter(|bytes| *bytes < 16 << 20).collect();
    assert_eq!(buffers.len() as u64, ends, "{all:?}");
    let bytes: u64 = buffers.iter().map(|bytes| bytes - 4096).sum();
    assert_eq!(told.values().sum::<u64>(), bytes, "{told:?} {all:?}");
}
