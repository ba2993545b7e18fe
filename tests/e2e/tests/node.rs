//! The whole node: `ncclflow ps`, and `record --all` while processes come and go.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::{
    harness::{
        kernel_objects,
        node::{namespaced_bed, outer_pid, program_with_nccl_inside, started},
        prelude::*,
        processes::resident_bytes,
    },
    truth::call_log::{self, Call},
};

fn with_pid(processes: &Value, pid: u32) -> &Value {
    let found = processes.as_array().unwrap().iter().find(|entry| entry["pid"] == pid);
    found.unwrap_or_else(|| panic!("no process {pid} in {processes:#}"))
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

impl Known {
    /// A process with these ranks of a job, whose library is found by its name.
    fn of_job(job: &Bed, pid: u32, ranks: &[u32], version: &'static str, path: &Path) -> Self {
        let ranks = Some((job.ready.comm_hash.clone(), job.ready.nranks, ranks.to_vec()));
        Self { pid, own_pid: pid, version, path: path.to_path_buf(), deleted: false, found_by: "name", ranks }
    }
}

const ITERATIONS: u64 = 20;
const CHANNELS: u64 = 2;
/// On a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_mins(1);

/// Starts a job of the node in a folder of its own.
fn start_job(program: &Path, library: &Path, folder: &Path, mode: &str, ranks: u32) -> anyhow::Result<Bed> {
    let fixed =
        "--iters 20 --bytes 65536 --channels 2 --sync --hold-file /nonexistent/hold --file-timeout 300";
    Bed::of_words(program, library, folder, &format!("--mode {mode} --ranks {ranks} {fixed}"))
}

/// Three versions at once, twelve processes, two of them in mount and PID namespaces of their own, one with a
/// library under another name that was deleted, one with NCCL inside of the program.
struct Node {
    folder: tempfile::TempDir,
    beds: Vec<Bed>,
    _program: Killed,
    known: Vec<Known>,
}

impl Node {
    fn start() -> Option<Self> {
        let [old, middle, new] = ["2.21.5-cu12", "2.27.5-cu12", "2.32.3-cu12"].map(programs::needed);
        let ((_, bed, old), (_, _, middle), (_, _, new)) = (old?, middle?, new?);
        let folder = tempfile::tempdir().unwrap();
        let below = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (mut beds, mut known) = (Vec::new(), Vec::new());
        for (name, library, version) in [("a", &old, "2.21.5"), ("b", &middle, "2.27.5")] {
            let job = start_job(&bed, library, &below(name), "processes", 4).unwrap();
            let ranks = (0..).zip(&job.ready.pids);
            known.extend(ranks.map(|(rank, pid)| Known::of_job(&job, *pid, &[rank], version, library)));
            beds.push(job);
        }
        for (name, library, version) in [("c", &middle, "2.27.5"), ("d", &new, "2.32.3")] {
            let path = below(name);
            let (script, hidden) = namespaced_bed(&bed, library, &path).unwrap();
            let job = start_job(&script, &hidden, &path, "threads", 2);
            if !need("mount", job.is_ok(), "run where namespaces may be made") {
                return None;
            }
            let job = job.unwrap();
            let outside = Known::of_job(&job, outer_pid(&job).unwrap(), &[0, 1], version, &hidden);
            known.push(Known { own_pid: job.ready.pids[0], ..outside });
            beds.push(job);
        }
        let path = below("e");
        let copy = path.join("vendor-collectives.so");
        fs::copy(&old, &copy).unwrap();
        let job = start_job(&bed, &copy, &path, "threads", 2).unwrap();
        fs::remove_file(&copy).unwrap();
        let renamed = Known::of_job(&job, job.ready.pids[0], &[0, 1], "2.21.5", &copy);
        known.push(Known { deleted: true, found_by: "exports", ..renamed });
        beds.push(job);
        let path = program_with_nccl_inside(&below("f"), "2.25.1").unwrap()?;
        let program = started(&path).unwrap();
        let pid = program.0.id();
        let (version, found_by) = ("2.25.1", "symbols");
        known.push(Known { pid, own_pid: pid, version, path, deleted: false, found_by, ranks: None });
        assert_eq!(known.len(), 12);
        Some(Self { folder, beds, _program: program, known })
    }

    /// A part of the command lines of its processes, and of no other's.
    fn mark(&self) -> String {
        self.folder.path().display().to_string()
    }
}

#[test]
fn ps_and_record_all_show_each_process_with_its_identity() {
    let Some(mut node) = Node::start() else { return };
    ps_shows_each_process(&node);
    ps_filters_and_draws_a_table(&node);
    record_all_shows_each_process(&mut node);
}

fn ps_shows_each_process(node: &Node) {
    let report = ncclflow("ps --json").ok().json();
    for known in &node.known {
        let process = with_pid(&report["processes"], known.pid);
        let namespaced = known.own_pid != known.pid;
        assert_eq!(
            (&process["ownPid"], &process["ownMounts"], &process["ownPids"], &process["user"]),
            (&known.own_pid.into(), &namespaced.into(), &namespaced.into(), &"root".into()),
            "{process:#}"
        );
        let [library] = &**list(&process["libraries"]) else { panic!("{process:#}") };
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
        let communicators = list(&process["communicators"]);
        let Some((hash, n_ranks, ranks)) = &known.ranks else {
            assert!(communicators.is_empty(), "{process:#}");
            continue;
        };
        assert_eq!(library["symbols"], "own_dwarf");
        assert!(library["buildId"].as_str().is_some_and(|id| id.len() == 40), "{library:#}");
        let mut found: Vec<u32> = Vec::new();
        for comm in communicators {
            assert_eq!(comm["commHash"], format!("0x{hash}"));
            assert_eq!((&comm["nRanks"], &comm["cudaDev"]), (&(*n_ranks).into(), &comm["rank"]), "{comm:#}");
            found.push(u32::try_from(number(&comm["rank"])).unwrap());
        }
        assert_eq!(found, *ranks, "{process:#}");
    }
}

fn ps_filters_and_draws_a_table(node: &Node) {
    let count = |options: &str| {
        let report = ncclflow(&format!("ps --json {options} --no-comms --comm {}", node.mark())).ok().json();
        list(&report["processes"]).len()
    };
    assert_eq!(count(""), 12);
    assert_eq!(count("--nccl-version 2.21"), 5);
    assert_eq!(count("--nccl-version 2.27.5,2.32.3 --user root"), 6);
    assert_eq!(count("--user nobody"), 0);
    let table = ncclflow(&format!("ps --comm {}", node.mark())).stdout;
    assert_eq!(table.matches("rank ").count(), 8 + 6, "{table}");
    assert!(table.contains("(deleted)") && table.contains("own mounts, pids"), "{table}");
}

fn record_all_shows_each_process(node: &mut Node) {
    let output = node.folder.path().join("out");
    let recorder = Recorder::of_node(&output, &format!("--comm {}", node.mark())).unwrap();
    for bed in &node.beds {
        bed.go().unwrap();
    }
    // Where ops are seen call by call, the last one of a thread is written when the recording ends.
    wait_until("all ops but the last are recorded", Duration::from_secs(90), || {
        let exported = exported::until_now(&output);
        node.known.iter().all(|known| {
            let Some((hash, _, ranks)) = &known.ranks else { return true };
            let last = u64::from(known.version == "2.21.5");
            ranks.iter().all(|rank| lines_of(exported.path(), hash, *rank) >= (ITERATIONS - last) * CHANNELS)
        })
    });
    // The last one may not have begun when the one before it is written.
    for bed in &mut node.beds {
        assert!(bed.wait_for_operations().unwrap().ok);
    }
    let said = recorder.interrupt().unwrap();
    let session = session(&output);
    assert_no_loss(&session);
    assert_eq!(list(&session["targets"]).len(), 12, "{said}");
    let ranks: usize = node.known.iter().map(|known| ranks_of_target(known, &session, &said)).sum();
    assert_eq!(list(&session["communicators"]).len(), ranks);
}

/// Checks what the session says of a process; gives how many ranks it has.
fn ranks_of_target(known: &Known, session: &Value, said: &str) -> usize {
    let target = with_pid(&session["targets"], known.pid);
    let [library] = &**list(&target["libraries"]) else {
        assert!(known.ranks.is_none(), "{target:#}");
        assert!(text(&target["untraced"]).contains("cannot be traced"), "{target:#}");
        assert!(said.contains(&format!("process {} (program-with-nc)", known.pid)), "{said}");
        return 0;
    };
    let library = &session["libraries"][usize::try_from(number(library)).unwrap()];
    let numbers = ["major", "minor", "patch"].map(|part| library["nccl_version"][part].to_string());
    assert_eq!(numbers.join("."), known.version, "{library:#}");
    assert_eq!(target["own_pid"], known.own_pid);
    let (hash, n_ranks, ranks) = known.ranks.as_ref().unwrap();
    for rank in ranks {
        let is_it = |comm: &&Value| comm["commHash"] == format!("0x{hash}") && comm["rank"] == *rank;
        let found: Vec<&Value> = list(&session["communicators"]).iter().filter(is_it).collect();
        let [communicator] = &*found else { panic!("{hash} rank {rank}: {found:?}") };
        assert_eq!(
            (&communicator["pid"], &communicator["nRanks"], &communicator["proxyFlowLines"]),
            (&known.pid.into(), &(*n_ranks).into(), &(ITERATIONS * CHANNELS).into())
        );
    }
    ranks.len()
}

fn lines_of(output: &Path, hash: &str, rank: u32) -> u64 {
    let path = output.join(format!("0x{hash}/proxy_flow_rank{rank}.jsonl"));
    fs::read_to_string(path).map_or(0, |text| text.lines().count() as u64)
}

/// What a process holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    fds: usize,
    links: usize,
    resident: u64,
}

impl Held {
    fn by(pid: u32) -> Self {
        Self {
            fds: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
            links: kernel_objects::of_process(pid).unwrap().links.len(),
            resident: resident_bytes(pid),
        }
    }
}

/// Calls of each process of a job.
const CALLS: usize = 50;

/// A job of two processes that stays until it is told to go. `at_once`: its calls begin before anybody can have
/// looked at it, and not when it is told to make them.
fn calling_job(bed: &Path, library: &Path, folder: &Path, at_once: bool) -> Bed {
    fs::create_dir(folder).unwrap();
    if at_once {
        File::create(folder.join("go")).unwrap();
    }
    let fixed = "--mode processes --iters 50 --interval-ms 50 --bytes 4096 --sync --channels 1";
    let workload = format!("{fixed} {CALL_LOG} --hold-file {{}}/hold");
    Bed::of_words(bed, library, folder, &workload).unwrap()
}

/// Waits until the recorder says that it follows all processes of these jobs.
fn wait_until_followed(output: &Path, jobs: &[Bed]) {
    let begun = Instant::now();
    wait_until("the processes are followed", PATIENCE, || {
        let session = session_so_far(output);
        let has_library = |target: &Value| target["libraries"].as_array().is_some_and(|all| !all.is_empty());
        let is_followed = |pid: &u32| target(&session, *pid).is_some_and(has_library);
        jobs.iter().flat_map(|job| &job.ready.pids).all(is_followed)
    });
    println!("the last process was followed, as session.json says, after {} ms", begun.elapsed().as_millis());
}

/// What it holds when it holds as little as before, or, where that does not come about, after a while: it
/// closes files and detaches some seconds after a process has gone.
fn held_at_rest(pid: u32, at_most: Option<Held>) -> Held {
    let mut last = Held::by(pid);
    let _is_at_rest = eventually(PATIENCE, || {
        let before = last;
        thread::sleep(Duration::from_millis(1500));
        last = Held::by(pid);
        let is_little = at_most.is_none_or(|most| last.fds <= most.fds && last.links <= most.links);
        (before.fds, before.links) == (last.fds, last.links) && is_little
    });
    last
}

/// Starts and ends jobs of two processes while everything is recorded. `filtered`: probes are
/// attached process by process.
fn churn(filtered: bool) {
    let [Some((_, bed, old)), Some((_, _, new))] = ["2.21.5-cu12", "2.27.5-cu12"].map(programs::needed)
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().display().to_string();
    let output = folder.path().join("out");
    let filter = if filtered { format!("--comm {mark}") } else { String::new() };
    let recorder = Recorder::of_node(&output, &format!("--level api {filter}")).unwrap();
    let (waves, jobs_of_wave) = if is_long() { (7, 4) } else { (4, 2) };
    let mut first = None;
    for wave in 0..waves {
        // A library that is attached to is traced from a process's first call.
        let at_once = wave > 0 && !filtered;
        let path = |job: usize| folder.path().join(format!("job-{wave}-{job}"));
        let start = |job: usize| {
            let library = if job.is_multiple_of(2) { &old } else { &new };
            calling_job(&bed, library, &path(job), at_once)
        };
        let mut jobs: Vec<Bed> = (0..jobs_of_wave).map(start).collect();
        wait_until_followed(&output, &jobs);
        for (number, job) in jobs.iter_mut().enumerate() {
            job.go().unwrap();
            File::create(path(number).join("hold")).unwrap();
        }
        for job in &mut jobs {
            job.end();
        }
        if wave == 1 {
            first = Some(held_at_rest(recorder.pid(), None));
        }
    }
    let first = first.unwrap();
    // Without a filter it has the processes of the test beside this one, too, which come and go.
    let last = held_at_rest(recorder.pid(), filtered.then_some(first));
    let said = recorder.interrupt().unwrap();
    println!("held after two waves {first:?}, after {waves} {last:?}");
    if filtered {
        // Something of the first waves can have been let go of only later.
        assert!(last.fds <= first.fds && last.links <= first.links, "{first:?} {last:?}: {said}");
    }
    let growth = if filtered { 4 << 20 } else { 16 << 20 };
    assert!(last.resident < first.resident + growth, "{first:?} {last:?}");

    let session = session(&output);
    assert_no_loss(&session);
    let mut recorded = recorded_by_process(&output);
    let mut processes = 0;
    for (wave, job) in (0..waves).flat_map(|wave| (0..jobs_of_wave).map(move |job| (wave, job))) {
        let calls = call_log::read(&folder.path().join(format!("job-{wave}-{job}/calls"))).unwrap();
        for init in calls.iter().filter(|call| call.function == "ncclCommInitRank") {
            let seen = recorded.remove(&init.pid.into());
            let seen = seen.unwrap_or_else(|| panic!("no record of {}: {said}", init.pid));
            check_calls(&calls, init.pid, seen);
            let target = with_pid(&session["targets"], init.pid);
            assert_eq!(target["exited"], true, "{target:#}");
            processes += 1;
        }
    }
    assert_eq!(processes, waves * jobs_of_wave * 2);
}

/// The times of all calls that were recorded, by process. Every file must speak of one process.
fn recorded_by_process(output: &Path) -> BTreeMap<u64, Vec<u64>> {
    let mut recorded: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let folders = fs::read_dir(output).unwrap().flatten().filter(|entry| entry.path().is_dir());
    for entry in folders.filter(|entry| entry.file_name() != "recording") {
        for file in fs::read_dir(entry.path()).unwrap().flatten() {
            let mut pids = Vec::new();
            for line in read_lines(&file.path()) {
                let (pid, ts_ns) = (number(&line["pid"]), number(&line["ts_ns"]));
                pids.push(pid);
                recorded.entry(pid).or_default().push(ts_ns);
            }
            pids.dedup();
            assert!(pids.len() <= 1, "{} speaks of {pids:?}", file.path().display());
        }
    }
    recorded
}

/// Each call of a process must be recorded once, and in its time.
fn check_calls(calls: &[Call], pid: u32, mut seen: Vec<u64>) {
    let made: Vec<_> =
        calls.iter().filter(|call| call.pid == pid && call.function == "ncclAllReduce").collect();
    assert_eq!((made.len(), seen.len()), (CALLS, CALLS), "process {pid}");
    seen.sort_unstable();
    for (call, ts_ns) in made.iter().zip(&seen) {
        assert!((call.begin_ns..=call.end_ns).contains(ts_ns), "process {pid}: {call:?} {ts_ns}");
    }
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
