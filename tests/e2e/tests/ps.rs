//! `ncclflow ps`: NCCL's own counts of what was launched, and what a user sees who is not root.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt as _;

use ncclflow_e2e::harness::{
    job::libraries,
    prelude::*,
    privileges::{NOBODY, has_setpriv, with_capabilities},
    processes::status_field,
    program_files,
};

const ITERATIONS: u64 = 6;

fn of_process(report: &Value, pid: u32) -> Option<&Value> {
    list(&report["processes"]).iter().find(|process| process["pid"] == pid)
}

/// `ps --watch --json`, look by look.
struct Watch(Killed);

impl Watch {
    fn start(job: &World) -> Self {
        let mut ps = Command::new(&job.ncclflow);
        ps.args(["ps", "--json", "--watch", "0.5", "--comm"]).arg(job.folder.path()).stderr(Stdio::null());
        Self(Killed::start(&mut ps).unwrap())
    }

    fn look(&mut self) -> Value {
        serde_json::from_str(&self.0.line().unwrap()).unwrap()
    }
}

/// All communicators of the job, by rank.
fn communicators(report: &Value, bed: &Bed) -> BTreeMap<u64, Value> {
    let of = |pid: &u32| of_process(report, *pid).map(|process| process["communicators"].clone());
    let all = bed.ready.pids.iter().filter_map(of).flat_map(|comms| list(&comms).clone());
    all.map(|comm| (number(&comm["rank"]), comm)).collect()
}

/// The job's own number of operations is the truth. Once it has made them, and between two looks while it
/// makes them.
#[test]
fn ps_shows_nccl_s_own_count_of_collectives_and_whether_it_grows() {
    for version in libraries() {
        let fixed = "--mode processes --ranks 2 --bytes 4096 --sync --channels 1 --hold-file {}/hold";
        let workload = format!("{fixed} --iters {ITERATIONS} --ops allreduce,allgather,sendrecv");
        let Some(mut job) = World::start(version, &workload) else { return };
        let counts_apart = !version.starts_with("2.21");
        let counter = if counts_apart { "seqNumber" } else { "collOpCount" };
        let mut watch = Watch::start(&job);

        let first = communicators(&watch.look(), &job.bed);
        assert_eq!(first.len(), 2, "{first:?}");
        for comm in first.values() {
            let found = (&comm["collectives"], &comm["collectivesCounter"]);
            assert_eq!(found, (&json!(0), &json!(counter)), "{version} {comm:#}");
            assert!(comm.get("sinceLastLook").is_none(), "{comm:#}");
        }
        let still = communicators(&watch.look(), &job.bed);
        for comm in still.values() {
            let since = &comm["sinceLastLook"];
            assert_eq!((&since["collectives"], &since["moved"]), (&0.into(), &false.into()), "{comm:#}");
            assert!(since["seconds"].as_f64().unwrap() >= 0.5, "{comm:#}");
        }
        job.bed.go().unwrap();
        // Of every look the sum so far is what NCCL's count says.
        let mut launched: BTreeMap<u64, u64> = BTreeMap::new();
        let deadline = Instant::now() + Duration::from_mins(1);
        let mut has_moved = false;
        let last = loop {
            let look = communicators(&watch.look(), &job.bed);
            for (rank, comm) in &look {
                let since = &comm["sinceLastLook"];
                let grown = number(&since["collectives"]);
                assert!(grown == 0 || since["moved"] == true, "{comm:#}");
                has_moved |= since["moved"] == true;
                let sum = launched.entry(*rank).or_insert(0);
                *sum += grown;
                assert_eq!(comm["collectives"], *sum, "{version} {comm:#}");
            }
            let is_done = launched.values().all(|count| *count == 2 * ITERATIONS);
            if is_done && look.values().all(|comm| comm["sinceLastLook"]["moved"] == false) {
                break look;
            }
            assert!(Instant::now() < deadline, "{version}: {look:#?}");
        };
        assert!(has_moved);
        for comm in last.values() {
            assert_eq!(
                comm["collectives"],
                2 * ITERATIONS,
                "{version}: sends and receives are none: {comm:#}"
            );
            let both = json!({ "AllGather": ITERATIONS, "AllReduce": ITERATIONS });
            let by_function = if counts_apart { both } else { json!({}) };
            assert_eq!(comm["collectivesByFunction"], by_function, "{version}");
        }
        let table = ncclflow_of("ps --comm", &[job.folder.path()]).stdout;
        assert_eq!(table.matches("  12 collectives\n").count(), 2, "{table}");
        job.touch("hold");
        job.bed.end();
    }
}

/// Two communicators of one process count each for itself; where NCCL counts for both together there is no
/// number.
#[test]
fn each_communicator_of_a_process_has_its_own_number() {
    for version in libraries() {
        // Operations take turns: of five, the first communicator gets three and the second two.
        let workload = "--ranks 2 --comms 2 --iters 5 --bytes 4096 --sync --channels 1 --hold-file {}/hold";
        let Some(mut job) = World::start(version, workload) else { return };
        job.bed.go().unwrap();
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let report = ncclflow_of("ps --json --comm", &[job.folder.path()]).json();
            let process = of_process(&report, job.bed.ready.pids[0]).unwrap();
            let counts = |comm: &Value| (number(&comm["rank"]), number(&comm["collectives"]));
            let mut found: Vec<(u64, u64)> = list(&process["communicators"]).iter().map(counts).collect();
            found.sort_unstable();
            if found == [(0, 2), (0, 3), (1, 2), (1, 3)] {
                break;
            }
            assert!(Instant::now() < deadline, "{version}: {found:?}");
        }
        job.touch("hold");
        job.bed.end();
    }
}

/// `ncclflow` as nobody, without any capability.
fn as_nobody(tool: &Path, words: &str) -> Ran {
    run(with_capabilities("-all", tool).args(words.split(' '))).ok()
}

/// Where nobody can read it. The library may be 400 MB, so it is linked where that is possible.
fn lent(file: &Path, folder: &Path) -> PathBuf {
    let to = folder.join(file.file_name().unwrap());
    if fs::hard_link(file, &to).is_err() {
        fs::copy(file, &to).unwrap();
    }
    to
}

/// Without a process of one's own there is nothing, which is not the same as that there is nothing on the
/// host.
fn without_processes_of_its_own(tool: &Path) {
    let said = as_nobody(tool, "ps").stdout;
    let [nothing, others] = *said.lines().collect::<Vec<_>>() else { panic!("{said}") };
    assert_eq!(nothing, "no process of this host that may be inspected uses NCCL");
    assert!(others.starts_with("cannot inspect "), "{others}");
    assert!(others.ends_with(": run as root to see them"), "{others}");

    // Where it is not even shown that there are others.
    let script = "mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$0\" ps";
    let hidden = run(Command::new("unshare").args(["--mount", "sh", "-c", script]).arg(tool));
    if need("mount", hidden.status.success(), "run where /proc may be mounted") {
        let said = hidden.stdout;
        assert!(said.starts_with("no process of this host that may be inspected uses NCCL\n"), "{said}");
        let end = "are hidden (/proc is mounted with hidepid): run as root to see them\n";
        assert!(said.ends_with(end), "{said}");
    }
}

#[test]
fn without_root_ps_shows_one_s_own_processes_and_says_that_there_are_others() {
    let Some((ncclflow, program, library)) = programs::needed("2.21.5-cu12").filter(|_| has_setpriv()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let nvml = program.with_file_name("libnvidia_ml.so");
    let [tool, bed_program, nvml, library] =
        [&ncclflow, &program, &nvml, &library].map(|file| lent(file, folder.path()));
    let script = folder.path().join("bed-of-nobody");
    let text = format!(
        "exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --inh-caps=-all '{}' --nvml '{}' \"$@\"",
        bed_program.display(),
        nvml.display()
    );
    program_files::script(&script, &text).unwrap();

    without_processes_of_its_own(&tool);

    let below = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        path
    };
    let own = Bed::of_words(&script, &library, &below("own"), "--ranks 2 --iters 1").unwrap();
    let others = Bed::of_words(&program, &library, &below("others"), "--ranks 2 --iters 1").unwrap();
    let report = as_nobody(&tool, "ps --json").json();
    assert!(of_process(&report, others.ready.pids[0]).is_none(), "{report:#}");
    let process = of_process(&report, own.ready.pids[0]).unwrap();
    assert_eq!((&process["uid"], &process["libraries"][0]["version"]), (&NOBODY.into(), &"2.21.5".into()));
    // Where Yama forbids it, even one's own memory may not be read; then that is said.
    let restricted = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if matches!(restricted.trim(), "" | "0") {
        assert_eq!(list(&process["communicators"]).len(), 2, "{process:#}");
        assert_eq!(process["errors"], json!([]), "{process:#}");
    } else {
        assert!(!list(&process["errors"]).is_empty(), "{process:#}");
    }
    // Every other user's process, and no thread of the kernel: those have no memory.
    let has_memory = |pid: u32| {
        let uid = status_field(pid, "Uid").and_then(|uids| uids.split_whitespace().next()?.parse().ok());
        status_field(pid, "VmSize").is_some() && uid.is_some_and(|uid: u32| uid != NOBODY)
    };
    let names = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse().ok());
    let users = pids.filter(|pid| has_memory(*pid)).count() as u64;
    let denied = number(&report["denied"]);
    assert!(denied.abs_diff(users) <= 20, "{denied} are denied, and {users} of others have memory");
}
