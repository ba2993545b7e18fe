//! `ncclflow ps`: NCCL's own counts of what was launched, and what a user sees who is not root.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use ncclflow_e2e::harness::{bed::Bed, job::VERSIONS, node::Killed, programs};
use serde_json::Value;
use test_support::{need, root};

const ITERATIONS: u64 = 6;
/// Nobody, by Debian's count.
const NOBODY: u32 = 65534;

fn of_process(report: &Value, pid: u32) -> Option<&Value> {
    report["processes"].as_array().unwrap().iter().find(|process| process["pid"] == pid)
}

/// `ps --watch --json`, look by look.
struct Watch {
    _child: Killed,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Watch {
    fn start(ncclflow: &Path, mark: &str) -> Self {
        let mut child: Child = Command::new(ncclflow)
            .args(["ps", "--json", "--watch", "0.5", "--comm", mark])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { _child: Killed(child), lines }
    }

    fn look(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }
}

/// All communicators of the job, by rank.
fn communicators(report: &Value, bed: &Bed) -> BTreeMap<u64, Value> {
    let of = |pid: &u32| of_process(report, *pid).map(|process| process["communicators"].clone());
    let all = bed.ready.pids.iter().filter_map(of).flat_map(|list| list.as_array().unwrap().clone());
    all.map(|comm| (comm["rank"].as_u64().unwrap(), comm)).collect()
}

/// The job's own number of operations is the truth. Once it has made them, and between two looks while it
/// makes them.
#[test]
fn ps_shows_nccl_s_own_count_of_collectives_and_whether_it_grows() {
    let (Some(ncclflow), Some(program), true) = (programs::ncclflow(), programs::bed(), root()) else {
        return;
    };
    for version in VERSIONS {
        let Some(library) = programs::nccl(version) else { return };
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().display().to_string();
        let hold = folder.path().join("hold").display().to_string();
        let arguments = ["--mode", "processes", "--ranks", "2", "--iters", "6", "--bytes", "4096", "--sync"];
        let more = ["--ops", "allreduce,allgather,sendrecv", "--channels", "1", "--hold-file", &hold];
        let mut bed =
            Bed::start(&program, &library, folder.path(), &[&arguments[..], &more].concat()).unwrap();
        let counts_apart = !version.starts_with("2.21");
        let counter = if counts_apart { "seqNumber" } else { "collOpCount" };
        let mut watch = Watch::start(&ncclflow, &mark);

        let first = communicators(&watch.look(), &bed);
        assert_eq!(first.len(), 2, "{first:?}");
        for comm in first.values() {
            assert_eq!(
                (&comm["collectives"], &comm["collectivesCounter"]),
                (&0.into(), &counter.into()),
                "{version} {comm:#}"
            );
            assert!(comm.get("sinceLastLook").is_none(), "{comm:#}");
        }
        let still = communicators(&watch.look(), &bed);
        for comm in still.values() {
            let since = &comm["sinceLastLook"];
            assert_eq!((&since["collectives"], &since["moved"]), (&0.into(), &false.into()), "{comm:#}");
            assert!(since["seconds"].as_f64().unwrap() >= 0.5, "{comm:#}");
        }
        bed.go().unwrap();
        // Of every look the sum so far is what NCCL's count says.
        let mut launched: BTreeMap<u64, u64> = BTreeMap::new();
        let deadline = Instant::now() + Duration::from_mins(1);
        let mut has_moved = false;
        let last = loop {
            let look = communicators(&watch.look(), &bed);
            for (rank, comm) in &look {
                let since = &comm["sinceLastLook"];
                let grown = since["collectives"].as_u64().unwrap();
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
            let by_function = if counts_apart {
                serde_json::json!({ "AllGather": ITERATIONS, "AllReduce": ITERATIONS })
            } else {
                serde_json::json!({})
            };
            assert_eq!(comm["collectivesByFunction"], by_function, "{version}");
        }
        let table = Command::new(&ncclflow).args(["ps", "--comm", &mark]).output().unwrap();
        let table = String::from_utf8(table.stdout).unwrap();
        assert_eq!(table.matches("  12 collectives\n").count(), 2, "{table}");
        File::create(&hold).unwrap();
        assert!(bed.finish().unwrap().1.ok);
    }
}

/// Two communicators of one process count each for itself; where NCCL counts for both together there is no
/// number.
#[test]
fn each_communicator_of_a_process_has_its_own_number() {
    let (Some(ncclflow), Some(program), true) = (programs::ncclflow(), programs::bed(), root()) else {
        return;
    };
    for version in VERSIONS {
        let Some(library) = programs::nccl(version) else { return };
        let folder = tempfile::tempdir().unwrap();
        let hold = folder.path().join("hold").display().to_string();
        // Operations take turns: of five, the first communicator gets three and the second two.
        let arguments = ["--ranks", "2", "--comms", "2", "--iters", "5", "--bytes", "4096", "--sync"];
        let mut bed = Bed::start(
            &program,
            &library,
            folder.path(),
            &[&arguments[..], &["--channels", "1", "--hold-file", &hold]].concat(),
        )
        .unwrap();
        bed.go().unwrap();
        let mark = folder.path().display().to_string();
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let output = Command::new(&ncclflow).args(["ps", "--json", "--comm", &mark]).output().unwrap();
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            let process = of_process(&report, bed.ready.pids[0]).unwrap();
            let mut found: Vec<(u64, u64)> = process["communicators"]
                .as_array()
                .unwrap()
                .iter()
                .map(|comm| (comm["rank"].as_u64().unwrap(), comm["collectives"].as_u64().unwrap()))
                .collect();
            found.sort_unstable();
            if found == [(0, 2), (0, 3), (1, 2), (1, 3)] {
                break;
            }
            assert!(Instant::now() < deadline, "{version}: {found:?}");
        }
        File::create(&hold).unwrap();
        assert!(bed.finish().unwrap().1.ok);
    }
}

/// A program that runs as nobody, without any capability.
fn as_nobody(program: &Path, arguments: &[&str]) -> Output {
    Command::new("setpriv")
        .args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")])
        .args(["--clear-groups", "--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all"])
        .arg("--bounding-set=-all")
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
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
    let output = as_nobody(tool, &["ps"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = text.lines().collect();
    let [nothing, others] = &*lines else { panic!("{text}") };
    assert_eq!(*nothing, "no process of this host that may be inspected uses NCCL");
    assert!(others.starts_with("processes that may not be inspected: "), "{others}");
    assert!(others.ends_with(": run as root to see them"), "{others}");

    // Where it is not even shown that there are others.
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c"])
        .arg("mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$0\" ps")
        .arg(tool)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    if need("mount", output.status.success(), "run where /proc may be mounted") {
        assert!(text.starts_with("no process of this host that may be inspected uses NCCL\n"), "{text}");
        assert!(
            text.ends_with("are hidden (/proc is mounted with hidepid): run as root to see them\n"),
            "{text}"
        );
    }
}

#[test]
fn without_root_ps_shows_one_s_own_processes_and_says_that_there_are_others() {
    let (Some(ncclflow), Some(program), Some(library), true) =
        (programs::ncclflow(), programs::bed(), programs::nccl("2.21.5-cu12"), root())
    else {
        return;
    };
    let has_setpriv =
        Command::new("setpriv").arg("--version").output().is_ok_and(|output| output.status.success());
    if !need("setpriv", has_setpriv, "install util-linux") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let nvml = program.with_file_name("libnvidia_ml.so");
    let [tool, bed_program, nvml, library] =
        [&ncclflow, &program, &nvml, &library].map(|file| lent(file, folder.path()));
    let script = folder.path().join("bed-of-nobody");
    fs::write(
        &script,
        format!(
            "#!/bin/sh\nexec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --inh-caps=-all '{}' --nvml '{}' \"$@\"\n",
            bed_program.display(),
            nvml.display()
        ),
    )
    .unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();

    without_processes_of_its_own(&tool);

    let below = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        path
    };
    let arguments = ["--ranks", "2", "--iters", "1"];
    let own = Bed::start(&script, &library, &below("own"), &arguments).unwrap();
    let others = Bed::start(&program, &library, &below("others"), &arguments).unwrap();
    let output = as_nobody(&tool, &["ps", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(of_process(&report, others.ready.pids[0]).is_none(), "{report:#}");
    let process = of_process(&report, own.ready.pids[0]).unwrap();
    assert_eq!((&process["uid"], &process["libraries"][0]["version"]), (&NOBODY.into(), &"2.21.5".into()));
    // Where Yama forbids it, even one's own memory may not be read; then that is said.
    let restricted = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if matches!(restricted.trim(), "" | "0") {
        assert_eq!(process["communicators"].as_array().unwrap().len(), 2, "{process:#}");
        assert_eq!(process["errors"], serde_json::json!([]), "{process:#}");
    } else {
        assert!(!process["errors"].as_array().unwrap().is_empty(), "{process:#}");
    }
    // Every other user's process, and no thread of the kernel: those have no memory.
    let has_memory = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let uid = status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
        status.contains("VmSize:") && uid.is_some_and(|uid: u32| uid != NOBODY)
    };
    let names = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
    let users = names.filter(|name| name.to_str().is_some_and(has_memory)).count() as u64;
    let denied = report["denied"].as_u64().unwrap();
    assert!(denied.abs_diff(users) <= 20, "{denied} are denied, and {users} of others have memory");
}
