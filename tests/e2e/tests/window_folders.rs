//! Whose a window is, and how its folders and files are called: flags in containers, windows of several hosts
//! in one folder.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::MetadataExt as _;

use ncclflow_e2e::{
    harness::{node::outer_pid, prelude::*, program_files},
    truth::call_log,
};

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn windows(output: &Path) -> Vec<String> {
    names(output).into_iter().filter(|name| name.starts_with("window_")).collect()
}

/// Waits until the recorder has said that the window of this number is open: from then on calls are in it.
fn wait_until_open(recorder: &mut Recorder, number: usize) {
    recorder.hear(&format!("window {number} opened")).unwrap();
}

/// Processes that have a folder in the window.
fn processes(window: &Path) -> BTreeSet<u32> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let pid = |name: &String| name.strip_prefix(&format!("{host}."))?.parse().ok();
    names(window).iter().filter_map(pid).collect()
}

fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    program_files::script(&path, text).unwrap();
    path
}

const WORKLOAD: &str =
    "--iters 1000000 --interval-ms 20 --bytes 4096 --sync --channels 1 --timeout 600 --ranks 2";

fn start(program: &Path, library: &Path, folder: &Path, mode: &str) -> anyhow::Result<Bed> {
    Bed::of_words(program, library, folder, &format!("{WORKLOAD} --mode {mode} {CALL_LOG}"))
}

/// A job of two processes, and two containers of one process each, in which the folder of the flag is
/// another than outside.
struct Containers {
    folder: tempfile::TempDir,
    beds: Vec<Bed>,
    recorder: Option<Recorder>,
    output: PathBuf,
    flag: PathBuf,
    /// The processes in the containers, as they are seen outside.
    inner: [u32; 2],
    windows: usize,
}

impl Containers {
    fn start() -> Option<Self> {
        let (ncclflow, bed, library) = programs::needed("2.27.5-cu12")?;
        let folder = tempfile::tempdir().unwrap();
        let flags = folder.path().join("flags");
        fs::create_dir(&flags).unwrap();
        let text = format!(
            "exec unshare --mount --pid --fork --mount-proc --kill-child sh -c 'mount -t tmpfs none \"$0\" && exec \"$@\"' '{}' '{}' \"$@\"",
            flags.display(),
            bed.display()
        );
        let inside = script(folder.path(), "bed-in-container", &text);
        let mut beds = vec![start(&bed, &library, &folder.path().join("host"), "processes").unwrap()];
        for name in ["a", "b"] {
            let started = start(&inside, &library, &folder.path().join(name), "threads");
            if !need("mount", started.is_ok(), "run where namespaces may be made") {
                return None;
            }
            beds.push(started.unwrap());
        }
        let inner = [1, 2].map(|at| outer_pid(&beds[at]).unwrap());
        let pids: Vec<String> = beds[0].ready.pids.iter().chain(&inner).map(ToString::to_string).collect();
        let (output, flag) = (folder.path().join("out"), flags.join("flag"));
        let flag_text = flag.display().to_string();
        let arguments = ["--level", "api", "--window-flag", &flag_text];
        let recorder = Recorder::start(&ncclflow, &pids.join(","), &output, &arguments).unwrap();
        for bed in &beds {
            bed.go().unwrap();
        }
        let job = Self { folder, beds, recorder: Some(recorder), output, flag, inner, windows: 0 };
        job.wait_for_calls(3);
        Some(job)
    }

    /// Waits until every process has made so many calls more.
    fn wait_for_calls(&self, more: usize) {
        for (bed, name) in self.beds.iter().zip(["host", "a", "b"]) {
            progress::wait_for_calls(&self.folder.path().join(name).join("calls"), &bed.ready.pids, more);
        }
    }

    /// The flag as a container sees it.
    fn inner_flag(&self, container: usize) -> PathBuf {
        let path = self.flag.strip_prefix("/").unwrap();
        Path::new("/proc").join(self.inner[container].to_string()).join("root").join(path)
    }

    /// What is done to a flag ends one window more, or begins one.
    fn opens(&mut self, act: impl FnOnce(&Self)) {
        act(self);
        self.windows += 1;
        wait_until_open(self.recorder.as_mut().unwrap(), self.windows);
        self.wait_for_calls(12);
    }

    fn end(&mut self) -> (Value, String) {
        let recorder = self.recorder.take().unwrap();
        let said = recorder.interrupt().unwrap();
        (session(&self.output), said)
    }
}

#[test]
fn a_flag_in_a_container_opens_windows_of_its_processes_only() {
    let Some(mut job) = Containers::start() else { return };
    let touch = |path: PathBuf| drop(File::create(path).unwrap());
    // The first alone.
    job.opens(|job| touch(job.inner_flag(0)));
    fs::remove_file(job.inner_flag(0)).unwrap();
    progress::wait_for_windows(&job.output, 1);
    // Both, one after the other.
    job.opens(|job| touch(job.inner_flag(0)));
    job.opens(|job| touch(job.inner_flag(1)));
    job.opens(|job| fs::remove_file(job.inner_flag(0)).unwrap());
    // Somebody means no good: a pipe that nobody writes to.
    job.opens(|job| assert!(Command::new("mkfifo").arg(job.inner_flag(0)).status().unwrap().success()));
    fs::remove_file(job.inner_flag(1)).unwrap();
    job.opens(|_| ());
    // Our own, which is for all.
    job.opens(|job| touch(job.flag.clone()));
    job.opens(|job| fs::remove_file(&job.flag).unwrap());
    fs::remove_file(job.inner_flag(0)).unwrap();
    progress::wait_for_windows(&job.output, 8);
    let (report, said) = job.end();

    let [a, b] = job.inner;
    let host: BTreeSet<u32> = job.beds[0].ready.pids.iter().copied().collect();
    let all: BTreeSet<u32> = host.iter().copied().chain([a, b]).collect();
    let set = |pids: &[u32]| pids.iter().copied().collect::<BTreeSet<u32>>();
    let expected = [
        (set(&[a]), "flag"),
        (set(&[a]), "other_flag"),
        (set(&[a, b]), "flag"),
        (set(&[b]), "other_flag"),
        (set(&[a, b]), "flag"),
        (set(&[a]), "other_flag"),
        (all.clone(), "flag"),
        (set(&[a]), "flag"),
    ];
    let listed = list(&report["windows"]);
    assert_eq!(listed.len(), expected.len(), "{said}");
    let namespace = |pid: u32| fs::metadata(format!("/proc/{pid}/ns/mnt")).unwrap().ino();
    for (window, (pids, end)) in listed.iter().zip(&expected) {
        assert_eq!(window["closed_by"], *end, "{window:#}");
        let name = text(&window["folder"]);
        let folder = job.output.join(name);
        assert_eq!(&processes(&folder), pids, "{name}");
        assert_no_loss(&session(&folder));
        if *pids == all {
            assert!(window["containers"].is_null(), "{window:#}");
            continue;
        }
        let of = |container: &Value| (number(&container["mount_namespace"]), container["pids"].clone());
        let described: BTreeMap<u64, Value> = list(&window["containers"]).iter().map(of).collect();
        let wanted = pids.iter().map(|pid| (namespace(*pid), json!([pid])));
        assert_eq!(described, wanted.collect());
        let ending = if pids.len() == 1 {
            format!("_mnt-{}", namespace(*pids.first().unwrap()))
        } else {
            "_2-containers".to_owned()
        };
        assert!(name.ends_with(&ending), "{name}");
    }
    // What was hit outside was counted, and not taken for lost.
    let [hits, delivered, disarmed] =
        ["hits", "delivered", "disarmed"].map(|key| sum(&report["probes"], key));
    assert!(hits == delivered + disarmed && disarmed > 0);

    // All calls of the process in the container that lie whole inside of its first window.
    let (opened, closed) =
        ["opened_monotonic_ns", "closed_monotonic_ns"].map(|key| number(&listed[0][key])).into();
    let folder = job.output.join(text(&listed[0]["folder"]));
    job.beds.clear();
    let calls = call_log::read(&job.folder.path().join("a/calls")).unwrap();
    let calls: Vec<_> = calls.iter().filter(|call| call.function == "ncclAllReduce").collect();
    let inside = calls.iter().filter(|call| call.begin_ns > opened && call.end_ns < closed).count();
    let lines = usize::try_from(sum(&session(&folder)["communicators"], "apiLines")).unwrap();
    // One call of each rank can lie across each end.
    assert!(inside >= 8 && (inside..=inside + 4).contains(&lines), "{inside} calls, {lines} lines");
}

fn copy_into(from: &Path, to: &Path) {
    for name in names(from) {
        let (from, to) = (from.join(&name), to.join(&name));
        assert!(!to.exists(), "{} is there already", to.display());
        if from.is_dir() {
            fs::create_dir(&to).unwrap();
            copy_into(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

/// Files of a name that says which process and window exported them.
fn exports(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() {
            exports(&entry.path(), found);
        } else if entry.file_name().to_string_lossy().contains("_pid") {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
}

#[test]
fn windows_of_two_hosts_lie_in_one_folder_and_are_read_in_their_order() {
    let Some((program, bed, library)) = programs::needed("2.27.5-cu12") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let job = start(&bed, &library, &path("job"), "processes").unwrap();
    let words = format!(
        "exec unshare --uts sh -c 'echo another-host > /proc/sys/kernel/hostname && exec \"$0\" \"$@\"' '{}' \"$@\"",
        program.display()
    );
    let elsewhere = script(folder.path(), "ncclflow-elsewhere", &words);
    let flag = path("flag").display().to_string();
    let arguments = ["--window-flag", &flag];
    let mut recorders = Vec::new();
    for (program, (pid, output)) in
        [&program, &elsewhere].into_iter().zip(job.ready.pids.iter().zip(["one", "two"]))
    {
        recorders.push(Recorder::start(program, &pid.to_string(), &path(output), &arguments).unwrap());
    }
    job.go().unwrap();
    for count in 1..=2 {
        File::create(&flag).unwrap();
        for recorder in &mut recorders {
            wait_until_open(recorder, count);
        }
        progress::wait_for_calls(&path("job").join("calls"), &job.ready.pids, 10);
        fs::remove_file(&flag).unwrap();
        for output in ["one", "two"] {
            progress::wait_for_windows(&path(output), count);
        }
    }
    for recorder in recorders {
        recorder.interrupt().unwrap();
    }
    drop(job);

    let all = path("all");
    fs::create_dir(&all).unwrap();
    for output in ["one", "two"] {
        fs::remove_file(path(output).join("session.json")).unwrap();
        copy_into(&path(output), &all);
    }
    let windows = windows(&all);
    assert_eq!(windows.len(), 4, "{windows:?}");
    let mut found = Vec::new();
    exports(&all, &mut found);
    assert_eq!(found.len(), 4, "{found:?}");
    assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 4, "{found:?}");

    let check = ncclflow_of("check --json", &[&all]).json();
    let checked = list(&check["communicators"]);
    assert_eq!(checked.len(), 2, "{check:#}");
    for (communicator, name) in checked.iter().zip(["window_0001", "window_0002"]) {
        assert_eq!(communicator["ranks"], json!([0, 1]));
        assert!(number(&communicator["collectives"]) > 5);
        let window = text(&communicator["window"]);
        let parts: Vec<&str> = window.split(", ").collect();
        assert!(parts.len() == 2 && parts.iter().all(|part| part.starts_with(name)), "{window}");
        assert!(window.contains("_another-host."), "{window}");
    }
    let summary = ncclflow_of("summary --json", &[&all]).json();
    let ranks = list(&summary["ranks"]);
    let of_windows: Vec<&str> = ranks.iter().map(|rank| text(&rank["window"])).collect();
    assert!(of_windows.len() == 4 && of_windows.is_sorted(), "{of_windows:?}");
    assert!(ranks.iter().all(|rank| number(&rank["links"][0]["messages"]) > 0));
    // A window alone.
    let check = ncclflow_of("check --json", &[all.join(&windows[0])]).json();
    assert_eq!(list(&check["communicators"][0]["ranks"]).len(), 1, "{check:#}");
    assert!(check["communicators"][0]["window"].is_null());
    let said = ncclflow_of("export -f jsonl -o", &[&path("exported"), &all]).ok().stdout;
    assert!(said.contains("exported into"), "{said}");
}
