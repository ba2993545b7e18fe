//! Which process has which rank of which communicator, as far as records have told.
//!
//! An op that another rank's proxy executes (PXN) is posted in one process, and its messages are seen in
//! another. Two facts join them. The poster's connector names the rank whose proxy executes the op, and the
//! connection by its address in that rank's process. And exactly one process has told that it has this rank
//! of this communicator.

use foldhash::HashMap;

use crate::decode::ProxyRank;

/// Ranks that are kept. A node has some thousands; a process that claims more wants to fill our memory.
const MAX_RANKS: usize = 1 << 20;

/// A rank of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommunicatorRank {
    /// `commHash`. Communicators without one are not told apart, and no process is found for their ranks.
    pub hash: Option<u64>,
    pub rank: ProxyRank,
}

/// The process that has a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// None whose records came.
    Unknown,
    /// This process, by the process id of its records.
    Process(u32),
    /// More than one process says so: none is believed.
    Several,
}

/// What the records of a process have told of it.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    pid: Option<u32>,
    lost: u64,
}

/// The ranks of all processes that are recorded together.
#[derive(Debug, Default)]
pub struct ProxyRanks {
    owners: HashMap<CommunicatorRank, Owner>,
    processes: HashMap<u32, Process>,
    changes: u64,
}

impl ProxyRanks {
    /// A record of the process says that it has this rank.
    pub(super) fn note_owner(&mut self, rank: CommunicatorRank, tgid: u32) {
        if rank.hash.is_none() || (self.owners.len() >= MAX_RANKS && !self.owners.contains_key(&rank)) {
            return;
        }
        let owner = match self.owners.get(&rank) {
            Some(Owner::Process(other)) if *other == tgid => return,
            Some(Owner::Several) => return,
            Some(Owner::Process(_)) => Owner::Several,
            Some(Owner::Unknown) | None => Owner::Process(tgid),
        };
        self.owners.insert(rank, owner);
        self.changes += 1;
    }

    /// The process that has this rank.
    pub fn owner(&self, rank: &CommunicatorRank) -> Owner {
        self.owners.get(rank).copied().unwrap_or(Owner::Unknown)
    }

    /// The records of the rank's process that were lost until now; `None` if it is not known which process
    /// that is.
    pub(super) fn lost(&self, rank: &CommunicatorRank) -> Option<u64> {
        match self.owner(rank) {
            Owner::Process(tgid) => Some(self.processes.get(&tgid).map_or(0, |process| process.lost)),
            Owner::Unknown | Owner::Several => None,
        }
    }

    /// What the rank's process is called in the output.
    pub(super) fn pid(&self, rank: &CommunicatorRank) -> Option<u32> {
        match self.owner(rank) {
            Owner::Process(tgid) => self.processes.get(&tgid)?.pid,
            Owner::Unknown | Owner::Several => None,
        }
    }

    /// A process, as ncclflow sees it, of which so many records were lost until now.
    pub fn note_process(&mut self, tgid: u32, pid: Option<u32>, lost: u64) {
        self.processes.insert(tgid, Process { pid, lost });
    }

    /// The process is over; its number can become another one's.
    pub fn forget(&mut self, tgid: u32) {
        self.processes.remove(&tgid);
        self.owners.retain(|_, owner| *owner != Owner::Process(tgid));
    }

    /// Grows when the owner of a rank becomes known, or doubtful.
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
}
