//! Processor time of the threads that launch: of one that waits for its peer, and of one whose processor another
//! program takes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use flow::{recording::Event, schema::LaunchThreadRow};
use ncclflow_e2e::{harness::prelude::*, truth::call_log};
use recording::{
    format::{FOLDER, Item, Progress, RecordingReader, Selection},
    sinks::OutputDir,
};
use rustix::{
    process::{Pid, setpriority_process},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// Time for which the processor is taken away.
const TAKEN: Duration = Duration::from_secs(6);

/// Where a thread may run, and how nice it is; 0: this thread.
fn place(thread: u32, cpus: &CpuSet, nice: i32) {
    let thread = i32::try_from(thread).ok().and_then(Pid::from_raw);
    sched_setaffinity(thread, cpus).unwrap();
    setpriority_process(thread, nice).unwrap();
}

fn read(output: &Path) -> Vec<LaunchThreadRow> {
    let mut reader = RecordingReader::open(OutputDir::open(&output.join(FOLDER)).unwrap()).unwrap();
    let mut found = Vec::new();
    let mut take = |item: Item<'_>| {
        if let Item::Event(Event::LaunchThreads { rows }) = item {
            found.extend(rows);
        }
    };
    while reader.read_next(&Selection::ALL, &mut take).unwrap() == Progress::Read {}
    found
}

/// Clock ticks for which the first thread of a process has run.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_thread_that_gets_no_processor_waits_and_one_that_waits_for_it_sleeps() {
    if !root() {
        return;
    }
    let workload = "--mode processes --iters 1000000 --sync --busy 1@50";
    let Some(world) = World::start("2.28.9-cu13", workload) else { return };
    let recorder = world.record("");
    let [sleeps, starves] = *world.bed.ready.pids else { panic!("two ranks") };
    world.bed.go().unwrap();
    // After its fiftieth operation the second rank computes.
    wait_until("the second rank computes", Duration::from_mins(2), || ticks(starves) > 150 + ticks(sleeps));

    let all = sched_getaffinity(None).unwrap();
    let cpu = (0..CpuSet::MAX_CPU).rev().find(|cpu| all.is_set(*cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(cpu);
    let is_over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_over);
    // A thread of this process takes the one processor that the rank may use: 68 times as much by their weights.
    let taker = thread::spawn(move || {
        place(0, &one, 0);
        while !told.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    place(starves, &one, 19);
    let begin = call_log::now_ns();
    thread::sleep(TAKEN);
    let end = call_log::now_ns();
    is_over.store(true, Ordering::Relaxed);
    taker.join().unwrap();
    recorder.interrupt().unwrap();

    let rows = read(&world.out());
    let share = |pid: u32, of: fn(&LaunchThreadRow) -> u64| {
        let within =
            |row: &&LaunchThreadRow| row.pid == pid && row.ts_ns - row.period_ns >= begin && row.ts_ns <= end;
        let own: Vec<&LaunchThreadRow> = rows.iter().filter(within).collect();
        assert!(own.len() >= 2 && own.iter().all(|row| row.tid == pid), "{pid}: {rows:?}");
        let period: u64 = own.iter().map(|row| row.period_ns).sum();
        own.iter().map(|row| of(row)).sum::<u64>() * 100 / period
    };
    let (ran, waited) = (share(starves, |row| row.ran_ns), share(starves, |row| row.waited_ns));
    assert!(ran < 20 && waited > 60, "{ran} % ran, {waited} % waited: {rows:?}");
    let awake = share(sleeps, |row| row.ran_ns + row.waited_ns);
    assert!(awake < 20, "{awake} % not asleep: {rows:?}");
    let known: BTreeSet<u32> = rows.iter().map(|row| row.pid).collect();
    assert_eq!(known, BTreeSet::from([sleeps, starves]));
}
