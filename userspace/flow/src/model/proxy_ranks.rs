//! Processes of ranks: which process has which rank of which communicator, as far as records tell.
//!
//! An op that another rank's proxy executes (PXN) is posted in one process, and its messages are seen in
//! another. Two facts join them. The poster's connector names the rank whose proxy executes the op, and the
//! connection's address in that rank's process. And exactly one process has claimed this rank of this
//! communicator.

use foldhash::HashMap;

use crate::{decode::ProxyRank, quota::Limits};

/// Ranks that are kept, of all processes and of one. A node has some thousands; a process that claims more
/// wants to fill our memory, and gets no more.
const RANKS: Limits = Limits { all: 1 << 20, of_one: 1 << 16 };

/// A rank of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommunicatorRank {
    /// `commHash`. Communicators without one cannot be told apart, and no process is found for their ranks.
    pub hash: Option<u64>,
    pub rank: ProxyRank,
}

/// The process that has a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// No process whose records came.
    Unknown,
    /// This process, by the process ID of its records.
    Process(u32),
    /// More than one process claims the rank: none is believed.
    Several,
}

/// State of a process, as its records tell it.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    pid: Option<u32>,
    lost: u64,
    /// Ranks that the process was the first to claim.
    claims: usize,
}

/// The ranks of all processes that are recorded together.
#[derive(Debug, Default)]
pub struct ProxyRanks {
    owners: HashMap<CommunicatorRank, Owner>,
    processes: HashMap<u32, Process>,
    changes: u64,
}

impl ProxyRanks {
    /// Notes that a record of the process `tgid` says that the process has this rank.
    pub(super) fn note_owner(&mut self, rank: CommunicatorRank, tgid: u32) {
        if rank.hash.is_none() {
            return;
        }
        let owner = match self.owners.get(&rank) {
            Some(Owner::Process(other)) if *other == tgid => return,
            Some(Owner::Several) => return,
            Some(Owner::Process(_)) => Owner::Several,
            Some(Owner::Unknown) | None => Owner::Process(tgid),
        };
        if owner == Owner::Process(tgid) {
            let process = self.processes.entry(tgid).or_default();
            if !RANKS.have_room(self.owners.len(), process.claims) {
                return;
            }
            process.claims += 1;
        }
        self.owners.insert(rank, owner);
        self.changes += 1;
    }

    /// Returns the process that has this rank.
    pub fn owner(&self, rank: &CommunicatorRank) -> Owner {
        self.owners.get(rank).copied().unwrap_or(Owner::Unknown)
    }

    /// Returns how many records of the rank's process were lost until now; `None` if that process is not
    /// known.
    pub(super) fn lost(&self, rank: &CommunicatorRank) -> Option<u64> {
        match self.owner(rank) {
            Owner::Process(tgid) => Some(self.processes.get(&tgid).map_or(0, |process| process.lost)),
            Owner::Unknown | Owner::Several => None,
        }
    }

    /// Returns the process ID that the rank's process has in the output.
    pub(super) fn pid(&self, rank: &CommunicatorRank) -> Option<u32> {
        match self.owner(rank) {
            Owner::Process(tgid) => self.processes.get(&tgid)?.pid,
            Owner::Unknown | Owner::Several => None,
        }
    }

    /// Notes a process's ID as ncclflow sees it (`pid`), and how many of its records were lost until now.
    pub fn note_process(&mut self, tgid: u32, pid: Option<u32>, lost: u64) {
        let process = self.processes.entry(tgid).or_default();
        (process.pid, process.lost) = (pid, lost);
    }

    /// Forgets a process that is over; its process ID can become another's.
    pub fn forget(&mut self, tgid: u32) {
        self.processes.remove(&tgid);
        // Claimants of doubtful ranks are not kept. When there are many such ranks, they are forgotten: a
        // process that still has one claims it again.
        let is_crowded = self.owners.len() >= RANKS.all / 2;
        self.owners
            .retain(|_, owner| *owner != Owner::Process(tgid) && !(is_crowded && *owner == Owner::Several));
    }

    /// Returns a count that grows when the owner of a rank becomes known, or doubtful.
    pub fn changes(&self) -> u64 {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_two_processes_claim_is_nobodys() {
        let mut ranks = ProxyRanks::default();
        let of = |rank| CommunicatorRank { hash: Some(7), rank: ProxyRank::Rank(rank) };
        ranks.note_owner(of(0), 10);
        ranks.note_owner(of(0), 10);
        ranks.note_owner(of(1), 11);
        assert_eq!((ranks.owner(&of(0)), ranks.lost(&of(0))), (Owner::Process(10), Some(0)));
        ranks.note_owner(of(0), 11);
        assert_eq!((ranks.owner(&of(0)), ranks.lost(&of(0))), (Owner::Several, None));
        ranks.forget(11);
        assert_eq!(ranks.owner(&of(1)), Owner::Unknown);
        let top = CommunicatorRank { hash: Some(7), rank: ProxyRank::TopRank(0) };
        assert_eq!(ranks.owner(&top), Owner::Unknown, "a rank is not a rank of the parent");
        let no_hash = CommunicatorRank { hash: None, ..of(3) };
        ranks.note_owner(no_hash, 12);
        assert_eq!(ranks.owner(&no_hash), Owner::Unknown);
    }

    #[test]
    fn a_process_that_claims_ranks_without_end_takes_none_from_others() {
        let mut ranks = ProxyRanks::default();
        let of = |hash, rank| CommunicatorRank { hash: Some(hash), rank: ProxyRank::Rank(rank) };
        for hash in 0..3 * RANKS.of_one as u64 {
            ranks.note_owner(of(hash, 0), 10);
        }
        assert_eq!(ranks.owners.len(), RANKS.of_one);
        ranks.note_owner(of(1 << 40, 0), 11);
        assert_eq!(ranks.owner(&of(1 << 40, 0)), Owner::Process(11));
        ranks.forget(10);
        assert_eq!(ranks.owners.len(), 1, "it has ended");
        ranks.note_owner(of(7, 0), 10);
        assert_eq!(ranks.owner(&of(7, 0)), Owner::Process(10), "another process has its number");
    }

    #[test]
    fn what_is_known_is_as_much_after_a_hundred_thousand_processes_as_after_one() {
        let mut ranks = ProxyRanks::default();
        for tgid in 1..=100_000 {
            let rank = CommunicatorRank { hash: Some(tgid.into()), rank: ProxyRank::Rank(0) };
            ranks.note_process(tgid, Some(tgid), 0);
            ranks.note_owner(rank, tgid);
            ranks.forget(tgid);
        }
        assert_eq!((ranks.owners.len(), ranks.processes.len()), (0, 0));
    }
}
