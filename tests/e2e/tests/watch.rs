//! `ncclflow watch`: a hang alerts once with the right culprit and ends once, and nothing is placed in the job.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt as _;

use ncclflow_e2e::harness::{job::Shape, kernel_objects, prelude::*, scrape, watcher::Watcher};

const SHAPE: Shape = Shape { ranks: 4, processes: true, tree: false };

/// A job that works until it is told to hang.
fn working(version: &str, workload: &str) -> Option<World> {
    World::going(version, SHAPE, &format!("--iters 1000000 --interval-ms 20 --bytes 4096 {workload}"))
        .unwrap()
}

fn watch(world: &World, options: &str) -> Watcher {
    let words = format!("-p {} {options}", world.bed.pid_list());
    Watcher::start(&world.ncclflow, &words).unwrap()
}

/// Alerts on jobs that began. On a machine that is too busy, ncclflow says that it does not see all.
fn begun(watcher: &Watcher) -> Vec<Value> {
    let begins = |event: &Value| event["event"] == "begin" && event["kind"] != "blind";
    watcher.events().into_iter().filter(begins).collect()
}

/// A process that was ever hit by a uprobe has the kernel's page for it.
#[track_caller]
fn assert_unprobed(world: &World, watcher: &Watcher) {
    assert_eq!(kernel_objects::of_process(watcher.pid()).unwrap(), kernel_objects::KernelObjects::default());
    for pid in &world.bed.ready.pids {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        assert!(!maps.contains("[uprobes]"), "{pid}");
    }
}

/// A rank stalls: one alert names it, with a dump; it goes on, and the alert ends.
#[test]
fn a_hang_alerts_once_with_its_culprit_and_ends_once() {
    for version in ["2.27.5-cu12", "2.21.5-cu12"] {
        let Some(world) = working(version, "--stall 1={}/stall") else { return };
        let dumps = world.path("dumps");
        // An older dump makes room for the one of the alert.
        fs::create_dir_all(dumps.join("alert-0000000000001-hang")).unwrap();
        let watcher = watch(&world, &format!("--dump-to {} --max-dumps 1", dumps.display()));
        world.stall();
        let begins = watcher.hear("begin", "hang").unwrap();
        assert_eq!(begins["culprits"][0]["rank"], 1, "{begins:#}");
        assert_eq!(begins["culprits"][0]["pid"], world.bed.ready.pids[1], "{begins:#}");
        assert_eq!(begins["culprits"].as_array().unwrap().len(), 1, "{begins:#}");
        let dump = PathBuf::from(begins["dump"].as_str().unwrap());
        assert_eq!(read_json(&dump.join("dump.json"))["job"]["state"], "stuck");
        assert!(fs::read_to_string(dump.join("dump.txt")).unwrap().contains("waits for rank 1"));
        assert_eq!(fs::read_dir(&dumps).unwrap().count(), 1, "--max-dumps 1");
        thread::sleep(Duration::from_secs(20));
        assert_eq!(begun(&watcher).len(), 1, "{:#?}", watcher.events());
        fs::remove_file(world.path("stall")).unwrap();
        let ends = watcher.hear("end", "hang").unwrap();
        assert_eq!((&ends["alert"], begun(&watcher).len()), (&begins["alert"], 1));
        assert_unprobed(&world, &watcher);
        assert!(watcher.terminate().unwrap().success());
    }
}

/// A rank is killed: `gone`, and a program is told, which hangs and is killed.
#[test]
fn a_killed_rank_is_gone_and_a_program_that_hangs_is_killed() {
    let Some(world) = working("2.27.5-cu12", "--survive") else { return };
    let (program, told) = (world.path("alert"), world.path("told"));
    let script =
        format!("#!/bin/sh\ncat > {0}.new; echo $$ > {0}.pid; mv {0}.new {0}\nsleep 600\n", told.display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let watcher = watch(&world, &format!("--exec {} --exec-timeout 2", program.display()));
    World::work();
    world.signal(2, Signal::KILL).unwrap();
    let begins = watcher.hear("begin", "gone").unwrap();
    assert_eq!(begins["culprits"][0]["rank"], 2, "{begins:#}");
    wait_until("the program is told", Duration::from_mins(1), || told.exists());
    assert_eq!(read_json(&told), begins);
    wait_until("the program is killed", Duration::from_mins(1), || {
        let notice =
            |event: &Value| event["event"] == "notice" && text(&event["sentence"]).contains("was killed");
        watcher.events().iter().any(notice)
    });
    let pid = fs::read_to_string(told.with_extension("pid")).unwrap();
    // It was sent the signal before this was said; on a busy machine it ends a little later.
    let program = Path::new("/proc").join(pid.trim()).join("exe");
    wait_until("the program has ended", Duration::from_secs(10), || !program.exists());
    assert_eq!(begun(&watcher).len(), 1, "{:#?}", watcher.events());
    drop(world);
    watcher.hear("end", "gone").unwrap();
    // All processes of -p have ended.
    wait_until("it ends by itself", Duration::from_mins(1), || {
        !Path::new("/proc").join(watcher.pid().to_string()).join("exe").exists()
    });
}

/// Jobs that come and go beside `watch --all` are seen, and no alert is made of them.
#[test]
fn busy_jobs_are_counted_and_are_no_alert() {
    let Some(ncclflow) = programs::tracer() else { return };
    if !scrape::can_parse() {
        return;
    }
    let watcher = Watcher::start(&ncclflow, "--all --metrics 0 --hang-after 5").unwrap();
    let address = watcher.metrics_address().unwrap();
    let samples = || scrape::parse(&scrape::fetch(&address).unwrap()).unwrap();
    let Some(mut world) =
        World::start("2.27.5-cu12", "--mode processes --ranks 4 --comms 3 --iters 300 --interval-ms 50")
    else {
        return;
    };
    world.bed.go().unwrap();
    let hash = format!("0x{}", world.bed.ready.comm_hash);
    let counted = |name: &str| scrape::count(&samples(), name, &[("comm", &hash), ("rank", "3")]);
    wait_until("its collectives are counted", Duration::from_mins(2), || {
        counted("ncclflow_watch_collectives_total") > 10
    });
    let jobs: BTreeSet<String> = samples()
        .iter()
        .filter(|sample| sample.labels.get("comm") == Some(&hash))
        .filter_map(|sample| sample.labels.get("job").cloned())
        .collect();
    assert_eq!(jobs.len(), 1, "its three communicators are one job: {jobs:?}");
    world.bed.end();
    let pids = world.bed.ready.pids.clone();
    drop(world);
    wait_until("it is gone", Duration::from_mins(1), || {
        !samples().iter().any(|sample| sample.labels.get("comm") == Some(&hash))
    });
    // Other jobs of this host may hang.
    let is_of_job = |alert: &Value| {
        let all = alert["job"]["pids"].as_array().into_iter().flatten();
        all.filter_map(Value::as_u64).any(|pid| pids.iter().any(|own| u64::from(*own) == pid))
    };
    let alerts: Vec<Value> = begun(&watcher).into_iter().filter(is_of_job).collect();
    assert_eq!(alerts, Vec::<Value>::new());
    assert!(watcher.terminate().unwrap().success());
}
