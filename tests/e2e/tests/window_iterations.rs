//! `record --window-iterations`: the files of a window begin and end with an iteration of the workload, which
//! calls a group of three collectives and pauses.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::prelude::*;

/// What the workload calls in each iteration, in this order.
const STEP: [&str; 3] = ["AllReduce", "AllGather", "ReduceScatter"];

struct Job {
    world: World,
    recorder: Recorder,
}

impl Job {
    /// A job whose iterations go on.
    fn start(options: &str) -> Option<Self> {
        let job = Self::prepare("--iters 1000000 --interval-ms 20", options)?;
        job.world.bed.go().unwrap();
        job.world.wait_for_calls(4);
        Some(job)
    }

    /// A job that waits, and its recording.
    fn prepare(iterations: &str, options: &str) -> Option<Self> {
        let fixed = "--mode processes --ranks 2 --ops allreduce,allgather,reducescatter --group 3 \
            --bytes 4096 --sync --channels 2 --timeout 600";
        let world = World::start("2.27.5-cu12", &format!("{fixed} {CALL_LOG} {iterations}"))?;
        let flag = world.path("flag");
        let recorder = world.record(&format!("--window-flag {} {options}", flag.display()));
        Some(Self { world, recorder })
    }

    /// Of the only window: its folder and its report.
    fn end(self) -> (World, PathBuf, Value) {
        let Self { world, recorder } = self;
        let said = recorder.interrupt().unwrap();
        let report = world.session();
        let [window] = &**list(&report["windows"]) else { panic!("{said}") };
        let path = world.out().join(text(&window["folder"]));
        let own = session(&path);
        assert_eq!(&own["window"], window);
        assert_no_loss(&own);
        (world, path, window.clone())
    }
}

/// The lines of the files of this kind, by process.
fn lines_of(folder: &Path, kind: &str) -> BTreeMap<u32, Vec<Value>> {
    let mut by_pid: BTreeMap<u32, Vec<Value>> = BTreeMap::new();
    for path in exported::names_below(folder) {
        let name = path.file_name().unwrap().to_string_lossy();
        if name.starts_with(&format!("{kind}_rank")) && !name.contains("_pid") {
            for line in read_lines(&folder.join(&path)) {
                by_pid.entry(u32::try_from(number(&line["pid"])).unwrap()).or_default().push(line);
            }
        }
    }
    by_pid
}

/// Numbers of collectives by process, NCCL's own count, which the workload's is, too.
fn numbers(folder: &Path) -> BTreeMap<u32, Vec<u64>> {
    let by_pid = lines_of(folder, "proxy_flow").into_iter().map(|(pid, lines)| {
        let mut numbers: Vec<u64> = lines.iter().map(|line| number(&line["seq"]) >> 1).collect();
        numbers.sort_unstable();
        numbers.dedup();
        (pid, numbers)
    });
    by_pid.collect()
}

fn ops(level: &str, wanted: u64) {
    let options = format!("--level {level} --window-iterations {wanted}");
    let Some(job) = Job::start(&options) else { return };
    job.world.touch("flag");
    progress::wait_for_windows(&job.world.out(), 1);
    job.world.wait_for_calls(6);
    let (world, window, report) = job.end();
    let (pids, iterations) = (&world.bed.ready.pids, &report["iterations"]);
    assert_eq!(
        (&report["closed_by"], &iterations["found"]),
        (&"iterations".into(), &true.into()),
        "{report:#}"
    );
    assert_eq!((&iterations["inferred"], &iterations["period_collectives"]), (&true.into(), &3.into()));
    assert!(number(&iterations["ops_outside"]) > 0);
    let found = numbers(&window);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), *pids);
    let first = found[&pids[0]][0];
    assert_eq!(first % 3, 0, "it begins where the workload's iteration does");
    for (pid, numbers) in &found {
        assert!(numbers.iter().copied().eq(first..first + 3 * wanted), "{pid}: {numbers:?}");
    }
    for process in list(&iterations["processes"]) {
        assert_eq!((&process["iterations"], &process["period_collectives"]), (&wanted.into(), &3.into()));
    }
    // Whoever reads the recording sees the same.
    let made = world.path("exported");
    exported::lines(&window, &made);
    assert_eq!(numbers(&made), found);
    let check = ncclflow_of("check --json", &[window]).json();
    assert_eq!(check["communicators"][0]["collectives"], 3 * wanted, "{check:#}");
}

#[test]
fn a_window_has_as_many_iterations_as_asked_for() {
    ops("flow", 4);
}

#[test]
fn with_messages_too() {
    ops("steps", 2);
}

#[test]
fn iterations_are_found_by_calls() {
    let Some(job) = Job::start("--level api --window-iterations 5") else { return };
    job.world.touch("flag");
    progress::wait_for_windows(&job.world.out(), 1);
    let (world, window, report) = job.end();
    assert_eq!(report["closed_by"], "iterations", "{report:#}");
    let by_pid = lines_of(&window, "api");
    assert_eq!(by_pid.keys().copied().collect::<Vec<_>>(), world.bed.ready.pids);
    for (pid, lines) in by_pid {
        let functions: Vec<&str> = lines.iter().map(|line| text(&line["function"])).collect();
        assert_eq!(functions, STEP.repeat(5), "{pid}");
    }
}

#[test]
fn without_iterations_the_window_is_as_long_as_the_flag() {
    // One iteration alone recurs in nothing, however long the window is.
    let once = "--iters 1 --hold-file /nonexistent/hold";
    let Some(mut job) = Job::prepare(once, "--window-iterations 3") else { return };
    job.world.touch("flag");
    job.recorder.hear("window 1 opened").unwrap();
    job.world.bed.go().unwrap();
    assert!(job.world.bed.wait_for_operations().unwrap().ok);
    fs::remove_file(job.world.path("flag")).unwrap();
    progress::wait_for_windows(&job.world.out(), 1);
    let (world, window, report) = job.end();
    let iterations = &report["iterations"];
    assert_eq!((&report["closed_by"], &iterations["found"]), (&"flag".into(), &false.into()), "{report:#}");
    assert!(text(&iterations["why_not"]).contains("no sequence"), "{iterations:#}");
    assert_eq!(iterations["ops_outside"], 0);
    assert_eq!(numbers(&window).keys().copied().collect::<Vec<_>>(), world.bed.ready.pids);
}
