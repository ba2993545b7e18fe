//! The bed's slow jobs are slow as they are told to be: what `check` says of them is measured by a bench,
//! which takes this for granted.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{os::unix::fs::FileExt as _, thread};

use ncclflow_e2e::harness::{job::VERSIONS, prelude::*};
use rustix::time::{ClockId, clock_gettime};

/// Bytes of a GPU's slot in the file of what GPUs do, and, in 64-bit words, where it has the time in which it
/// computed and the time at which that which it computes will have ended.
const SLOT: u64 = 192;
const COMPUTED: u64 = 17;
const ENDS: u64 = 19;

/// Nanoseconds in which a GPU has computed, and the time.
fn computed(states: &Path, gpu: u64) -> (u64, u64) {
    let file = File::open(states).unwrap();
    let word = |number: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, gpu * SLOT + number * 8).unwrap();
        u64::from_le_bytes(bytes)
    };
    let now = clock_gettime(ClockId::Monotonic);
    let now = u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap();
    let computed = word(COMPUTED);
    let running = if computed & 1 == 1 { now.min(word(ENDS)) } else { 0 };
    ((computed >> 1).wrapping_add(running) & (u64::MAX >> 1), now)
}

/// Percent of a second in which each GPU computed.
fn computing(states: &Path) -> [u64; 3] {
    let begun = [0, 1, 2].map(|gpu| computed(states, gpu));
    thread::sleep(Duration::from_secs(1));
    std::array::from_fn(|gpu| {
        let (done, now) = computed(states, gpu as u64);
        100 * done.saturating_sub(begun[gpu].0) / (now - begun[gpu].1)
    })
}

/// Milliseconds of the iterations of a rank that have begun so far.
fn iterations(job: &World, rank: u32) -> Vec<u64> {
    let text = fs::read_to_string(job.path(&format!("iterations.rank{rank}"))).unwrap();
    let begins: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    begins.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000_000).collect()
}

/// What all ranks' iterations take at least, of the latest three.
fn least(job: &World) -> u64 {
    let latest = |rank| iterations(job, rank).into_iter().rev().take(3);
    (0..3).flat_map(latest).min().unwrap_or(0)
}

#[test]
fn a_gpu_that_computes_longer_and_a_late_host_hold_up_all_ranks() {
    let workload = "--ranks 3 --mode processes --channels 1 --bytes 1024 --iters 1000000 --compute-ms 30 \
        --sync-iterations --env NCCL_SHM_DISABLE=0 --ops allreduce,allreduce --faults {}/faults \
        --iteration-log {}/iterations --gpu-states {}/gpus";
    let Some(job) = World::start("2.27.5-cu12", workload) else { return };
    job.bed.go().unwrap();
    let within = Duration::from_mins(2);
    wait_until("iterations", within, || {
        (0..3).all(|rank| job.path(&format!("iterations.rank{rank}")).exists())
    });
    wait_until("an iteration without a fault", within, || (30..300).contains(&least(&job)));
    let fault = |lines: &str| {
        fs::write(job.path("new"), lines).unwrap();
        fs::rename(job.path("new"), job.path("faults")).unwrap();
    };
    fault("1 gpu 900\n");
    wait_until("a GPU that computes ten times as long", within, || least(&job) >= 300);
    wait_until("the others, which wait for it", within, || {
        let by_gpu = computing(&job.path("gpus"));
        by_gpu[1] >= 70 && by_gpu[0] <= 30 && by_gpu[2] <= 30
    });
    fault("2 host 300\n");
    wait_until("a host that comes late", within, || {
        least(&job) >= 330 && computing(&job.path("gpus")).iter().all(|percent| *percent <= 30)
    });
    fs::remove_file(job.path("faults")).unwrap();
    wait_until("the end of the faults", within, || (30..300).contains(&least(&job)));
}

#[test]
fn stages_send_to_the_next_and_reduce_among_themselves() {
    for version in VERSIONS {
        let workload = "--ranks 4 --mode processes --channels 1 --bytes 4096 --iters 5 --compute-ms 5 \
            --stages 2 --ops sendstage,returnstage,allreduce,allgather";
        let Some(mut job) = World::start(version, workload) else { return };
        job.run();
    }
}

/// Each rank's host has a recording of its own. In truth they have one clock.
#[test]
fn clocks_of_hosts_are_known_by_messages_and_a_late_host_among_them() {
    let workload = "--ranks 3 --mode processes --channels 1 --bytes 65536 --iters 1000000 --compute-ms 30 \
        --sync-iterations --ops allreduce,allreduce --faults {}/faults --gpu-states {}/gpus";
    let Some(job) = World::start("2.28.9-cu13", workload) else { return };
    fs::write(job.path("faults"), "2 host 10\n").unwrap();
    let ncclflow = programs::ncclflow().unwrap();
    let folders = ["a", "b", "c"].map(|name| job.path(name));
    let [double, states] =
        [programs::nvml_double().unwrap(), job.path("gpus")].map(|path| path.display().to_string());
    let environment = [("NCCLFLOW_NVML", &*double), ("NVML_DOUBLE_STATES", &*states)];
    let pids = job.bed.ready.pids.clone();
    let recorders: Vec<Recorder> = pids
        .iter()
        .zip(&folders)
        .map(|(pid, folder)| {
            let options = ["--level", "steps"];
            Recorder::start_in(&ncclflow, &pid.to_string(), folder, &options, &environment).unwrap()
        })
        .collect();
    job.bed.go().unwrap();
    thread::sleep(Duration::from_secs(8));
    for recorder in recorders {
        recorder.interrupt().unwrap();
    }
    let ran = ncclflow_of("check --json", &folders.each_ref().map(PathBuf::as_path));
    let slow = &ran.json()["slow"];
    let clocks = list(&slow["clocks"]);
    assert_eq!(clocks.len(), 2, "{slow:#}");
    for clock in clocks {
        let [ahead_ms, error_ms] = ["aheadMs", "errorMs"].map(|key| clock[key].as_f64().unwrap());
        assert!(ahead_ms.abs() <= error_ms && error_ms < 2.0, "{clock}");
    }
    assert_eq!((&slow["kind"], &slow["ranks"]), (&json!("host"), &json!([2])), "{slow:#}");
    let mut evidence = list(&slow["evidence"]).iter().map(text);
    assert!(evidence.any(|line| line.contains("it launches last")), "{slow:#}");
}
