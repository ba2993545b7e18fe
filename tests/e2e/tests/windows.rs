//! `record --window-flag`, `--rotate`, `--max-size`: windows hold what happened while the flag was there,
//! whole, and within their limits.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use ncclflow_e2e::{
    harness::{bed::Bed, disk::Disk, programs, progress, recorder::Recorder},
    tracer::Trace,
    truth::call_log::{self, Call},
};
use rustix::process::Signal;
use serde_json::Value;
use test_support::{is_long, need, root, wait_until};

/// Longest time from a touch, or an rm, to its effect. On an idle machine it is a millisecond or two.
const LATENCY: u64 = 400_000_000;

/// Two jobs of four processes that call all-reduce all the time, and a recording with windows.
struct Windowed {
    folder: tempfile::TempDir,
    beds: Vec<Bed>,
    recorder: Option<Recorder>,
    output: PathBuf,
    flag: PathBuf,
}

impl Windowed {
    /// `arguments` are the recording's. `ranks` processes in each of `jobs` jobs.
    fn start(jobs: usize, ranks: &str, arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("out");
        Self::start_in(folder, output, jobs, ranks, arguments)
    }

    fn start_in(
        folder: tempfile::TempDir,
        output: PathBuf,
        jobs: usize,
        ranks: &str,
        arguments: &[&str],
    ) -> Option<Self> {
        let (Some(ncclflow), Some(bed), true) = (programs::ncclflow(), programs::bed(), root()) else {
            return None;
        };
        let flag = folder.path().join("flag");
        let mut beds = Vec::new();
        for (job, version) in ["2.27.5-cu12", "2.21.5-cu12"].into_iter().enumerate().take(jobs) {
            let library = programs::nccl(version)?;
            let path = folder.path().join(format!("job-{job}"));
            fs::create_dir(&path).unwrap();
            let calls = path.join("calls").display().to_string();
            let fixed = "--mode processes --iters 1000000 --interval-ms 20 --bytes 4096 --sync --channels 1 --timeout 600";
            let mut all: Vec<&str> = fixed.split(' ').collect();
            all.extend(["--ranks", ranks, "--call-log", &calls]);
            beds.push(Bed::start(&bed, &library, &path, &all).unwrap());
        }
        let pids: Vec<String> = beds.iter().map(Bed::pid_list).collect();
        let flag_text = flag.display().to_string();
        let mut all =
            if arguments.contains(&"--rotate") { vec![] } else { vec!["--window-flag", &flag_text] };
        all.extend(arguments);
        let recorder = Recorder::start(&ncclflow, &pids.join(","), &output, &all).unwrap();
        for bed in &beds {
            bed.go().unwrap();
        }
        let job = Self { folder, beds, recorder: Some(recorder), output, flag };
        job.wait_for_calls(3);
        Some(job)
    }

    /// Waits until each process has made so many calls more.
    fn wait_for_calls(&self, more: usize) {
        for (job, bed) in self.beds.iter().enumerate() {
            let prefix = self.folder.path().join(format!("job-{job}/calls"));
            progress::wait_for_calls(&prefix, &bed.ready.pids, more);
        }
    }

    /// Opens a window for so long: the moments before the touch and after the rm.
    fn window(&self, length: Duration) -> (u64, u64) {
        let before = call_log::now_ns();
        File::create(&self.flag).unwrap();
        thread::sleep(length);
        fs::remove_file(&self.flag).unwrap();
        (before, call_log::now_ns())
    }

    fn end(&mut self) -> (Value, String) {
        let recorder = self.recorder.take().unwrap();
        let said = recorder.interrupt().unwrap();
        (json(&self.output.join("session.json")), said)
    }

    /// All calls of all-reduce, by process.
    fn calls(&mut self) -> BTreeMap<u32, Vec<Call>> {
        let pids: Vec<u32> = self.beds.iter().flat_map(|bed| bed.ready.pids.clone()).collect();
        self.beds.clear();
        progress::wait_for_exits(&pids);
        let mut by_pid: BTreeMap<u32, Vec<Call>> = BTreeMap::new();
        for job in fs::read_dir(self.folder.path()).unwrap().flatten() {
            if job.file_name().to_string_lossy().starts_with("job-") {
                for call in call_log::read(&job.path().join("calls")).unwrap() {
                    if call.function == "ncclAllReduce" {
                        by_pid.entry(call.pid).or_default().push(call);
                    }
                }
            }
        }
        by_pid
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The folder's own report: complete, without loss.
fn whole_session(folder: &Path) -> Value {
    let session = json(&folder.join("session.json"));
    assert_eq!(session["state"], "complete", "{session:#}");
    assert!(session["loss"].as_object().unwrap().values().all(|count| count == 0), "{:#}", session["loss"]);
    session
}

fn folders(path: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(path).unwrap().flatten().filter(|entry| entry.path().is_dir())
}

/// The folders of communicators, each with the process whose ranks it has.
fn communicators(window: &Path) -> Vec<(u32, PathBuf)> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut found = Vec::new();
    for process in folders(window).filter(|entry| entry.file_name() != "recording") {
        let name = process.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(&format!("{host}.")).unwrap_or_else(|| panic!("{name}"));
        let pid = pid.parse().unwrap();
        found.extend(folders(&process.path()).map(|entry| (pid, entry.path())));
    }
    found
}

/// Times of the recorded calls of a window, by process.
fn recorded(folder: &Path, opened_ms: u64) -> BTreeMap<u32, Vec<u64>> {
    let mut by_pid: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for (owner, communicator) in communicators(folder) {
        let hash = communicator.file_name().unwrap().to_string_lossy().into_owned();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        for file in fs::read_dir(&communicator).unwrap().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            // Each rank's file has two names; this is the one with the process in it.
            let Some((rank, tag)) = name.split_once("_pid") else { continue };
            assert!(rank.ends_with(&format!("_{hash}_{host}")), "{name}");
            let (pid, ms) = tag.strip_suffix(".jsonl").unwrap().split_once('_').unwrap();
            assert_eq!(ms, opened_ms.to_string(), "{name}");
            let pid: u32 = pid.parse().unwrap();
            assert_eq!(pid, owner, "{name}");
            for line in fs::read_to_string(file.path()).unwrap().lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                assert_eq!(line["pid"], pid, "{name}");
                by_pid.entry(pid).or_default().push(line["ts_ns"].as_u64().unwrap());
            }
        }
    }
    for times in by_pid.values_mut() {
        times.sort_unstable();
    }
    by_pid
}

#[test]
fn twenty_windows_over_eight_processes_hold_what_was_called_between_touch_and_rm() {
    let Some(mut job) = Windowed::start(2, "4", &["--level", "api"]) else { return };
    let (count, length) = if is_long() { (60, 400) } else { (20, 300) };
    let mut flags = Vec::new();
    for number in 1..=count {
        flags.push(job.window(Duration::from_millis(length)));
        progress::wait_for_windows(&job.output, number);
    }
    let (session, said) = job.end();
    let calls = job.calls();
    assert_eq!(calls.len(), 8);
    let windows = session["windows"].as_array().unwrap();
    assert_eq!(windows.len(), count, "{said}");
    let (mut in_all, mut empty) = (0, 0);
    for ((touched, removed), window) in flags.into_iter().zip(windows) {
        let number = |key: &str| window[key].as_u64().unwrap();
        let (opened, closed) = (number("opened_monotonic_ns"), number("closed_monotonic_ns"));
        assert_eq!((&window["closed_by"], &window["ops_left_out"]), (&"flag".into(), &0.into()));
        assert!(
            (touched..touched + LATENCY).contains(&opened),
            "opened {} ms late",
            (opened - touched) / 1_000_000
        );
        assert!(closed < removed + LATENCY, "closed {} ms late", (closed - removed) / 1_000_000);
        let folder = job.output.join(window["folder"].as_str().unwrap());
        whole_session(&folder);
        let seen = recorded(&folder, number("opened_unix_ms"));
        for (pid, calls) in &calls {
            let seen = seen.get(pid).map_or(&[][..], Vec::as_slice);
            in_all += seen.len();
            // Each record is of one call, in its time, and between touch and rm.
            let mut unseen: Vec<&Call> = calls.iter().collect();
            for ts_ns in seen {
                assert!((touched..removed + LATENCY).contains(ts_ns), "{pid}: {ts_ns} {touched} {removed}");
                let at = unseen.iter().position(|call| (call.begin_ns..=call.end_ns).contains(ts_ns));
                unseen.remove(at.unwrap_or_else(|| panic!("{pid}: no call at {ts_ns}")));
            }
            // None is missing that lies whole inside of the window.
            let missing = unseen.iter().find(|call| call.begin_ns > opened && call.end_ns < closed);
            assert!(missing.is_none(), "{pid}: {missing:?} in {opened}..{closed}");
            empty += usize::from(seen.is_empty());
        }
    }
    // All called all the time; on a machine that is busy with more, a call can take as long as a window.
    assert!(empty * 20 <= count * calls.len(), "{empty} of {count} windows times {} processes", calls.len());
    // Whole over the run as well: what was hit while no window was open was recorded in none.
    let probes = session["probes"].as_array().unwrap();
    let sum = |key: &str| probes.iter().map(|probe| probe[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("delivered"), in_all as u64);
    assert_eq!(sum("hits"), sum("delivered") + sum("disarmed"));
    assert!(sum("disarmed") > 0);
    assert!(session["loss"].as_object().unwrap().values().all(|count| count == 0), "{:#}", session["loss"]);
}

#[test]
fn a_window_that_reaches_its_count_of_ops_opens_again_only_for_a_new_flag() {
    let Some(mut job) = Windowed::start(1, "2", &["--window-max-ops", "15"]) else { return };
    for number in 1..=2 {
        // The limit closes it, and the flag stays for many calls more.
        File::create(&job.flag).unwrap();
        progress::wait_for_windows(&job.output, number);
        job.wait_for_calls(10);
        fs::remove_file(&job.flag).unwrap();
        // That it is gone shows nowhere; it is noticed within this time.
        thread::sleep(Duration::from_nanos(LATENCY));
    }
    let (session, said) = job.end();
    let windows = session["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 2, "{said}");
    for window in windows {
        assert_eq!(window["closed_by"], "max_ops");
        let folder = job.output.join(window["folder"].as_str().unwrap());
        let session = whole_session(&folder);
        assert_eq!(lines_of_ranks(&session, "proxyFlowLines"), 15, "{said}");
        // A window begins without memory of the one before, and everything in it is complete all the same.
        let trace = Trace::read(&folder).unwrap();
        for (member, rank) in &trace.ranks {
            assert!(rank.flows.iter().all(|flow| flow.ring_next == (member.rank + 1) % 2), "{member}");
            assert!(!rank.steps.is_empty(), "{member}");
        }
    }
}

/// The disk is full when a window is wanted: it is opened when there is room, and the recording goes on until then.
#[test]
fn a_window_that_finds_a_full_disk_opens_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::mount(&folder.path().join("disk"), 16);
    if !need("mount", disk.is_ok(), "run it where file systems can be mounted") {
        return;
    }
    let disk = disk.unwrap();
    let output = disk.path().join("out");
    let Some(mut job) = Windowed::start_in(folder, output, 1, "2", &["--level", "api"]) else { return };
    disk.fill().unwrap();
    File::create(&job.flag).unwrap();
    job.wait_for_calls(30);
    let is_window = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("window");
    wait_until("what could not be begun is taken away", Duration::from_secs(10), || {
        !folders(&job.output).any(|entry| is_window(&entry))
    });
    disk.empty().unwrap();
    wait_until("a window is open", Duration::from_secs(30), || {
        folders(&job.output).any(|entry| is_window(&entry))
    });
    thread::sleep(Duration::from_nanos(LATENCY));
    job.wait_for_calls(10);
    fs::remove_file(&job.flag).unwrap();
    progress::wait_for_windows(&job.output, 1);
    let recorder = job.recorder.take().unwrap();
    recorder.signal(Signal::INT).unwrap();
    let (status, said) = recorder.finish().unwrap();
    // `session.json` could not be written in the meantime, or had its turn later.
    assert!(matches!(status.code(), Some(0 | 1)), "{status}: {said}");
    assert!(said.contains("window 1 cannot be opened yet"), "{said}");
    let session = json(&job.output.join("session.json"));
    assert_eq!(session["loss"]["windows_late"], 1, "{session:#}");
    let [window] = &**session["windows"].as_array().unwrap() else { panic!("{said}") };
    let folder = job.output.join(window["folder"].as_str().unwrap());
    whole_session(&folder);
    let seen = recorded(&folder, window["opened_unix_ms"].as_u64().unwrap());
    assert!(seen.len() == 2 && seen.values().all(|calls| calls.len() >= 9), "{seen:?}");
}

#[test]
fn a_window_that_reaches_its_time_closes_while_the_flag_stays() {
    let Some(mut job) = Windowed::start(1, "2", &["--level", "api", "--window-max-secs", "0.3"]) else {
        return;
    };
    File::create(&job.flag).unwrap();
    progress::wait_for_windows(&job.output, 1);
    job.wait_for_calls(10);
    let (session, said) = job.end();
    let [window] = &**session["windows"].as_array().unwrap() else { panic!("{said}") };
    assert_eq!(window["closed_by"], "max_secs");
    let number = |key: &str| window[key].as_u64().unwrap();
    let open = number("closed_monotonic_ns") - number("opened_monotonic_ns");
    assert!((300_000_000..300_000_000 + LATENCY).contains(&open), "{open}");
}

#[test]
fn a_signal_and_the_time_begin_new_windows_where_there_is_always_one() {
    let Some(mut job) = Windowed::start(1, "2", &["--level", "api", "--rotate", "600"]) else { return };
    for number in 1..=3 {
        job.wait_for_calls(5);
        job.recorder.as_ref().unwrap().signal(Signal::USR1).unwrap();
        progress::wait_for_windows(&job.output, number);
    }
    job.wait_for_calls(5);
    let (session, said) = job.end();
    let windows = session["windows"].as_array().unwrap();
    let ends: Vec<&str> = windows.iter().map(|window| window["closed_by"].as_str().unwrap()).collect();
    assert_eq!(ends, ["signal", "signal", "signal", "recording"], "{said}");
    let calls = job.calls();
    for (window, next) in windows.iter().zip(windows.iter().skip(1)) {
        let gap =
            next["opened_monotonic_ns"].as_u64().unwrap() - window["closed_monotonic_ns"].as_u64().unwrap();
        assert!(gap < LATENCY, "{gap}");
        let folder = job.output.join(window["folder"].as_str().unwrap());
        whole_session(&folder);
        let seen = recorded(&folder, window["opened_unix_ms"].as_u64().unwrap());
        for (pid, calls) in &calls {
            let inside = |call: &&Call| {
                call.begin_ns > window["opened_monotonic_ns"].as_u64().unwrap()
                    && call.end_ns < window["closed_monotonic_ns"].as_u64().unwrap()
            };
            let (inside, seen) = (calls.iter().filter(inside).count(), seen.get(pid).map_or(0, Vec::len));
            // One call can lie across each end.
            assert!((inside..=inside + 2).contains(&seen), "{pid}: {inside} {seen}");
        }
    }
}

/// What `du` shows: blocks of files, each once, and of folders. The latest windows first: what is removed, or
/// compressed, between two looks is then counted once at most, and what grows meanwhile not at all.
fn disk_usage(path: &Path) -> u64 {
    fn add(path: &Path, seen: &mut BTreeSet<u64>, sum: &mut u64) {
        let Ok(metadata) = fs::symlink_metadata(path) else { return };
        if seen.insert(metadata.ino()) {
            *sum += metadata.blocks() * 512;
        }
        if let Ok(entries) = fs::read_dir(path) {
            let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            paths.sort();
            paths.iter().rev().for_each(|path| add(path, seen, sum));
        }
    }
    let mut sum = 0;
    add(path, &mut BTreeSet::new(), &mut sum);
    sum
}

/// Windows for ever in a folder that is full: it never takes more than it may, the latest windows are there
/// and whole, the files of lines of older ones are gone first, and what was removed is named.
#[test]
fn a_folder_with_a_limit_keeps_the_latest_windows_and_never_takes_more() {
    // Four to five windows with all that is kept for the open one.
    const LIMIT: u64 = 4 << 20;
    let arguments = ["--rotate", "1", "--max-size", "4M", "--compress", "--strict"];
    let Some(mut job) = Windowed::start(1, "2", &arguments) else { return };
    let begun = Instant::now();
    let (mut most, mut looks) = (0, 0);
    // Until windows have been removed for a while, however long it takes this machine to fill the folder.
    let (more, mut end) = (Duration::from_secs(if is_long() { 100 } else { 6 }), Duration::from_mins(3));
    let is_first = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("window_0001_");
    while begun.elapsed() < end {
        let has_first = fs::read_dir(&job.output).unwrap().flatten().any(|entry| is_first(&entry));
        if begun.elapsed() > Duration::from_secs(3) && !has_first {
            end = end.min(begun.elapsed() + more);
        }
        let mut usage = disk_usage(&job.output);
        if usage > LIMIT {
            // One look takes its time, and can have seen what was never there at once.
            usage = usage.min(disk_usage(&job.output));
        }
        most = most.max(usage);
        looks += 1;
        thread::sleep(Duration::from_millis(5));
    }
    let (session, said) = job.end();
    assert!(most <= LIMIT, "{most} bytes");
    assert!(disk_usage(&job.output) <= LIMIT);
    assert!(looks > 200 && most > LIMIT / 3, "{looks} looks, {most} bytes: nothing was tried");

    let max_size = &session["max_size"];
    let removed: Vec<&str> =
        max_size["folders_removed"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(!removed.is_empty(), "{said}");
    assert_eq!((&max_size["bytes"], &max_size["windows_removed"]), (&LIMIT.into(), &removed.len().into()));
    assert!(session["loss"].as_object().unwrap().values().all(|count| count == 0), "{:#}", session["loss"]);
    for folder in &removed {
        assert!(!job.output.join(folder).exists(), "{folder}");
        assert!(said.contains(&format!("removed to make room (--max-size): {folder}")), "{said}");
    }
    // Together they are all windows, in their order.
    let windows = session["windows"].as_array().unwrap();
    let kept: Vec<&str> = windows.iter().map(|window| window["folder"].as_str().unwrap()).collect();
    let numbers =
        removed.iter().chain(&kept).map(|folder| folder.split('_').nth(1).unwrap().parse::<usize>().unwrap());
    assert!(numbers.eq(1..=removed.len() + kept.len()), "{removed:?} {kept:?}");
    assert!(kept.len() > 1, "{said}");

    let folders = fs::read_dir(&job.output).unwrap().flatten().filter(|entry| entry.path().is_dir());
    assert_eq!(folders.count(), kept.len());
    // Files of lines of older ones are gone, and made again of the recording.
    let has_lines = |folder: &str| !communicators(&job.output.join(folder)).is_empty();
    for window in windows {
        let folder = window["folder"].as_str().unwrap();
        assert!(!has_lines(folder) || window["lines_removed"] == false, "{window:#}");
        // Who has only the window's folder is told the same.
        let own = json(&job.output.join(folder).join("session.json"));
        assert_eq!(own["window"]["lines_removed"], window["lines_removed"], "{own:#}");
        assert_eq!(own["files"]["state"] == "removed", window["lines_removed"] == true, "{own:#}");
    }
    let lines_removed = max_size["lines_removed"].as_u64().unwrap();
    assert_eq!(lines_removed, said.matches("the .jsonl files in").count() as u64, "{said}");
    let without_lines = kept.iter().take_while(|folder| !has_lines(folder)).count();
    // The last one may have been open for a moment only.
    let (last, whole) = kept.split_last().unwrap();
    whole_session(&job.output.join(last));
    for folder in whole.iter().skip(without_lines) {
        assert_window_is_whole(&job.output.join(folder));
    }
    assert!(lines_removed > 0 && without_lines > 0, "{said}");
    for folder in &kept[..without_lines] {
        let made = job.output.with_extension(folder);
        let mut export = Command::new(programs::ncclflow().unwrap());
        export.arg("export").arg(job.output.join(folder)).args(["-f", "jsonl", "-o"]).arg(&made);
        assert!(export.output().unwrap().status.success());
        assert_eq!(Trace::read(&made).unwrap().ranks.len(), 2);
    }
}

/// The sum over the ranks of a session.
fn lines_of_ranks(session: &Value, key: &str) -> u64 {
    session["communicators"].as_array().unwrap().iter().map(|rank| rank[key].as_u64().unwrap()).sum()
}

/// A compressed window: its files, what they hold, and what `summary` reads of them.
fn assert_window_is_whole(folder: &Path) {
    let session = whole_session(folder);
    assert!(session["compressed"]["files"].as_u64().unwrap() >= 4, "{:#}", session["compressed"]);
    let trace = Trace::read(folder).unwrap();
    assert_eq!(trace.ranks.len(), 2);
    for (member, rank) in &trace.ranks {
        assert!(!rank.flows.is_empty() && !rank.steps.is_empty(), "{member}");
    }
    let ranks = || trace.ranks.values();
    let messages = lines_of_ranks(&session, "flowStepsLines");
    assert_eq!(
        lines_of_ranks(&session, "proxyFlowLines"),
        ranks().map(|rank| rank.flows.len() as u64).sum::<u64>()
    );
    assert_eq!(messages, ranks().map(|rank| rank.steps.len() as u64).sum::<u64>());
    let communicators = communicators(folder);
    assert_eq!(communicators.iter().map(|(pid, _)| pid).collect::<BTreeSet<_>>().len(), 2);
    for (_, communicator) in communicators {
        let names = fs::read_dir(communicator).unwrap().flatten();
        let names: Vec<String> = names.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
        let count = |part: &str| names.iter().filter(|name| name.contains(part)).count();
        assert_eq!((count("_rank"), count(".jsonl.gz"), names.len()), (4, 2, 4), "{names:?}");
    }
    let summary =
        Command::new(programs::ncclflow().unwrap()).args(["summary", "--json"]).arg(folder).output().unwrap();
    assert!(summary.status.success(), "{}", String::from_utf8_lossy(&summary.stderr));
    let summary: Value = serde_json::from_slice(&summary.stdout).unwrap();
    let links =
        summary["ranks"].as_array().unwrap().iter().flat_map(|rank| rank["links"].as_array().unwrap());
    assert_eq!(links.map(|link| link["messages"].as_u64().unwrap()).sum::<u64>(), messages);
}

/// A rank that does not join: one dump says so, and a job that is not recorded any more is not dumped again
/// and again.
#[test]
fn a_job_that_hangs_is_dumped_once() {
    let (Some(ncclflow), Some(bed), true) = (programs::ncclflow(), programs::bed(), root()) else {
        return;
    };
    let Some(library) = programs::nccl("2.27.5-cu12") else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out");
    let arguments = ["--mode", "processes", "--absent", "1@3", "--iters", "6", "--timeout", "300"];
    let bed = Bed::start(&bed, &library, folder.path(), &arguments).unwrap();
    let recorder = Recorder::start(&ncclflow, &bed.pid_list(), &output, &["--on-hang", "2"]).unwrap();
    bed.go().unwrap();
    let dumps = || {
        let files = fs::read_dir(&output).unwrap().flatten();
        let is_dump = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("dump_");
        files.map(|file| file.path()).filter(is_dump).collect::<Vec<_>>()
    };
    wait_until("a dump is there", Duration::from_mins(1), || !dumps().is_empty());
    // Twice as long as it takes to be dumped, and no other dump may come.
    thread::sleep(Duration::from_secs(5));
    recorder.signal(Signal::INT).unwrap();
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success() && said.contains("nothing moved for 2 s: stuck"), "{said}");
    let files = dumps();
    let [file] = &*files else { panic!("{files:?}") };
    let verdict = &json(file)["communicators"][0]["verdict"];
    assert_eq!(
        (&verdict["state"], &verdict["culprits"]),
        (&"stuck".into(), &serde_json::json!([1])),
        "{verdict:#}"
    );
}
