//! `ncclflow dump` before there is a communicator: Python ranks in calls that stand in for torch's, against which rank is
//! elsewhere.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::{dumper::Dump, prelude::*};
use test_support::need_pythons;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dump_before_nccl/rank.py");
const RANKS: usize = 4;

/// A stand-in for torch's library: functions of its names that wait, as its own do, in the kernel.
const TORCH: &str = "
#include <poll.h>
void _ZN4c10d8TCPStore6doWaitEv(void) { poll(0, 0, -1); }
void _ZN4c10d8TCPStore3getEv(void) { _ZN4c10d8TCPStore6doWaitEv(); }
void _ZN4c10d11PrefixStore3getEv(void) { _ZN4c10d8TCPStore3getEv(); }
void _ZN4c10d16ProcessGroupNCCL21broadcastUniqueNCCLIDEv(void) { _ZN4c10d11PrefixStore3getEv(); }
void _ZN4c10d8TCPStore14waitForWorkersEv(void) { for (;;) poll(0, 0, 10); }
void double_get(void) { _ZN4c10d11PrefixStore3getEv(); }
void double_broadcast_id(void) { _ZN4c10d16ProcessGroupNCCL21broadcastUniqueNCCLIDEv(); }
void double_wait_for_workers(void) { _ZN4c10d8TCPStore14waitForWorkersEv(); }
";

/// Starts a rank, and waits until its program has begun.
fn start(python: &Path, folder: &Path, rank: usize, what: &str) -> Killed {
    let mut rank = start_alone(python, folder, rank, what);
    assert_eq!(rank.line().unwrap(), "ready");
    rank
}

fn start_alone(python: &Path, folder: &Path, rank: usize, what: &str) -> Killed {
    let mut command = Command::new(python);
    command.args(["-I", SCRIPT]).arg(folder).arg(what);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
    Killed::start(&mut command).unwrap()
}

/// Starts a job of which each rank does one of these, on each Python that is found, with the stand-in for torch.
fn jobs(what: [&'static str; RANKS], mut check: impl FnMut(&Path, &mut Vec<Killed>)) {
    if !root() {
        return;
    }
    let (Some(ncclflow), Some(pythons)) = (programs::ncclflow(), need_pythons()) else { return };
    for python in pythons {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libtorch_cpu.so");
        let options = ["-shared", "-fPIC", "-O0", "-w"];
        if programs::compiled(TORCH, &library, &options).unwrap().is_none() {
            return;
        }
        let ranks = what.into_iter().enumerate();
        let mut ranks: Vec<Killed> =
            ranks.map(|(rank, what)| start_alone(&python.program, folder.path(), rank, what)).collect();
        for rank in &mut ranks {
            assert_eq!(rank.line().unwrap(), "ready");
        }
        check(&ncclflow, &mut ranks);
    }
}

/// Dumps these ranks until the job is judged so.
#[track_caller]
fn dump_until(ncclflow: &Path, ranks: &[Killed], state: &str) -> Dump {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let dump = Dump::take_answered(ncclflow, &pid_list(ranks), &[], &[]).unwrap();
        if dump.job.state == state || Instant::now() > deadline {
            assert_eq!(dump.job.state, state, "{}", dump.text);
            return dump;
        }
    }
}

/// A lock file that a build left behind, which a rank looks for ten times a second (pytorch#189245); and a rank that has
/// ended, as one whose port is taken (pytorch#129367).
#[test]
fn the_rank_that_has_not_come_to_init_process_group_is_named_with_its_line() {
    if !root() {
        return;
    }
    let Some(ncclflow) = programs::ncclflow() else { return };
    let Some(python) = need_pythons().and_then(|mut all| all.pop()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let build = |rank| if rank == 2 { "build" } else { "init" };
    let mut ranks: Vec<Killed> =
        (0..RANKS).map(|rank| start(&python.program, folder.path(), rank, build(rank))).collect();
    let dump = dump_until(&ncclflow, &ranks, "stuck");
    let pid = ranks[2].pid();
    let said = format!(
        "3 of 4 ranks of the job are in torch's init_process_group; rank 2 (process {pid}) has not called it: \
         file_baton.py:"
    );
    assert!(dump.job.sentence.contains(&said) && dump.code == Some(3), "{}", dump.job.sentence);
    assert!(dump.job.sentence.contains(" in wait, called from rank.py:"), "{}", dump.job.sentence);
    // Nobody knows why one does not come that was not read.
    ranks.remove(2).kill();
    let dump = dump_until(&ncclflow, &ranks, "unknown");
    assert!(dump.job.sentence.contains("wait for rank 2, which was not read"), "{}", dump.job.sentence);
}

/// Rank 0 has not said that the weights are there, for which the others wait (pytorch#53840 waits for such keys).
#[test]
fn the_key_that_ranks_wait_for_is_named_with_the_line_of_the_rank_that_does_not_wait() {
    jobs(["elsewhere", "get", "get", "get"], |ncclflow, ranks| {
        let dump = dump_until(ncclflow, ranks, "stuck");
        let (pid, said) = (ranks[0].pid(), &dump.job.sentence);
        let waits = "3 of 4 ranks of the job wait in torch's store, waiting for key \"weights/3\" (variable key), at \
                     rank.py:";
        let other = format!("; rank 0 (process {pid}) is the only one that does not wait there: rank.py:");
        assert!(said.contains(waits) && said.contains(&other), "{said}");
        assert_eq!((dump.code, dump.job.kind.as_deref()), (Some(3), Some("storeWait")));
        // What only one of two ranks can have done is nobody's fault.
        ranks.remove(3).kill();
        let dump = dump_until(ncclflow, ranks, "unknown");
        assert!(dump.job.sentence.contains("; rank 3 was not read"), "{}", dump.job.sentence);
    });
}

/// A first collective, to which the first rank of the group does not come (pytorch#107177).
#[test]
fn ranks_that_wait_for_a_communicators_id_wait_for_the_rank_that_is_elsewhere() {
    jobs(["elsewhere", "first_collective", "first_collective", "first_collective"], |ncclflow, ranks| {
        let dump = dump_until(ncclflow, ranks, "stuck");
        let (pid, said) = (ranks[0].pid(), &dump.job.sentence);
        let waits = "for the id of a communicator from the first rank of the group, at distributed_c10d.py:2 in all_reduce";
        let other = format!("rank 0 (process {pid}) is the only one that does not wait there: rank.py:");
        assert!(said.contains(waits) && said.contains(&other), "{said}");
    });
}

/// Of the ranks that are in no call, two have come to the store of rank 0 and gone on, as `init_process_group("nccl")`
/// lets them ("1/2 workers joined", pytorch#111805).
#[test]
fn a_rank_that_has_come_to_the_store_and_gone_on_is_not_accused() {
    jobs(["serve", "come", "elsewhere", "come"], |ncclflow, ranks| {
        let dump = dump_until(ncclflow, ranks, "stuck");
        let (pid, said) = (ranks[2].pid(), &dump.job.sentence);
        let waits = "1 of 4 ranks of the job is in torch's init_process_group, waiting for all ranks to come to its store \
                     at 127.0.0.1:";
        let rest = format!(
            "to which 127.0.0.1 (2) has connected; rank 2 (process {pid}) has not called it: rank.py:"
        );
        assert!(said.contains(waits) && said.contains(&rest), "{said}");
        assert!(!said.contains("rank 1") && !said.contains("rank 3"), "{said}");
    });
}

/// Two jobs use one store, so that twice as many come to torch's barrier as it waits for (yolov5#4574).
#[test]
fn a_barrier_to_which_more_have_come_than_there_are_ranks_never_ends() {
    jobs(["barrier"; RANKS], |ncclflow, ranks| {
        let dump = dump_until(ncclflow, ranks, "stuck");
        let said = &dump.job.sentence;
        let waits = "4 of 4 ranks of the job are in torch's init_process_group, waiting for key \
                     \"store_based_barrier_key:0:last_worker\" (variable last_worker_key), to which 8 have come instead of 4";
        assert!(said.contains(waits), "{said}");
        assert_eq!((dump.code, dump.job.kind.as_deref()), (Some(3), Some("neverMatches")));
    });
}
