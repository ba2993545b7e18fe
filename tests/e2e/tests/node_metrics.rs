//! The metrics of a whole node: `record --all --metrics`, with several jobs, jobs that begin later, and
//! windows. The truth is each job's own log of its calls.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::{
    harness::{
        prelude::*,
        scrape::{self, Sample},
    },
    truth::call_log,
};

/// On a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_mins(1);

/// A job of the node.
struct Kind {
    version: &'static str,
    mode: &'static str,
    ranks: u32,
    iterations: u64,
    bytes: u64,
    /// As the bed and as NCCL call them.
    ops: &'static [(&'static str, &'static str)],
}

const KINDS: [Kind; 4] = [
    Kind {
        version: "2.21.5-cu12",
        mode: "processes",
        ranks: 2,
        iterations: 4,
        bytes: 8192,
        ops: &[("allreduce", "AllReduce"), ("reducescatter", "ReduceScatter")],
    },
    Kind {
        version: "2.28.9-cu13",
        mode: "threads",
        ranks: 3,
        iterations: 5,
        bytes: 65536,
        ops: &[("allreduce", "AllReduce"), ("allgather", "AllGather")],
    },
    Kind {
        version: "2.32.3-cu12",
        mode: "processes",
        ranks: 2,
        iterations: 6,
        bytes: 4096,
        ops: &[("broadcast", "Broadcast")],
    },
    // This one begins when the recording has begun.
    Kind {
        version: "2.27.5-cu12",
        mode: "processes",
        ranks: 2,
        iterations: 7,
        bytes: 16384,
        ops: &[("allreduce", "AllReduce"), ("reduce", "Reduce")],
    },
];

impl Kind {
    /// Its communicators are up, and it waits.
    fn start(&self, program: &Path, library: &Path, folder: &Path) -> Bed {
        let Self { mode, ranks, iterations, bytes, ops, .. } = self;
        let ops = ops.iter().map(|(ours, _)| *ours).collect::<Vec<_>>().join(",");
        let sizes = format!("--ranks {ranks} --iters {iterations} --bytes {bytes}");
        let fixed = "--hold-file {}/hold --channels 1 --sync";
        let workload = format!("--mode {mode} {sizes} --ops {ops} {CALL_LOG} {fixed}");
        Bed::of_words(program, library, folder, &workload).unwrap()
    }

    /// Its calls are seen one by one as ops, and not a plan at a time.
    fn waits_for_next(&self, level: &str) -> bool {
        level != "api" && self.version.starts_with("2.21")
    }

    /// Calls of all its ranks.
    fn calls(&self) -> u64 {
        u64::from(self.ranks) * self.iterations * self.ops.len() as u64
    }

    /// While it rests.
    fn counted(&self, level: &str) -> u64 {
        let of_rank = self.iterations * self.ops.len() as u64 - u64::from(self.waits_for_next(level));
        u64::from(self.ranks) * of_rank
    }
}

fn samples(address: &str) -> Vec<Sample> {
    scrape::parse(&scrape::fetch(address).unwrap()).unwrap()
}

/// The first scrape that is as is wanted; or, if that does not come about, the last one.
fn scrape_until(address: &str, is_as_wanted: impl Fn(&[Sample]) -> bool) -> Vec<Sample> {
    let mut last = Vec::new();
    let _it_came_about = eventually(Duration::from_mins(2), || {
        last = samples(address);
        is_as_wanted(&last)
    });
    last
}

/// Calls of communication by process and function, as the job itself wrote them down.
fn called(folder: &Path) -> BTreeMap<(u32, String), u64> {
    let mut called = BTreeMap::new();
    for call in call_log::read(&folder.join("calls")).unwrap() {
        let name = call.function.trim_start_matches("nccl").to_owned();
        *called.entry((call.pid, name)).or_insert(0) += 1;
    }
    called
}

/// The jobs of the node at one level: `counter` counts, by the label `name`.
fn node_at(level: &str, counter: &str, bytes_counter: &str, name: &'static str) {
    let needed: Vec<_> = KINDS.iter().filter_map(|kind| programs::needed(kind.version)).collect();
    if needed.len() != KINDS.len() || !scrape::can_parse() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = |at: usize| folder.path().join(format!("job-{at}"));
    let start = |at: usize| KINDS[at].start(&needed[at].1, &needed[at].2, &place(at));
    let mut beds: Vec<Bed> = (0..3).map(start).collect();
    let output = folder.path().join("out");
    let recorder = Recorder::of_node(&output, &format!("--level {level} --metrics 0")).unwrap();
    let address = recorder.metrics_address().unwrap();
    beds.push(start(3));
    // It is promised to be picked up within two seconds; a busy machine, and `session.json`, may take longer.
    let late = beds[3].ready.pids.clone();
    wait_until("the job that began later is picked up", PATIENCE, || {
        let session = session_so_far(&output);
        late.iter().all(|pid| target(&session, *pid).is_some())
    });
    for bed in &beds {
        bed.go().unwrap();
    }

    let hashes: Vec<String> = beds.iter().map(|bed| format!("0x{}", bed.ready.comm_hash)).collect();
    let samples = scrape_until(address, |samples| {
        let count = |comm: &String| scrape::count(samples, counter, &[("comm", comm)]);
        KINDS.iter().zip(&hashes).all(|(kind, comm)| count(comm) >= kind.counted(level))
    });
    // A call is counted when it begins, and written down when it has returned.
    wait_until("the jobs have written their calls down", PATIENCE, || {
        KINDS.iter().enumerate().all(|(at, kind)| {
            let called = called(&place(at));
            let of_ops = called.iter().filter(|((_, name), _)| kind.ops.iter().any(|(_, op)| op == name));
            of_ops.map(|(_, count)| count).sum::<u64>() >= kind.calls()
        })
    });
    for ((at, kind), comm) in KINDS.iter().enumerate().zip(&hashes) {
        let (called, waits_for_next) = (called(&place(at)), kind.waits_for_next(level));
        for (_, function) in kind.ops {
            let by_job = |pid: u32| called.get(&(pid, (*function).to_owned())).copied().unwrap_or(0);
            for rank in 0..kind.ranks {
                let pids = &beds[at].ready.pids;
                let pid = if kind.mode == "threads" { pids[0] } else { pids[rank as usize] };
                let ranks_of_process = if kind.mode == "threads" { u64::from(kind.ranks) } else { 1 };
                assert_eq!(by_job(pid), kind.iterations * ranks_of_process, "{called:?}");
                let (rank, pid) = (rank.to_string(), pid.to_string());
                let labels = [("comm", comm.as_str()), ("rank", &rank), ("pid", &pid), (name, function)];
                let count = |metric: &str| scrape::count(&samples, metric, &labels);
                // Where ops are seen call by call, the last one of a rank is known to be whole with the next
                // one.
                let pending = u64::from(waits_for_next && *function == kind.ops[kind.ops.len() - 1].1);
                let iterations = kind.iterations - pending;
                assert_eq!(count(counter), iterations, "{level} {labels:?}");
                assert_eq!(count(bytes_counter), iterations * kind.bytes, "{level} {labels:?}");
            }
        }
        assert_eq!(
            scrape::count(&samples, counter, &[("comm", comm)]),
            kind.counted(level),
            "{level}: nothing else is counted to {comm}"
        );
        for pid in &beds[at].ready.pids {
            let pid = pid.to_string();
            let lost = samples.iter().find(|sample| {
                sample.name == "ncclflow_records_lost_total" && sample.labels.get("pid") == Some(&pid)
            });
            assert!(lost.is_some_and(|lost| lost.value == 0.0), "{level} {pid}: {lost:?}");
        }
    }
    assert_eq!(scrape::count(&samples, "ncclflow_records_undecodable_total", &[]), 0);
    for (at, bed) in beds.iter_mut().enumerate() {
        File::create(place(at).join("hold")).unwrap();
        bed.end();
    }
    recorder.interrupt().unwrap();
}

#[test]
fn calls_of_all_jobs_of_the_node_are_counted_each_for_its_own() {
    node_at("api", "ncclflow_calls_total", "ncclflow_call_bytes_total", "function");
}

#[test]
fn ops_of_all_jobs_of_the_node_are_counted_each_for_its_own() {
    node_at("flow", "ncclflow_ops_total", "ncclflow_op_bytes_total", "coll");
}

/// With windows, what happens in them is counted, on and on; what happens between them is not.
#[test]
fn with_windows_the_metrics_count_what_is_in_them_and_never_begin_anew() {
    windows_at("api", "ncclflow_calls_total", "function");
    windows_at("flow", "ncclflow_ops_total", "coll");
}

fn windows_at(level: &str, counter: &str, name: &str) {
    if !scrape::can_parse() {
        return;
    }
    let fixed = "--mode processes --ranks 3 --iters 1000000 --interval-ms 20 --bytes 4096 --sync --channels 1 --timeout 600";
    let Some(world) = World::start("2.27.5-cu12", &format!("{fixed} {CALL_LOG}")) else { return };
    let (output, flag, mark) = (world.out(), world.path("flag"), world.folder.path().display());
    let options = format!("--comm {mark} --level {level} --metrics 0 --window-flag {mark}/flag");
    let recorder = Recorder::of_node(&output, &options).unwrap();
    let address = recorder.metrics_address().unwrap();
    let bed = &world.bed;
    bed.go().unwrap();
    let comm = format!("0x{}", bed.ready.comm_hash);
    let counted = || -> BTreeMap<u32, u64> {
        let samples = samples(address);
        let of = |pid: &u32| {
            let labels = [("comm", comm.as_str()), ("pid", &pid.to_string()), (name, "AllReduce")];
            (*pid, scrape::count(&samples, counter, &labels))
        };
        bed.ready.pids.iter().map(of).collect()
    };
    world.wait_for_calls(5);
    assert!(counted().values().all(|count| *count == 0), "no window was open yet");

    let (mut after_windows, mut last) = (Vec::new(), counted());
    for number in 1..=3 {
        let touched = call_log::now_ns();
        File::create(&flag).unwrap();
        wait_until("calls in the window are counted", PATIENCE, || {
            counted().iter().all(|(pid, count)| *count > last[pid])
        });
        world.wait_for_calls(10);
        // A scrape inside of a window.
        let inside = counted();
        world.wait_for_calls(5);
        fs::remove_file(&flag).unwrap();
        progress::wait_for_windows(&output, number);
        let ended = call_log::now_ns();
        let after = counted();
        // The job goes on, and is not counted.
        world.wait_for_calls(10);
        assert_eq!(counted(), after);
        assert!(inside.iter().all(|(pid, count)| count <= &after[pid]), "{inside:?} {after:?}");
        last.clone_from(&after);
        after_windows.push((touched, ended, after));
    }
    let said = recorder.interrupt().unwrap();
    let (session, calls) = (world.session(), world.calls_at_end());
    let windows = list(&session["windows"]);
    assert_eq!(windows.len(), 3, "{said}");
    let mut before: BTreeMap<u32, u64> = BTreeMap::new();
    for (window, (touched, ended, after)) in windows.iter().zip(after_windows) {
        let at = |key: &str| number(&window[key]);
        let (opened, closed) = (at("opened_monotonic_ns"), at("closed_monotonic_ns"));
        for (pid, count) in &after {
            let grown = count - before.get(pid).copied().unwrap_or(0);
            let made = calls.iter().filter(|call| call.pid == *pid && call.function == "ncclAllReduce");
            let whole =
                made.clone().filter(|call| call.begin_ns > opened && call.end_ns < closed).count() as u64;
            // Of what is called just before the one and just after the other, some is recorded.
            let touching = made.filter(|call| call.end_ns > touched && call.begin_ns < ended).count() as u64;
            assert!((whole..=touching).contains(&grown), "{level} {pid}: {grown} of {whole} to {touching}");
            assert!(whole > 0, "{level} {pid} called all the time");
        }
        before = after;
    }
}
