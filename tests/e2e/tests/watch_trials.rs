//! `ncclflow watch` where it gets no processor, no disk, no answer, or no rest: it goes on, says what it lost, and that it
//! does not see all.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt as _;

use ncclflow_e2e::harness::{cgroup::Cgroup, disk::Disk, job::Shape, prelude::*, scrape, watcher::Watcher};
use rustix::process::{Pid, kill_process};

const VERSION: &str = "2.27.5-cu12";
const RANKS: Shape = Shape { ranks: 4, processes: true, tree: false };

fn working(more: &str) -> Option<World> {
    World::going(VERSION, RANKS, &format!("--iters 1000000 --interval-ms 20 --bytes 4096 {more}")).unwrap()
}

fn watch(world: &World, options: &str) -> Watcher {
    Watcher::start(&world.ncclflow, &format!("-p {} {options}", world.bed.pid_list())).unwrap()
}

fn has_notice(watcher: &Watcher, words: &str) -> bool {
    let says = |event: &Value| event["event"] == "notice" && text(&event["sentence"]).contains(words);
    watcher.events().iter().any(says)
}

/// With a hundredth of a processor it reads on.
#[test]
fn a_watch_with_a_hundredth_of_a_processor_reads_on() {
    let Some(world) = working("") else { return };
    let watcher = watch(&world, "--metrics 0");
    let address = watcher.metrics_address().unwrap();
    let readings = || {
        let text = scrape::fetch(&address).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("ncclflow_watch_readings_total "));
        line.and_then(|count| count.parse::<f64>().ok()).unwrap()
    };
    let (each, period) = (Duration::from_millis(10), Duration::from_secs(1));
    let Some(_limit) = Cgroup::limit(watcher.pid(), each, period) else { return };
    let before = readings();
    wait_until("ten readings", Duration::from_mins(2), || readings() >= before + 10.0);
}

/// It is stopped again and again: it says that its readings are late, and, later, that it sees all again.
#[test]
fn a_watch_that_gets_no_processor_says_so_and_recovers() {
    let Some(world) = working("") else { return };
    let watcher = watch(&world, "");
    let pid = Pid::from_raw(i32::try_from(watcher.pid()).unwrap()).unwrap();
    let is_blind = || watcher.events().iter().any(|event| event["kind"] == "blind");
    for _ in 0..10 {
        if is_blind() {
            break;
        }
        kill_process(pid, Signal::STOP).unwrap();
        thread::sleep(Duration::from_secs(6));
        kill_process(pid, Signal::CONT).unwrap();
        thread::sleep(Duration::from_millis(500));
    }
    let begins = watcher.hear("begin", "blind").unwrap();
    assert!(text(&begins["sentence"]).contains("gets too little of the processor"), "{begins:#}");
    assert_eq!(begins["job"], Value::Null);
    let ends = watcher.hear("end", "blind").unwrap();
    assert_eq!(ends["alert"], begins["alert"]);
    assert!(watcher.terminate().unwrap().success());
}

/// A driver that hangs.
#[test]
fn a_driver_that_hangs_is_an_alert_and_hangs_are_seen_all_the_same() {
    let (Some(double), Some(world)) = (programs::nvml_double(), working("--stall 1={}/stall")) else {
        return;
    };
    let variables = [("NCCLFLOW_NVML", double.display().to_string()), ("NVML_DOUBLE_HANGS", "1".to_owned())];
    let variables = variables.map(|(name, value)| (name.to_owned(), value));
    let words = format!("-p {}", world.bed.pid_list());
    let watcher = Watcher::start_with(&world.ncclflow, &words, &variables).unwrap();
    world.stall();
    let begins = watcher.hear("begin", "blind").unwrap();
    assert!(text(&begins["sentence"]).contains("the GPUs' driver does not answer"), "{begins:#}");
    let begins = watcher.hear("begin", "hang").unwrap();
    assert_eq!(begins["culprits"][0]["rank"], 1, "{begins:#}");
}

/// The disk for dumps is full: the alert comes without its dump, and the loss is said.
#[test]
fn a_full_disk_costs_the_dump_and_not_the_alert() {
    let Some(world) = working("--stall 1={}/stall") else { return };
    let disk = Disk::mount_kib(&world.path("dumps"), 256).unwrap();
    let watcher = watch(&world, &format!("--dump-to {}", disk.path().display()));
    disk.fill().unwrap();
    world.stall();
    let begins = watcher.hear("begin", "hang").unwrap();
    assert_eq!(begins["culprits"][0]["rank"], 1, "{begins:#}");
    assert_eq!(begins.get("dump"), None, "{begins:#}");
    wait_until("the loss is said", Duration::from_mins(1), || has_notice(&watcher, "keeping a dump in"));
    disk.empty().unwrap();
    fs::remove_file(world.path("stall")).unwrap();
    watcher.hear("end", "hang").unwrap();
    assert!(watcher.terminate().unwrap().success());
}

/// Thousands of processes come and go beside the job, and its hang is seen.
#[test]
fn processes_that_come_and_go_keep_it_from_nothing() {
    let count = if is_long() { 10_000 } else { 2_000 };
    let Some(world) = working("--stall 2={}/stall") else { return };
    let watcher = Watcher::start(&world.ncclflow, "--all").unwrap();
    let mut left = count;
    while left > 0 {
        let mut some: Vec<Killed> = (0..50.min(left))
            .map(|_| Killed(Command::new("sleep").arg("0.2").stdin(Stdio::null()).spawn().unwrap()))
            .collect();
        left -= some.len();
        if left < count / 2 && !world.path("stall").exists() {
            world.stall();
        }
        for one in &mut some {
            one.0.wait().unwrap();
        }
    }
    let is_ours = |event: &Value| {
        event["event"] == "begin"
            && event["kind"] == "hang"
            && list(&event["job"]["pids"]).iter().any(|pid| *pid == world.bed.ready.pids[2])
    };
    wait_until("the hang is seen", Duration::from_mins(3), || watcher.events().iter().any(is_ours));
    let event = watcher.events().into_iter().find(is_ours).unwrap();
    assert_eq!(event["culprits"][0]["pid"], world.bed.ready.pids[2], "{event:#}");
}

/// It is killed and started again while a job hangs: it knows the job, and says it again.
#[test]
fn one_that_was_killed_knows_the_job_again() {
    let Some(world) = working("--stall 1={}/stall") else { return };
    let first = watch(&world, "");
    world.stall();
    first.hear("begin", "hang").unwrap();
    drop(first);
    let begun = Instant::now();
    let second = Watcher::start(&world.ncclflow, "--all --metrics 0").unwrap();
    let address = second.metrics_address().unwrap();
    let of_rank = format!("pid=\"{}\"", world.bed.ready.pids[1]);
    wait_until("it knows the job", Duration::from_secs(10), || {
        scrape::fetch(&address).is_ok_and(|text| text.contains(&of_rank))
    });
    println!("it knows the job again after {:?}", begun.elapsed());
    // Other jobs of this host may hang.
    let is_ours = |event: &Value| event["culprits"][0]["pid"] == world.bed.ready.pids[1];
    wait_until("it says it again", Duration::from_mins(3), || {
        second.events().iter().any(|event| event["kind"] == "hang" && is_ours(event))
    });
}

/// A job that starts beside a watch with nothing to do is known within seconds.
#[test]
fn a_new_job_is_known_soon() {
    let Some(ncclflow) = programs::tracer() else { return };
    let watcher = Watcher::start(&ncclflow, "--all --metrics 0").unwrap();
    let address = watcher.metrics_address().unwrap();
    thread::sleep(Duration::from_secs(12));
    let Some(world) = working("") else { return };
    let begun = Instant::now();
    let of_rank = format!("pid=\"{}\"", world.bed.ready.pids[1]);
    wait_until("it knows the job", Duration::from_secs(30), || {
        scrape::fetch(&address).is_ok_and(|text| text.contains(&of_rank))
    });
    println!("a new job is known {:?} after it works", begun.elapsed());
}

/// A rank never comes to a set-up: it is named, as `dump` names it.
#[test]
fn a_set_up_that_hangs_alerts_with_the_rank_that_stays_out() {
    for (version, workload) in [
        ("2.21.5-cu12", "--stays-out 3@0"),
        ("2.32.3-cu12", "--comms 2 --stays-out 3@1 --env NCCL_RAS_ENABLE=1"),
    ] {
        let Some(world) = World::going(version, RANKS, workload).unwrap() else { return };
        let watcher = watch(&world, "");
        let begins = watcher.hear("begin", "hang").unwrap();
        assert_eq!(begins["verdict"], "settingUp", "{version}: {begins:#}");
        assert_eq!(begins["culprits"][0]["rank"], 3, "{version}: {begins:#}");
        assert_eq!(list(&begins["culprits"]).len(), 1, "{version}: {begins:#}");
    }
}

/// `--level` records beside the watch, and the recording ends with it.
#[test]
fn with_a_level_it_also_records_and_without_one_it_does_not() {
    let Some(world) = working("") else { return };
    let out = world.path("flows");
    let watcher = watch(&world, &format!("--level flow --rotate 5 -o {}", out.display()));
    let is_recorded = || fs::read_dir(&out).is_ok_and(|entries| entries.count() > 0);
    wait_until("it records", Duration::from_mins(2), || {
        is_recorded() && watcher.said().contains("probes; Ctrl-C")
    });
    World::work();
    assert!(watcher.terminate().unwrap().success());
    let windows: Vec<PathBuf> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("session.json").exists())
        .collect();
    assert!(!windows.is_empty(), "{out:?}");
    let ranks: usize =
        windows.iter().map(|window| list(&session(window)["communicators"]).len()).max().unwrap();
    assert_eq!(ranks, 4);
}

/// A port of a network adapter goes down under a job with a rank on another host: here, one that is not watched.
#[test]
fn a_link_that_goes_down_is_an_error_and_one_that_comes_up_ends_it() {
    let Some(world) = working("") else { return };
    let port = world.path("class/infiniband/mlx5_0/ports/1");
    fs::create_dir_all(&port).unwrap();
    let set = |state: &str| fs::write(port.join("state"), state).unwrap();
    set("4: ACTIVE\n");
    // It sees this folder in the place of the kernel's.
    let program = world.path("in-a-namespace");
    let script = format!(
        "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind {} /sys/class && exec {} \"$@\"' sh \"$@\"\n",
        world.path("class").display(),
        world.ncclflow.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let pids: Vec<String> = world.bed.ready.pids.iter().take(3).map(u32::to_string).collect();
    let watcher = Watcher::start(&program, &format!("-p {}", pids.join(","))).unwrap();
    World::work();
    thread::sleep(Duration::from_secs(5));
    set("1: DOWN\n");
    let begins = watcher.hear("begin", "error").unwrap();
    assert!(
        text(&begins["sentence"]).contains("mlx5_0:1 of a network adapter of this host is DOWN"),
        "{begins:#}"
    );
    assert_eq!(begins["culprits"], json!([]));
    set("4: ACTIVE\n");
    watcher.hear("end", "error").unwrap();
}

/// A GPU computes longer than its peers, by the counters that NVML has of it.
#[test]
fn a_slow_gpu_is_named() {
    let Some(double) = programs::nvml_double() else { return };
    let words = "--iters 1000000000 --bytes 4096 --compute-ms 60 --sync-iterations --faults {}/faults --gpu-states {}/gpus";
    let Some(world) = World::going(VERSION, RANKS, words).unwrap() else { return };
    let variables = [("NCCLFLOW_NVML", double), ("NVML_DOUBLE_STATES", world.path("gpus"))];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.display().to_string()));
    let words = format!("-p {}", world.bed.pid_list());
    let watcher = Watcher::start_with(&world.ncclflow, &words, &variables).unwrap();
    fs::write(world.path("faults.new"), "2 gpu 40\n").unwrap();
    fs::rename(world.path("faults.new"), world.path("faults")).unwrap();
    let begins = watcher.hear("begin", "slow").unwrap();
    assert_eq!(begins["culprits"][0]["pid"], world.bed.ready.pids[2], "{begins:#}");
    assert_eq!(list(&begins["culprits"]).len(), 1, "{begins:#}");
    assert!(
        text(&begins["sentence"]).contains("computes longer than those of ranks with equal work"),
        "{begins:#}"
    );
    fs::write(world.path("faults"), "").unwrap();
    watcher.hear("end", "slow").unwrap();
}

/// A job that had many iterations a second has one in five: each is no hang, and the rank that sleeps is named.
#[test]
fn a_job_that_crawls_is_slower_and_the_rank_that_it_waits_for_is_named() {
    let words = "--iters 1000000000 --bytes 4096 --compute-ms 20 --sync-iterations --faults {}/faults";
    let Some(world) = World::going(VERSION, RANKS, words).unwrap() else { return };
    let watcher = watch(&world, "");
    // Two minutes tell what is usual; a moment of a busy machine is none.
    thread::sleep(Duration::from_secs(150));
    fs::write(world.path("faults.new"), "1 host 5000\n").unwrap();
    fs::rename(world.path("faults.new"), world.path("faults")).unwrap();
    let begins = watcher.hear("begin", "slower").unwrap();
    assert_eq!(begins["culprits"][0]["pid"], world.bed.ready.pids[1], "{begins:#}");
    assert_eq!(list(&begins["culprits"]).len(), 1, "{begins:#}");
    assert!(text(&begins["sentence"]).contains("times as long as before"), "{begins:#}");
    let (begun, _) = watcher.begun_and_ended();
    let others: Vec<&Value> = begun.iter().filter(|event| event["kind"] == "hang").collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// Threads of the watch die: without the one that takes dumps another one does; without the one that finds jobs it ends,
/// for its service to start it again.
#[test]
fn a_thread_that_dies_is_replaced_or_ends_the_watch() {
    let Some(world) = working("--stall 1={}/stall") else { return };
    let words = format!("--no-gpus -p {}", world.bed.pid_list());
    let fault = |what: &str| [("NCCLFLOW_FAULT".to_owned(), what.to_owned())];
    let watcher = Watcher::start_with(&world.ncclflow, &words, &fault("watch-dump:panic")).unwrap();
    world.stall();
    let begins = watcher.hear("begin", "hang").unwrap();
    assert_eq!(begins["culprits"][0]["rank"], 1, "{begins:#}");
    assert!(begins["verdict"].is_string(), "a dump has told: {begins:#}");
    assert!(has_notice(&watcher, "a dump does not come back"), "{:#?}", watcher.events());
    let watcher = Watcher::start_with(&world.ncclflow, &words, &fault("watch-find:panic:2")).unwrap();
    let ended = "the thread `ncclflow-find` has ended";
    wait_until("it ends", Duration::from_mins(1), || watcher.said().contains(ended));
    assert_eq!(watcher.ended().unwrap().code(), Some(1));
}
