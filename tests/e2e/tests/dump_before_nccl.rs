//! `ncclflow dump` before there is a communicator: Python ranks in calls that stand in for torch's, against which rank is
//! elsewhere.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::{dumper::Dump, prelude::*};
use test_support::need_pythons;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dump_before_nccl/rank.py");
const RANKS: usize = 4;

/// Starts a rank, and waits until its program has begun.
fn start(python: &Path, folder: &Path, rank: usize, what: &str) -> Killed {
    let mut command = Command::new(python);
    command.args(["-I", SCRIPT]).arg(folder).arg(what);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
    let mut rank = Killed::start(&mut command).unwrap();
    assert_eq!(rank.line().unwrap(), "ready");
    rank
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
