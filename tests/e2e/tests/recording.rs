//! `DIR/recording/`: whole blocks after a SIGKILL, one recording for each window, and of all processes of the node. That an
//! export of it makes the same files is checked after every traced run of the other tests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::{
    harness::{prelude::*, recording_events::events},
    truth::call_log::now_ns,
};

/// A job that calls all-reduce for a long time.
fn world(workload: &str) -> Option<World> {
    World::start("2.27.5-cu12", &format!("--ranks 2 --bytes 4096 --timeout 300 {workload}"))
}

fn count_ops(folder: &Path) -> usize {
    let files = exported::files_below(folder).into_iter();
    let ops = files.filter(|(name, _)| name.to_string_lossy().contains("proxy_flow"));
    ops.map(|(_, text)| String::from_utf8_lossy(&text).lines().count()).sum()
}

/// The ops of rank 0.
fn ops(folder: &Path) -> Vec<Value> {
    let mut names = exported::names_below(folder).into_iter();
    let name = names.find(|name| name.to_string_lossy().contains("proxy_flow_rank0")).unwrap();
    read_lines(&folder.join(name))
}

/// Folders of windows.
fn windows(out: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(out).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_dir()).collect()
}

/// Whether so much is in a window, which may still be open, that its files say something.
fn is_full(window: &Path) -> bool {
    session_so_far(window)["recording"]["records"].as_u64().is_some_and(|records| records > 100)
}

#[test]
fn a_killed_recording_has_whole_blocks_and_says_that_it_has_no_end() {
    let Some(world) = world("--iters 1000000 --interval-ms 1 --sync") else { return };
    let recorder = world.record("");
    world.bed.go().unwrap();
    progress::wait_for_blocks(&world.out(), 3);
    let killed_ns = now_ns();
    recorder.signal(Signal::KILL).unwrap();
    recorder.finish().unwrap();
    let again = world.path("again");
    let said = ncclflow_of("export -f jsonl -o", &[&again, &world.out()]).ok().stdout;
    assert!(said.contains("the recording is incomplete") && !said.contains("damaged"), "{said}");
    let ops = ops(&again);
    let time = |op: Option<&Value>| number(&op.unwrap()["ts_ns"]);
    let (first, last) = (time(ops.first()), time(ops.last()));
    assert!(last <= killed_ns && last + 2_500_000_000 > killed_ns, "{first}..{last} of ..{killed_ns}");
    assert!(first + 100_000_000 < last, "of some blocks: {first}..{last}");
    // Once it is silent for long enough.
    thread::sleep(Duration::from_secs(6).saturating_sub(Duration::from_nanos(now_ns() - killed_ns)));
    let table = ncclflow_of("top --once --json --recording", &[&world.out()]).ok();
    let top: Value = serde_json::from_str(&table.stdout).unwrap();
    assert!(list(&top["ranks"]).iter().any(|rank| rank["opsPerSecond"].as_f64() > Some(0.0)), "{top:#}");
}

#[test]
fn each_window_has_its_own_recording() {
    let Some(world) = world("--iters 1000000 --interval-ms 1 --sync") else { return };
    let out = world.out();
    let recorder = world.record("--rotate 1");
    world.bed.go().unwrap();
    // How much comes in the second of a window, the machine decides.
    wait_until("two of three windows have records", Duration::from_mins(2), || {
        let windows = windows(&out);
        windows.len() >= 3 && windows.iter().filter(|window| is_full(window)).count() >= 2
    });
    let said = recorder.interrupt().unwrap();
    let report = world.session();
    let windows = list(&report["windows"]);
    assert!(windows.len() >= 3, "{said}");
    let mut full = 0;
    for window in windows {
        let window = out.join(text(&window["folder"]));
        let kept = &session(&window)["recording"];
        assert_eq!(kept["lost"], 0, "{kept}");
        let again = window.join("again");
        exported::lines(&window, &again);
        let again = exported::files_below(&again);
        if is_full(&window) {
            assert!(again.len() >= 5);
            full += 1;
        }
        for (name, content) in again {
            assert!(fs::read(window.join(&name)).unwrap() == content, "{} differs", name.display());
        }
    }
    assert!(full >= 2, "{report:#}");
}

#[test]
fn processes_of_the_node_have_their_ends_in_the_recording() {
    let Some(mut world) = world("--iters 200 --mode processes") else { return };
    let mut recorder = Recorder::of_node(&world.out(), "--comm ncclflow-bed").unwrap();
    // Where there is much to look at, it begins before it has seen all processes.
    let pids = world.bed.ready.pids.clone();
    for pid in &pids {
        recorder.hear(&format!("{pid} (ncclflow-bed)")).unwrap();
    }
    world.run();
    for pid in &pids {
        recorder.hear(&format!("process {pid} exited")).unwrap();
    }
    recorder.interrupt().unwrap();
    let events = events(&world.out().join("recording"));
    let ended = events.iter().filter(|event| event["event"] == "process_ended");
    let ended: BTreeSet<u64> = ended.map(|event| number(&event["tgid"])).collect();
    assert!(pids.iter().all(|pid| ended.contains(&(*pid).into())), "{pids:?}: {events:#?}");
    world.check_export();
    assert!(count_ops(&world.out()) > 0);
}
