//! From the kernel to the files: nothing is lost without being counted, whoever is too slow, and nothing is
//! done when there is nothing to do.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::{
    prelude::*, run_counts::RunCounts, stopped_thread::StoppedThread, thread_sleeps::thread_sleeps,
};

const VERSION: &str = "2.27.5-cu12";

/// Ring all-reduces: each op has two peers on each channel, one to receive from and one to send to.
const RINGS: &str = "--ranks 2 --bytes 65536 --ops allreduce --channels 1";

/// A bed that waits, with a log of its calls. `None` if the machine lacks something.
fn world(workload: &str) -> Option<World> {
    World::start(VERSION, &format!("{CALL_LOG} {workload}"))
}

/// What is summed up of a session.
#[derive(Debug, Default)]
struct Sums {
    hits: u64,
    delivered: u64,
    lost: u64,
    dropped: u64,
}

/// Every account is even: of each probe, of each CPU, of the whole, in the gaps, and by the
/// kernel's own count of runs.
fn assert_accounts(session: &Value, runs: u64) -> Sums {
    let mut sums = Sums::default();
    for probe in list(&session["probes"]) {
        let [hits, delivered, lost, dropped, disarmed] =
            ["hits", "delivered", "lost", "dropped", "disarmed"].map(|key| number(&probe[key]));
        assert_eq!(hits, delivered + lost + dropped + disarmed, "{probe}");
        for cpu in list(&probe["cpus"]) {
            let [hits, delivered, lost, dropped] =
                ["hits", "delivered", "lost", "dropped"].map(|key| number(&cpu[key]));
            assert_eq!(hits, delivered + lost + dropped, "{probe}");
            assert!(lost + dropped > 0, "only CPUs that lost something are named: {probe}");
        }
        let by_cpu = ["lost", "dropped"].map(|key| sum(&probe["cpus"], key));
        assert_eq!(by_cpu, [lost, dropped], "{probe}");
        // Parts are counted record by record; a walk is one run, of the probe itself.
        if probe["part"].is_null() {
            sums.hits += hits;
        }
        sums.delivered += delivered;
        sums.lost += lost;
        sums.dropped += dropped;
    }
    assert_eq!(sums.hits, runs, "as often as the kernel ran the programs");
    let loss = &session["loss"];
    assert_eq!(number(&loss["records_lost"]), sums.lost);
    assert_eq!(number(&loss["records_dropped"]), sums.dropped);
    assert_eq!(number(&loss["records_unaccounted"]), 0);
    assert_eq!(number(&loss["records_undecodable"]), 0);
    assert_eq!(sum(&session["gaps"], "records"), sums.lost + sums.dropped, "{}", session["gaps"]);
    assert_eq!(sum(&session["cpus"], "delivered"), sums.delivered);
    sums
}

/// Ops that do not say that they are incomplete have both peers of their ring; none has a wrong one.
fn assert_incomplete_ops_say_so(out: &Path, session: &Value) {
    let mut whole = 0;
    for rank in list(&session["communicators"]) {
        let file = format!("proxy_flow_rank{}.jsonl", rank["rank"]);
        for line in read_lines(&out.join(text(&rank["folder"])).join(file)) {
            let peers = list(&line["peers"]);
            let of_ring = |peer: &Value| match peer["op"].as_str() {
                Some("RECV") => peer["peer"] == line["ringPrev"],
                _ => peer["peer"] == line["ringNext"],
            };
            assert!(peers.iter().all(of_ring), "{line}");
            if line["incomplete"] == true {
                assert!(peers.len() <= 2, "{line}");
            } else {
                assert!(peers.len() == 2 && peers[0]["op"] != peers[1]["op"], "{line}");
                whole += 1;
            }
        }
    }
    assert!(whole > 0);
}

/// A tracer that does not run for a while: the kernel's buffer fills, and what finds no room is counted
/// there.
fn starve_the_reader(kind: &str) {
    let Some(mut world) = world(&format!("{RINGS} --iters 1500")) else { return };
    let recorder = world.record(&format!("--buffer {kind} --buffer-size 1"));
    let runs = RunCounts::of_process(recorder.pid()).unwrap();
    recorder.signal(Signal::STOP).unwrap();
    world.bed.go().unwrap();
    // How full the kernel's buffer is shows nowhere outside. An all-reduce of both ranks is 3 KB of records, and at most
    // 256 of those that were called are still to come: twice as much as there is room for.
    let counts = [(world.bed.ready.pids[0], 2 * 1000)];
    progress::wait_for_calls_of("ncclAllReduce", &world.path("calls"), &counts);
    recorder.signal(Signal::CONT).unwrap();
    world.bed.end();
    let words = recorder.end().unwrap();
    let session = world.session();
    let sums = assert_accounts(&session, runs.total().unwrap());
    assert!(sums.lost > 0 && sums.dropped == 0, "{sums:?}");
    assert!(words.contains("found the kernel's buffer full"), "{words}");
    assert_eq!(session["buffer"]["kind"], kind);
    assert_incomplete_ops_say_so(&world.out(), &session);
}

#[test]
fn a_reader_that_starves_loses_in_the_ring_buffer_and_counts() {
    starve_the_reader("ring");
}

#[test]
fn a_reader_that_starves_loses_in_the_perf_event_array_and_counts() {
    starve_the_reader("perf");
}

/// A keeper of the recording that does not get on, as on a disk that stalls: the drain goes on, in bounded
/// memory, and counts what it drops.
fn starve_the_writer(kind: &str) {
    // 12 MB of records in all.
    let Some(mut world) = world(&format!("{RINGS} --iters 4000 --interval-ms 4")) else { return };
    let recorder = world.record(&format!("--buffer {kind} --queue-size 8 --strict"));
    let runs = RunCounts::of_process(recorder.pid()).unwrap();
    {
        // Before the first record: the job makes not much more than the queue holds.
        let _stopped = StoppedThread::of_name(recorder.pid(), "ncclflow-keep").unwrap();
        world.bed.go().unwrap();
        // An all-reduce of both ranks is 3 KB of records: these are more than the queue holds.
        let counts = [(world.bed.ready.pids[0], 2 * 3600)];
        progress::wait_for_calls_of("ncclAllReduce", &world.path("calls"), &counts);
    }
    world.bed.end();
    let (status, words) = recorder.finish().unwrap();
    assert_eq!(status.code(), Some(3), "--strict: {words}");
    assert!(words.contains("were dropped"), "{words}");
    let recorded = world.session();
    let sums = assert_accounts(&recorded, runs.total().unwrap());
    assert!(sums.dropped > 0 && sums.lost == 0, "{sums:?}");
    let (peak, bound) = (&recorded["buffer"]["queue_peak_bytes"], &recorded["buffer"]["queue_bytes"]);
    assert!(number(peak) <= number(bound) && number(bound) == 8 << 20, "{}", recorded["buffer"]);
    assert_incomplete_ops_say_so(&world.out(), &recorded);
}

#[test]
fn a_writer_that_starves_does_not_stop_the_drain_of_the_ring_buffer() {
    starve_the_writer("ring");
}

#[test]
fn a_writer_that_starves_does_not_stop_the_drain_of_the_perf_event_array() {
    starve_the_writer("perf");
}

/// How often the threads were woken in about 5 s, and how often they may have been in that time.
fn woken(pid: u32) -> (u64, u64) {
    let (before, begun) = (thread_sleeps(pid).unwrap(), Instant::now());
    thread::sleep(Duration::from_secs(5));
    let after = thread_sleeps(pid).unwrap();
    let seconds = begun.elapsed().as_secs() + 1;
    // One that has ended meanwhile was of the beginning.
    let woken =
        after.iter().map(|(task, count)| count.saturating_sub(before.get(task).copied().unwrap_or(0))).sum();
    // The drain looks every 0.5 s, and the library's file, which is on a local disk, is looked at every 0.35 s.
    (woken, 5 * seconds + 3)
}

/// A job that does nothing costs next to nothing: the tracer is woken at most five times a second. (In CPU
/// time that is as much as the machine needs to wake a thread, which differs a hundredfold between machines.)
#[test]
fn a_tracer_without_records_sleeps() {
    for kind in ["ring", "perf"] {
        let Some(world) = world("--ranks 2") else { return };
        let recorder = world.record(&format!("--buffer {kind} --level steps"));
        thread::sleep(Duration::from_secs(1));
        // What it does at its beginning takes long on a busy machine, and waiting for a page of a file counts, too.
        let mut tries = Vec::new();
        while tries.last().is_none_or(|(woken, most)| woken > most) {
            assert!(tries.len() < 3, "{kind}: woken so often, and may be so often: {tries:?}");
            tries.push(woken(recorder.pid()));
        }
        recorder.interrupt().unwrap();
    }
}
