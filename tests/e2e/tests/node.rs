//! The whole node: `ncclflow ps`, and `record --all` while processes come and go.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ncclflow_e2e::{
    harness::{
        bed::Bed,
        kernel_objects,
        node::{Killed, namespaced_bed, outer_pid, program_with_nccl_inside, started},
        programs,
        recorder::Recorder,
    },
    truth::call_log,
};
use rustix::process::Signal;
use serde_json::Value;
use test_support::{is_long, need, root};

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn ps(ncclflow: &Path, arguments: &[&str]) -> Value {
    let output = Command::new(ncclflow).args(["ps", "--json"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn with_pid(list: &Value, pid: u32) -> &Value {
    let found = list.as_array().unwrap().iter().find(|entry| entry["pid"] == pid);
    found.unwrap_or_else(|| panic!("no process {pid} in {list:#}"))
}

/// A process whose identity the test knows.
struct Known {
    pid: u32,
    own_pid: u32,
    version: &'static str,
    path: PathBuf,
    deleted: bool,
    found_by: &'static str,
    /// Its communicator and ranks; none where there is no NCCL that runs.
    ranks: Option<(String, u32, Vec<u32>)>,
}

const ITERATIONS: u64 = 20;
const CHANNELS: u64 = 2;

/// Three versions at once, twelve processes, two of them in mount and PID namespaces of their own, one with a library under another name
/// that was deleted, one with NCCL inside of the program.
struct Node {
    ncclflow: PathBuf,
    folder: tempfile::TempDir,
    beds: Vec<Bed>,
    _program: Killed,
    known: Vec<Known>,
}

impl Node {
    fn start() -> Option<Self> {
        let (Some(ncclflow), Some(bed), true) = (programs::ncclflow(), programs::bed(), root()) else {
            return None;
        };
        let [old, middle, new] = ["2.21.5-cu12", "2.27.5-cu12", "2.32.3-cu12"].map(programs::nccl);
        let (old, middle, new) = (old?, middle?, new?);
        let folder = tempfile::tempdir().unwrap();
        let below = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let arguments = |mode: &'static str, ranks: &'static str| {
            [
                "--mode",
                mode,
                "--ranks",
                ranks,
                "--iters",
                "20",
                "--bytes",
                "65536",
                "--channels",
                "2",
                "--sync",
            ]
            .into_iter()
            .chain(["--hold-file", "/nonexistent/hold", "--file-timeout", "300"])
            .collect::<Vec<_>>()
        };
        let (mut beds, mut known) = (Vec::new(), Vec::new());
        for (name, library, version) in [("a", &old, "2.21.5"), ("b", &middle, "2.27.5")] {
            let job = Bed::start(&bed, library, &below(name), &arguments("processes", "4")).unwrap();
            for (rank, pid) in (0..).zip(&job.ready.pids) {
                let ranks = Some((job.ready.comm_hash.clone(), 4, vec![rank]));
                let path = library.clone();
                known.push(Known {
                    pid: *pid,
                    own_pid: *pid,
                    version,
                    path,
                    deleted: false,
                    found_by: "name",
                    ranks,
                });
            }
            beds.push(job);
        }
        for (name, library, version) in [("c", &middle, "2.27.5"), ("d", &new, "2.32.3")] {
            let path = below(name);
            let (script, hidden) = namespaced_bed(&bed, library, &path).unwrap();
            let job = Bed::start(&script, &hidden, &path, &arguments("threads", "2"));
            if !need("mount", job.is_ok(), "run where namespaces may be made") {
                return None;
            }
            let job = job.unwrap();
            let ranks = Some((job.ready.comm_hash.clone(), 2, vec![0, 1]));
            let (pid, own_pid) = (outer_pid(&job).unwrap(), job.ready.pids[0]);
            known.push(Known {
                pid,
                own_pid,
                version,
                path: hidden,
                deleted: false,
                found_by: "name",
                ranks,
            });
            beds.push(job);
        }
        let path = below("e");
        let copy = path.join("vendor-collectives.so");
        fs::copy(&old, &copy).unwrap();
        let job = Bed::start(&bed, &copy, &path, &arguments("threads", "2")).unwrap();
        fs::remove_file(&copy).unwrap();
        let pid = job.ready.pids[0];
        let ranks = Some((job.ready.comm_hash.clone(), 2, vec![0, 1]));
        known.push(Known {
            pid,
            own_pid: pid,
            version: "2.21.5",
            path: copy,
            deleted: true,
            found_by: "exports",
            ranks,
        });
        beds.push(job);
        let program = program_with_nccl_inside(&below("f"), "2.25.1").unwrap();
        if !need("programs", program.is_some(), "install a C compiler") {
            return None;
        }
        let path = program.unwrap();
        let program = started(&path).unwrap();
        let pid = program.0.id();
        known.push(Known {
            pid,
            own_pid: pid,
            version: "2.25.1",
            path,
            deleted: false,
            found_by: "symbols",
            ranks: None,
        });
        assert_eq!(known.len(), 12);
        Some(Self { ncclflow, folder, beds, _program: program, known })
    }

    /// A part of the command lines of its processes, and of no other's.
    fn mark(&self) -> String {
        self.folder.path().display().to_string()
    }
}

#[test]
fn ps_and_record_all_show_each_process_with_its_identity() {
    let Some(node) = Node::start() else { return };
    let list = ps(&node.ncclflow, &[]);
    for known in &node.known {
        let process = with_pid(&list["processes"], known.pid);
        let namespaced = known.own_pid != known.pid;
        assert_eq!(
            (&process["ownPid"], &process["ownMounts"], &process["ownPids"], &process["user"]),
            (&known.own_pid.into(), &namespaced.into(), &namespaced.into(), &"root".into()),
            "{process:#}"
        );
        let [library] = &**process["libraries"].as_array().unwrap() else { panic!("{process:#}") };
        assert_eq!(
            (
                library["version"].as_str(),
                library["path"].as_str(),
                &library["deleted"],
                library["foundBy"].as_str()
            ),
            (Some(known.version), known.path.to_str(), &known.deleted.into(), Some(known.found_by)),
            "{process:#}"
        );
        let communicators = process["communicators"].as_array().unwrap();
        let Some((hash, n_ranks, ranks)) = &known.ranks else {
            assert!(communicators.is_empty(), "{process:#}");
            continue;
        };
        assert_eq!(library["symbols"], "own_dwarf");
        assert!(library["buildId"].as_str().is_some_and(|id| id.len() == 40), "{library:#}");
        let found: Vec<u32> = communicators
            .iter()
            .map(|comm| {
                assert_eq!(comm["commHash"], format!("0x{hash}"));
                assert_eq!(
                    (&comm["nRanks"], &comm["cudaDev"]),
                    (&(*n_ranks).into(), &comm["rank"]),
                    "{comm:#}"
                );
                u32::try_from(comm["rank"].as_u64().unwrap()).unwrap()
            })
            .collect();
        assert_eq!(found, *ranks, "{process:#}");
    }
    // Filters, and the table.
    let count = |arguments: &[&str]| {
        let list = ps(&node.ncclflow, &[arguments, &["--no-comms", "--comm", &node.mark()]].concat());
        list["processes"].as_array().unwrap().len()
    };
    assert_eq!(count(&[]), 12);
    assert_eq!(count(&["--nccl-version", "2.21"]), 5);
    assert_eq!(count(&["--nccl-version", "2.27.5,2.32.3", "--user", "root"]), 6);
    assert_eq!(count(&["--user", "nobody"]), 0);
    let table = Command::new(&node.ncclflow).args(["ps", "--comm", &node.mark()]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert_eq!(table.matches("rank ").count(), 8 + 6, "{table}");
    assert!(table.contains("(deleted)") && table.contains("own mounts, pids"), "{table}");

    let output = node.folder.path().join("out");
    let recorder = Recorder::start_all(&node.ncclflow, &output, &["--comm", &node.mark()]).unwrap();
    for bed in &node.beds {
        bed.go().unwrap();
    }
    // Where ops are seen call by call, the last one of a thread is written when the recording ends.
    wait_until(Duration::from_secs(90), || {
        node.known.iter().all(|known| {
            let Some((hash, _, ranks)) = &known.ranks else { return true };
            ranks.iter().all(|rank| lines_of(&output, hash, *rank) >= (ITERATIONS - 1) * CHANNELS)
        })
    });
    thread::sleep(Duration::from_secs(1));
    recorder.signal(Signal::INT).unwrap();
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success(), "{said}");
    let session = json(&output.join("session.json"));
    assert!(session["loss"].as_object().unwrap().values().all(|count| count == 0), "{session:#}");
    assert_eq!(session["targets"].as_array().unwrap().len(), 12, "{said}");
    let mut ranks = 0;
    for known in &node.known {
        let target = with_pid(&session["targets"], known.pid);
        let [library] = &**target["libraries"].as_array().unwrap() else {
            assert!(known.ranks.is_none(), "{target:#}");
            assert!(target["untraced"].as_str().unwrap().contains("cannot be traced"), "{target:#}");
            assert!(said.contains(&format!("process {} (program-with-nc)", known.pid)), "{said}");
            continue;
        };
        let library = &session["libraries"][usize::try_from(library.as_u64().unwrap()).unwrap()];
        let numbers: Vec<String> =
            ["major", "minor", "patch"].map(|part| library["nccl_version"][part].to_string()).to_vec();
        assert_eq!(numbers.join("."), known.version, "{library:#}");
        assert_eq!(target["own_pid"], known.own_pid);
        let (hash, n_ranks, of_process) = known.ranks.as_ref().unwrap();
        for rank in of_process {
            let communicators = session["communicators"].as_array().unwrap().iter();
            let found: Vec<&Value> = communicators
                .filter(|comm| comm["commHash"] == format!("0x{hash}") && comm["rank"] == *rank)
                .collect();
            let [communicator] = &*found else { panic!("{hash} rank {rank}: {found:?}") };
            assert_eq!(
                (&communicator["pid"], &communicator["nRanks"], &communicator["proxyFlowLines"]),
                (&known.pid.into(), &(*n_ranks).into(), &(ITERATIONS * CHANNELS).into())
            );
            ranks += 1;
        }
    }
    assert_eq!(session["communicators"].as_array().unwrap().len(), ranks);
}

fn lines_of(output: &Path, hash: &str, rank: u32) -> u64 {
    let path = output.join(format!("0x{hash}/proxy_flow_rank{rank}.jsonl"));
    fs::read_to_string(path).map_or(0, |text| text.lines().count() as u64)
}

fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < deadline, "it did not come about in {limit:?}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// What a process holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    fds: usize,
    links: usize,
    resident_kib: u64,
}

impl Held {
    fn by(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        Self {
            fds: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
            links: kernel_objects::of_process(pid).unwrap().links.len(),
            resident_kib: resident.split_whitespace().next().unwrap().parse().unwrap(),
        }
    }
}

/// Longest time from a process's first communicator to its first record.
const PICKED_UP: u64 = 2_000_000_000;

/// Starts and ends jobs of two processes while everything is recorded. `filtered`: probes are attached process by process.
fn churn(filtered: bool) {
    let (Some(ncclflow), Some(bed), true) = (programs::ncclflow(), programs::bed(), root()) else {
        return;
    };
    let versions = ["2.21.5-cu12", "2.27.5-cu12"];
    let libraries: Vec<PathBuf> = versions.iter().filter_map(|version| programs::nccl(version)).collect();
    if libraries.len() != versions.len() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().display().to_string();
    let output = folder.path().join("out");
    let mut arguments = vec!["--level", "api"];
    if filtered {
        arguments.extend(["--comm", &mark]);
    }
    let recorder = Recorder::start_all(&ncclflow, &output, &arguments).unwrap();
    let (waves, jobs_of_wave) = if is_long() { (7, 4) } else { (4, 2) };
    let mut first = None;
    for wave in 0..waves {
        let mut jobs = Vec::new();
        for job in 0..jobs_of_wave {
            let path = folder.path().join(format!("job-{wave}-{job}"));
            fs::create_dir(&path).unwrap();
            let library = &libraries[job % libraries.len()];
            // 2.5 s of calls: also a process that is picked up late is seen.
            let child = Command::new(&bed)
                .arg("--library")
                .arg(library)
                .args([
                    "--mode",
                    "processes",
                    "--iters",
                    "50",
                    "--interval-ms",
                    "50",
                    "--bytes",
                    "4096",
                    "--sync",
                ])
                .args(["--channels", "1", "--call-log"])
                .arg(path.join("calls"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            jobs.push(Killed(child));
        }
        for mut job in jobs {
            assert!(job.0.wait().unwrap().success());
        }
        if wave == 1 {
            // Let it close what has ended, and detach.
            thread::sleep(Duration::from_secs(4));
            first = Some(Held::by(recorder.pid()));
        }
    }
    thread::sleep(Duration::from_secs(4));
    let (first, last) = (first.unwrap(), Held::by(recorder.pid()));
    recorder.signal(Signal::INT).unwrap();
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success(), "{said}");
    println!("held after two waves {first:?}, after {waves} {last:?}");
    if filtered {
        assert_eq!((last.fds, last.links), (first.fds, first.links), "{said}");
    }
    assert!(last.resident_kib < first.resident_kib + 4096, "{first:?} {last:?}");

    let session = json(&output.join("session.json"));
    assert!(session["loss"].as_object().unwrap().values().all(|count| count == 0), "{:#}", session["loss"]);
    // Every file speaks of one process.
    let mut recorded: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for entry in fs::read_dir(&output).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        for file in fs::read_dir(entry.path()).unwrap().flatten() {
            let text = fs::read_to_string(file.path()).unwrap();
            let mut pids = Vec::new();
            for line in text.lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                pids.push(line["pid"].as_u64().unwrap());
                recorded
                    .entry(line["pid"].as_u64().unwrap())
                    .or_default()
                    .push(line["ts_ns"].as_u64().unwrap());
            }
            pids.dedup();
            assert!(pids.len() <= 1, "{} speaks of {pids:?}", file.path().display());
        }
    }
    let mut processes = 0;
    for wave in 0..waves {
        for job in 0..jobs_of_wave {
            let calls = call_log::read(&folder.path().join(format!("job-{wave}-{job}/calls"))).unwrap();
            let inits = calls.iter().filter(|call| call.function == "ncclCommInitRank");
            for init in inits {
                let pid = init.pid;
                let mut made: Vec<_> =
                    calls.iter().filter(|call| call.pid == pid && call.function == "ncclAllReduce").collect();
                assert_eq!(made.len(), 50);
                let mut seen =
                    recorded.remove(&pid.into()).unwrap_or_else(|| panic!("no record of {pid}: {said}"));
                seen.sort_unstable();
                assert!(
                    seen[0] < init.end_ns + PICKED_UP,
                    "process {pid} was recorded from {} ms after its communicator",
                    (seen[0].saturating_sub(init.end_ns)) / 1_000_000
                );
                // From the first on, each call once, and in its time.
                made.retain(|call| call.end_ns >= seen[0]);
                assert_eq!(made.len(), seen.len(), "process {pid}");
                for (call, ts_ns) in made.iter().zip(&seen) {
                    assert!((call.begin_ns..=call.end_ns).contains(ts_ns), "process {pid}: {call:?} {ts_ns}");
                }
                if wave > 0 && !filtered {
                    assert_eq!(made.len(), 50, "a library that is attached to is traced from the first call");
                }
                let target = with_pid(&session["targets"], pid);
                assert_eq!(target["exited"], true, "{target:#}");
                processes += 1;
            }
        }
    }
    assert_eq!(processes, waves * jobs_of_wave * 2);
}

/// In LONG mode 56 processes.
#[test]
fn processes_that_come_and_go_are_each_recorded_and_nothing_is_left_of_them() {
    churn(false);
}

#[test]
fn with_a_filter_processes_are_attached_to_one_by_one_and_let_go_of() {
    churn(true);
}
