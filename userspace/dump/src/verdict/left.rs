//! Ranks that were not found although their processes were read, and processes that outlive their rank.

use super::{Case, lines::main_thread_at};
use crate::{AbsentRank, Place, ProcessReport};
use flow::text::joined;
use inspect::memory::ScanEnd;

impl<'a> Case<'a> {
    /// Returns the process of a rank that was not found, if the dump has read that process or tried to.
    pub(super) fn process_of_absent(&self, absent: &AbsentRank) -> Option<&'a ProcessReport> {
        let pid = absent.pid.filter(|_| absent.place == Place::Here)?;
        // The rank is on the host of the one whose table tells of it.
        let mut hosts =
            self.ranks.values().filter(|rank| rank.absent.contains(absent)).map(|rank| &rank.host);
        let host = hosts.next()?;
        self.processes.iter().find(|process| (process.pid, &process.host) == (pid, host))
    }

    /// Names the processes that were forked from a rank's process, and outlive it: with a leading separator,
    /// or nothing.
    pub(super) fn left_over_sentence(&self, rank: u32) -> String {
        const SHOWN: usize = 8;
        let Some(hash) = self.ranks.values().next().map(|rank| &rank.comm_hash) else { return String::new() };
        let is_of = |process: &&ProcessReport| {
            process.left_over_of.iter().any(|copied| copied.rank == rank && copied.comm_hash == *hash)
        };
        let pids: Vec<u32> = self.processes.iter().filter(is_of).map(|process| process.pid).collect();
        let more = if pids.len() > SHOWN { " …" } else { "" };
        let shown = joined(pids.iter().take(SHOWN), ", ");
        match pids.len() {
            0 => String::new(),
            1 => format!("; process {shown} is a left-over child of it"),
            _ => format!("; processes {shown}{more} are left-over children of it"),
        }
    }
}

/// Tells whether a communicator of the process would have been found.
pub(super) fn was_searched_to_the_end(process: &ProcessReport) -> bool {
    let scan = process.scan.as_ref();
    process.error.is_none()
        && !process.libraries.is_empty()
        && process.libraries.iter().all(|library| library.unusable.is_none())
        && scan.is_some_and(|scan| scan.complete || scan.ended_by == Some(ScanEnd::Listed))
}

/// Tells that a rank's process, which was read, has no such communicator.
pub(super) fn has_left(process: &ProcessReport) -> String {
    let (pid, place) = (process.pid, main_thread_at(process));
    format!(
        "is process {pid}, which has no such communicator any more: it was destroyed or aborted, or its \
         set-up failed{place}"
    )
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use inspect::memory::ScanReport;

    use super::*;
    use crate::{
        LibraryReport, ProcessState,
        copies::CopiedRank,
        rank_gpu::Work,
        verdict::{
            Kind, State, judge,
            tests::made::{check, over_nvlink},
        },
    };

    /// A process without a communicator, all of whose memory was searched.
    fn searched(pid: u32) -> ProcessReport {
        ProcessReport {
            pid,
            state: ProcessState::Running,
            libraries: vec![LibraryReport::default()],
            scan: Some(ScanReport { complete: true, ..ScanReport::default() }),
            ..ProcessReport::default()
        }
    }

    #[test]
    fn a_process_that_was_read_and_has_no_such_communicator_has_left_it() {
        let mut ranks = [0, 1, 3].map(|number| over_nvlink(number, 4, Some(Work::Waits)));
        ranks[0].absent = vec![AbsentRank { rank: 2, place: Place::Here, pid: Some(77), peer: None }];
        let verdict = judge(&ranks, &[searched(77)]);
        check(
            &verdict,
            State::Stuck,
            &[2],
            &[0, 1, 3],
            "rank 2 is process 77, which has no such communicator",
        );
        assert_eq!(verdict.kind, Some(Kind::Left));
        assert!(!verdict.evidence.iter().any(|line| line.contains("give their PIDs")), "{verdict:#?}");
        // What was not searched to the end, or with a library that is not understood, may have it.
        let cut = ScanReport { ended_by: Some(ScanEnd::ByteLimit), ..ScanReport::default() };
        let cut = ProcessReport { scan: Some(cut), ..searched(77) };
        assert_eq!(judge(&ranks, &[cut]).state, State::Unknown);
        let unusable = LibraryReport { unusable: Some("no layouts".to_owned()), ..LibraryReport::default() };
        let unusable = ProcessReport { libraries: vec![unusable], ..searched(77) };
        assert_eq!(judge(&ranks, from_ref(&unusable)).state, State::Unknown);
        let denied = ProcessReport { error: Some("denied".to_owned()), ..searched(77) };
        check(&judge(&ranks, &[denied]), State::Unknown, &[], &[], "which could not be read: denied");
        // A process of another host has the number by chance.
        let other = ProcessReport { host: "b".to_owned(), ..searched(77) };
        assert_eq!(judge(&ranks, &[other]).state, State::Unknown);
    }

    #[test]
    fn children_that_outlive_a_rank_are_named_and_are_not_it() {
        let mut ranks = [0, 1, 3].map(|number| over_nvlink(number, 4, Some(Work::Waits)));
        ranks[0].absent = vec![AbsentRank { rank: 2, place: Place::Gone, pid: None, peer: None }];
        let child = |pid| ProcessReport {
            left_over_of: vec![CopiedRank { comm_hash: "0x1".to_owned(), rank: 2 }],
            ..searched(pid)
        };
        let verdict = judge(&ranks, &[child(7545), child(7546)]);
        let said = "its process is gone; processes 7545, 7546 are left-over children of it";
        check(&verdict, State::Stuck, &[2], &[0, 1, 3], said);
        assert_eq!(verdict.kind, Some(Kind::Gone));
        let of_another = ProcessReport {
            left_over_of: vec![CopiedRank { comm_hash: "0x2".to_owned(), rank: 2 }],
            ..searched(7545)
        };
        let verdict = judge(&ranks, &[of_another]);
        assert!(!verdict.evidence.iter().any(|line| line.contains("7545")), "{verdict:#?}");
    }
}
