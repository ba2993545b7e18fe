//! torch's own notes of its collectives: the rings of its flight recorder and the status of its process
//! groups. [`read`] takes them from the memory of a running process ([`rings`]). The crate `torch` knows
//! their layouts; this module knows the process and its files. [`compare`] puts the ranks of each process
//! group side by side ([`groups`]) and judges them ([`judge`], which is pure).
//!
//! Nothing is prepared in the processes, and nothing is stopped. If a process's torch is not understood, its
//! report says why. The notes are torch's word, of the time at which torch wrote them.

mod find;
mod groups;
mod judge;
pub mod names;
mod noted;
mod ranks;
mod report;
mod rings;

use inspect::{host::host_name, process::Process, python::Runtimes};

pub use find::Builds;
pub use judge::{Call, Difference, GroupVerdict, HistoryState, LATE_NS, Late};
pub use judge::{over, progress, seconds};
pub use noted::{Noted, NotedCall, NotedKind, NotedMessage, NotedMessages, NotedWay};
pub use noted::{by_collective, first_difference};
pub use ranks::{CommRank, ToldRank, told_rank};
pub use report::{GroupHistory, HistoryVerdict, Member, NotesReport, ProcessHistory};
pub use torch::RingReport;

/// Reads what torch of a process has noted, and finds the rank of the process.
pub fn read(process: &Process, builds: &mut Builds, runtimes: &Runtimes) -> ProcessHistory {
    let mut history = ProcessHistory {
        host: host_name(),
        pid: process.pid(),
        name: process.name().to_owned(),
        notes: rings::look(process, builds, runtimes),
        ..ProcessHistory::default()
    };
    if process.has_exited() {
        history.error = Some(format!("process {} exited while it was read", process.pid()));
        history.notes = None;
    }
    ranks::by_itself(process, &mut history);
    history
}

/// Judges the process groups of all processes. `communicators` of NCCL tell ranks that nothing else tells.
pub fn compare(found: &mut [ProcessHistory], communicators: &[CommRank<'_>]) -> Vec<GroupHistory> {
    for history in found.iter_mut().filter(|history| history.rank.is_none()) {
        ranks::by_communicator(history, communicators);
    }
    let mut groups = groups::of(found);
    groups::add_hashes(&mut groups, found, communicators);
    groups
}
