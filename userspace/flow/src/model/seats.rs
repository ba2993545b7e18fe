//! Which process sits where: ranks of communicators, as far as records have told them.
//!
//! An op that another rank's proxy executes (PXN) is posted in one process, and its messages are seen in another. What joins them is
//! proven: the poster's connector names the rank whose proxy it is, and the connection by its address in that rank's process; that
//! process must have told that it has this rank of this communicator, and be the only one to do so.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::decode::Seat;

/// Seats that are kept. A node has some thousands; a process that claims more wants to fill our memory.
const MAX_SEATS: usize = 1 << 20;

/// A seat in a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommunicatorSeat {
    /// `commHash`; seats of communicators without one are not told apart, and nobody is found on them.
    pub hash: Option<u64>,
    pub seat: Seat,
}

/// Who sits there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// Nobody whose records came.
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

#[derive(Debug, Default)]
struct Known {
    by_seat: HashMap<CommunicatorSeat, Occupant>,
    processes: HashMap<u32, Process>,
    changes: u64,
}

/// The seats of all processes that are recorded together. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Seats(Arc<Mutex<Known>>);

impl Seats {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record of the process says that it sits there.
    pub(super) fn take(&self, at: CommunicatorSeat, tgid: u32) {
        let mut known = self.known();
        if at.hash.is_none() || (known.by_seat.len() >= MAX_SEATS && !known.by_seat.contains_key(&at)) {
            return;
        }
        let occupant = match known.by_seat.get(&at) {
            Some(Occupant::Process(other)) if *other == tgid => return,
            Some(Occupant::Several) => return,
            Some(Occupant::Process(_)) => Occupant::Several,
            Some(Occupant::Unknown) | None => Occupant::Process(tgid),
        };
        known.by_seat.insert(at, occupant);
        known.changes += 1;
    }

    pub fn occupant(&self, at: &CommunicatorSeat) -> Occupant {
        self.known().by_seat.get(at).copied().unwrap_or(Occupant::Unknown)
    }

    /// The process with its losses: records of it that were lost until now.
    pub(super) fn process(&self, at: &CommunicatorSeat) -> Option<(u32, u64)> {
        let known = self.known();
        match known.by_seat.get(at)? {
            Occupant::Process(tgid) => {
                Some((*tgid, known.processes.get(tgid).map_or(0, |process| process.lost)))
            }
            _ => None,
        }
    }

    /// What the process is called in the output.
    pub(super) fn pid(&self, at: &CommunicatorSeat) -> Option<u32> {
        let known = self.known();
        match known.by_seat.get(at)? {
            Occupant::Process(tgid) => known.processes.get(tgid)?.pid,
            _ => None,
        }
    }

    /// A process, as ncclflow sees it, of which so many records were lost until now.
    pub fn note_process(&self, tgid: u32, pid: Option<u32>, lost: u64) {
        self.known().processes.insert(tgid, Process { pid, lost });
    }

    /// The process is over; its number can become another one's.
    pub fn forget(&self, tgid: u32) {
        let mut known = self.known();
        known.processes.remove(&tgid);
        known.by_seat.retain(|_, occupant| *occupant != Occupant::Process(tgid));
    }

    /// Grows when somebody is found on a seat.
    pub fn changes(&self) -> u64 {
        self.known().changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_that_two_processes_claim_is_nobodys() {
        let seats = Seats::default();
        let at = |rank| CommunicatorSeat { hash: Some(7), seat: Seat::Rank(rank) };
        seats.take(at(0), 10);
        seats.take(at(0), 10);
        seats.take(at(1), 11);
        assert_eq!(seats.occupant(&at(0)), Occupant::Process(10));
        seats.take(at(0), 11);
        assert_eq!((seats.occupant(&at(0)), seats.process(&at(0))), (Occupant::Several, None));
        seats.forget(11);
        assert_eq!(seats.occupant(&at(1)), Occupant::Unknown);
        let top = CommunicatorSeat { hash: Some(7), seat: Seat::TopRank(0) };
        assert_eq!(seats.occupant(&top), Occupant::Unknown, "a rank is not a rank of the parent");
        let no_hash = CommunicatorSeat { hash: None, ..at(3) };
        seats.take(no_hash, 12);
        assert_eq!(seats.occupant(&no_hash), Occupant::Unknown);
    }
}
