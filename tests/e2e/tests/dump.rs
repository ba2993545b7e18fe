//! `ncclflow dump` on the real NCCL: jobs that hang for a known reason, and jobs that do not hang.
//!
//! Each reason runs on one of four libraries, another reason on another one and with another shape of the job; `NCCLFLOW_LONG=1` runs all
//! shapes on all libraries, and a thousand dumps of running jobs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::{
    harness::{
        dumper::{Dump, DumpedCommunicator},
        job::{Shape, VERSIONS, check_culprit, libraries},
        prelude::*,
    },
    truth::call_log,
};

/// Dumps of busy jobs, over all libraries.
const BUSY_DUMPS: usize = 6;
const BUSY_DUMPS_LONG: usize = 1000;
/// Dumps of pipelines, over all libraries.
const PIPELINE_DUMPS: usize = 4;

/// For what takes a moment where a processor is free.
const PATIENCE: Duration = Duration::from_mins(1);

#[track_caller]
fn only(dump: &Dump) -> &DumpedCommunicator {
    let [communicator] = &*dump.communicators else { panic!("not one communicator: {}", dump.text) };
    assert_eq!(communicator.ranks.len(), communicator.n_ranks as usize, "{}", dump.text);
    communicator
}

/// Runs `check` on a library with one of the shapes, or on all with all of them. `first` shifts which library
/// it is, and which shape; the rank that is to be found is another one each time.
fn for_each(first: usize, shapes: &[Shape], check: impl Fn(&str, Shape, u32)) {
    for (index, version) in VERSIONS.into_iter().enumerate() {
        for (number, shape) in shapes.iter().enumerate() {
            let is_chosen = index == first % VERSIONS.len() && number == (3 * first + 1) % shapes.len();
            if is_long() || is_chosen {
                let rank = 1 + u32::try_from(first + index + number).unwrap() % (shape.ranks - 1);
                println!("{version}, {shape:?}, rank {rank}");
                check(version, *shape, rank);
            }
        }
    }
}

/// Those shapes of which this holds.
fn shapes(holds: impl Fn(&Shape) -> bool) -> Vec<Shape> {
    Shape::ALL.into_iter().filter(holds).collect()
}

#[test]
fn a_rank_that_stays_away_is_named() {
    for_each(0, &Shape::ALL, |version, shape, rank| {
        let workload = format!("--absent {rank}@3 --iters 6");
        let Some(job) = World::going(version, shape, &workload).unwrap() else { return };
        let dump = job.check_stuck(rank, &format!("rank {rank} has not joined")).unwrap();
        let victims: Vec<u32> = (0..shape.ranks).filter(|other| *other != rank).collect();
        assert_eq!(only(&dump).verdict.victims, victims, "{}", dump.text);
        // The children that list pages and copy memory have all they need: none was ended by its own limits. Of losses
        // that there are none of, a dump says nothing.
        let report: Value = serde_json::from_str(&dump.text).unwrap();
        assert!(report["job"].is_object() && report.get("lostReaders").is_none(), "{}", dump.text);
    });
}

fn stalls(first: usize, shapes: &[Shape], workload: &str) {
    for_each(first, shapes, |version, shape, rank| {
        let workload = format!("--stall {rank}={{}}/stall --iters 1000000 {workload}");
        let Some(job) = World::going(version, shape, &workload).unwrap() else { return };
        job.stall();
        job.check_stuck(rank, &format!("rank {rank} makes no progress")).unwrap();
    });
}

#[test]
fn a_rank_whose_kernels_stall_in_the_middle_is_named() {
    stalls(1, &Shape::ALL, "--bytes 8388608");
}

#[test]
fn a_rank_whose_kernels_stall_in_sends_and_receives_is_named() {
    stalls(0, &shapes(|shape| !shape.tree), "--ops sendrecv");
}

/// Small slots: 4 MiB take several rounds, so that other sizes take other numbers of them.
const SMALL_SLOTS: &str = "--bytes 4194304 --env NCCL_BUFFSIZE=262144 --iters 8";

#[test]
fn a_rank_whose_size_differs_is_named() {
    for (first, bytes) in [(2, 1 << 20), (3, 8 << 20)] {
        for_each(first, &Shape::ALL, |version, shape, rank| {
            let workload = format!("--size-of {rank}={bytes}@3 --survive {SMALL_SLOTS}");
            let Some(job) = World::going(version, shape, &workload).unwrap() else { return };
            job.check_stuck(rank, "differ").unwrap();
        });
    }
}

#[test]
fn a_rank_whose_order_differs_is_named() {
    for (first, how) in [(1, ""), (2, "--sync")] {
        for_each(first, &Shape::ALL, |version, shape, rank| {
            let workload = format!("--swap {rank}@4 --survive --ops allreduce,sendrecv {how} {SMALL_SLOTS}");
            let Some(job) = World::going(version, shape, &workload).unwrap() else { return };
            job.check_stuck(rank, "the order differs").unwrap();
        });
    }
}

#[test]
fn a_rank_with_another_collective_under_the_same_number_is_named() {
    for_each(0, &shapes(|shape| !shape.tree), |version, shape, rank| {
        let workload = format!("--swap {rank}@4 --survive --ops allreduce,broadcast {SMALL_SLOTS}");
        let Some(job) = World::going(version, shape, &workload).unwrap() else { return };
        let receiver = (rank + 1) % shape.ranks;
        let of_the_link = |dump: &Dump| {
            let mut verdicts = dump.communicators.iter().map(|communicator| &communicator.verdict);
            verdicts.all(|verdict| verdict.culprits.iter().all(|culprit| [rank, receiver].contains(culprit)))
        };
        let dump = job.stuck_as(&[], of_the_link).unwrap();
        // Where a message is longer than the receiver asked for, NCCL's network fails and the op with it.
        // Then the failure is what is left to see, at an end of that link; or, where NCCL kept no error
        // either, that the receive is gone: the link is named.
        let verdict = &only(&dump).verdict;
        let is_seen = dump.text.contains("the order differs");
        if !is_seen && dump.text.contains("ncclInvalidUsage") {
            let names_one = verdict.state == "stuck" && verdict.culprits.len() == 1;
            assert!(names_one && of_the_link(&dump), "{verdict:#?}");
            return;
        }
        if !is_seen && dump.text.contains("is down:") {
            let said = format!("the link from rank {rank} to rank {receiver} is down");
            assert!(verdict.evidence.iter().any(|sentence| sentence.contains(&said)), "{verdict:#?}");
            let mut ends = [rank, receiver];
            ends.sort_unstable();
            assert_eq!((verdict.state.as_str(), &*verdict.culprits), ("stuck", &ends[..]), "{verdict:#?}");
            return;
        }
        // Ops 4 and 5 are exchanged. NCCL can have dropped what is left of op 4.
        let is_second = !dump.text.contains("the order differs: op 4 is");
        check_culprit(
            &dump,
            rank,
            if is_second { "the order differs: op 5 is" } else { "the order differs: op 4 is" },
        );
    });
}

#[test]
fn a_rank_that_was_killed_is_named_whether_its_process_is_given_or_not() {
    for_each(1, &shapes(|shape| shape.processes), |version, shape, rank| {
        let Some(job) = World::going(version, shape, "--survive --iters 1000000").unwrap() else { return };
        World::work();
        let index = rank as usize;
        job.signal(index, Signal::KILL).unwrap();
        let said = format!("process {} has exited", job.bed.ready.pids[index]);
        job.check_stuck(rank, &said).unwrap();
        job.check_stuck_without(&[index], rank, "is waited for: it was on this host").unwrap();
    });
}

#[test]
fn a_stopped_process_is_named_and_its_job_goes_on_afterwards() {
    for_each(2, &shapes(|shape| shape.processes), |version, shape, rank| {
        let workload = "--iters 1000000 --bytes 65536";
        let Some(job) = World::going(version, shape, workload).unwrap() else { return };
        World::work();
        job.signal(rank as usize, Signal::STOP).unwrap();
        job.check_stuck(rank, &format!("rank {rank} is stopped: process")).unwrap();
        job.signal(rank as usize, Signal::CONT).unwrap();
        wait_until("the job goes on", PATIENCE, || only(&job.dump(&[]).unwrap()).verdict.state != "stuck");
    });
}

#[test]
fn a_rank_whose_process_is_not_given_is_named_as_unread() {
    for_each(3, &shapes(|shape| shape.processes), |version, shape, rank| {
        let workload = format!("--absent {rank}@2 --iters 4");
        let Some(job) = World::going(version, shape, &workload).unwrap() else { return };
        job.check_stuck(rank, &format!("rank {rank} has not joined")).unwrap();
        job.check_stuck_without(&[rank as usize], rank, "was not read").unwrap();
    });
}

/// The hosts of a job dump their own ranks; the verdict is over all.
#[test]
fn dumps_of_several_hosts_are_judged_together() {
    for_each(0, &shapes(|shape| shape.processes), |version, shape, rank| {
        let workload = format!("--absent {rank}@2 --iters 4");
        let Some(job) = World::going(version, shape, &workload).unwrap() else { return };
        job.check_stuck(rank, &format!("rank {rank} has not joined")).unwrap();
        let mut files = Vec::new();
        for (index, pids) in job.bed.ready.pids.chunks(2).enumerate() {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            let dump = Dump::take_answered(&job.ncclflow, &pids.join(","), &[], &[]).unwrap();
            let path = job.path(&format!("{index}.json"));
            fs::write(&path, dump.text).unwrap();
            files.push(path.display().to_string());
        }
        let arguments: Vec<&str> = ["--merge"].into_iter().chain(files.iter().map(String::as_str)).collect();
        let dump = Dump::take(&job.ncclflow, "", &arguments).unwrap();
        check_culprit(&dump, rank, &format!("rank {rank} has not joined"));
    });
}

#[test]
fn a_busy_job_is_never_called_stuck_and_computes_what_it_should() {
    let libraries = libraries();
    let dumps = if is_long() { BUSY_DUMPS_LONG } else { BUSY_DUMPS } / libraries.len();
    let shape = |processes| Shape { ranks: 4, processes, tree: false };
    for (index, version) in libraries.into_iter().enumerate() {
        let workload = format!(
            "--iters 1000000 --ops allreduce,allgather,reducescatter,sendrecv --bytes 262144 {CALL_LOG}"
        );
        let Some(job) = World::going(version, shape(index % 2 == 0), &workload).unwrap() else { continue };
        for number in 0..dumps {
            if number % 50 == 0 {
                println!("{version}: {number} of {dumps} dumps");
            }
            let from_ns = call_log::now_ns();
            let dump = job.dump(&["--interval", "0.25"]).unwrap();
            let verdict = &only(&dump).verdict;
            assert!(
                verdict.state != "stuck" || job.stood(&dump, from_ns),
                "{version}, dump {number}: {verdict:#?}\n{}",
                dump.text
            );
        }
    }
}

/// Two stages of two ranks: collectives within a stage, and between the stages sends and receives alone, thousands of
/// times a second. `cargo xtask verify hangs --pipelines 1000` makes a thousand dumps of such jobs.
#[test]
fn a_pipeline_that_goes_on_waits_for_nobody() {
    let shape = Shape { ranks: 4, processes: true, tree: false };
    let libraries = libraries();
    let dumps = PIPELINE_DUMPS / libraries.len();
    for version in libraries {
        let workload =
            format!("--stages 2 --iters 1000000 --ops allreduce,sendstage,sendstage --bytes 4096 {CALL_LOG}");
        let Some(job) = World::going(version, shape, &workload).unwrap() else { continue };
        for number in 0..dumps {
            let from_ns = call_log::now_ns();
            let dump = job.dump(&["--interval", "0.25"]).unwrap();
            for communicator in &dump.communicators {
                let verdict = &communicator.verdict;
                let is_right = verdict.state != "stuck" && verdict.state != "waiting";
                assert!(
                    is_right || job.stood(&dump, from_ns),
                    "{version}, dump {number}: {verdict:#?}\n{}",
                    dump.text
                );
            }
        }
    }
}

/// Whether the job is over: the bed itself ends a moment after its ranks.
fn ends_now(job: &mut World) -> bool {
    eventually(PATIENCE, || !job.bed.is_running())
}

#[test]
fn a_job_that_is_dumped_all_the_time_ends_with_the_right_data() {
    let rounds = if is_long() { 40 } else { 1 };
    for (index, version) in libraries().into_iter().enumerate() {
        let shape = Shape { ranks: 4, processes: index % 2 == 1, tree: false };
        let workload = format!("--iters {} --bytes 65536 --ops allreduce,allgather {CALL_LOG}", 75 * rounds);
        let Some(mut job) = World::going(version, shape, &workload).unwrap() else { continue };
        let mut dumps = 0;
        while job.bed.is_running() {
            let from_ns = call_log::now_ns();
            match job.dump(&["--interval", "0.1"]) {
                Ok(dump) => {
                    for communicator in &dump.communicators {
                        let is_over = communicator.ranks.len() < communicator.n_ranks as usize;
                        let is_right = is_over || communicator.verdict.state != "stuck";
                        assert!(is_right || job.stood(&dump, from_ns), "{version}: {}", dump.text);
                    }
                    dumps += 1;
                }
                // It ended before or while it was read, and that is said.
                Err(error) => assert!(ends_now(&mut job), "{error:#}"),
            }
        }
        let (status, summary) = job.bed.finish().unwrap();
        assert!(status.success() && summary.ok && summary.checked_elements > 0, "{version}: {summary:?}");
        assert!(dumps > 0, "{version}");
    }
}

#[test]
fn a_job_that_has_nothing_to_do_waits_elsewhere() {
    let Some(world) = World::start("2.27.5-cu12", "--ranks 4 --channels 2") else { return };
    let dump = world.dump(&[]).unwrap();
    let verdict = &only(&dump).verdict;
    assert_eq!((verdict.state.as_str(), dump.code), ("healthy", Some(0)), "{verdict:#?}");
    assert!(verdict.evidence[0].contains("the job waits elsewhere"), "{verdict:#?}");
    // A process that has no NCCL, and one that is not there, are told from one that hangs.
    assert_eq!(Dump::take(&world.ncclflow, &std::process::id().to_string(), &[]).unwrap().code, Some(1));
    let missing = Dump::take(&world.ncclflow, &u32::MAX.to_string(), &[]).unwrap_err().to_string();
    assert!(missing.contains("there is no process"), "{missing}");
}
