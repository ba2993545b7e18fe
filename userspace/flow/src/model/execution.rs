//! An op whose messages are on their way, and how it comes out.

use super::{
    agreement,
    flow::FlowRecord,
    message::Measured,
    seats::{CommunicatorSeat, Occupant, Seats},
    step_key::{StepKey, seat_of},
};
use crate::schema::Outcome;

/// An op whose messages are on their way.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) record: FlowRecord,
    /// Peers with a proxy that have messages left.
    pub(super) open_peers: usize,
    /// Messages of all its peers.
    pub(super) messages: usize,
    pub(super) keys: Vec<StepKey>,
    pub(super) tgid: u32,
    /// Records of the process that were lost before it began.
    pub(super) lost: u64,
    /// Others that execute parts of it, with their losses then, as far as they were known.
    pub(super) elsewhere: Vec<(CommunicatorSeat, Option<u64>)>,
}

impl Execution {
    /// It ends, for this reason or because all of it was measured, after so many records of its process were lost.
    pub(super) fn ended(self, lost: u64, outcome: Option<Outcome>, seats: &Seats) -> FlowRecord {
        let mut record = self.record;
        record.incomplete |= self.lost != lost;
        let mut is_unknown = false;
        for (at, lost_before) in &self.elsewhere {
            let process = seats.process(at);
            is_unknown |= match seats.occupant(at) {
                Occupant::Process(_) => false,
                Occupant::Unknown => lost_before.is_none(),
                Occupant::Several => true,
            };
            record.incomplete |= process.is_some_and(|(_, lost)| lost_before.unwrap_or(0) != lost);
        }
        for index in 0..record.peers.len() {
            let at = record.peers.get(index).and_then(|peer| seat_of(&record, peer));
            let (Some(at), Some(peer)) = (at, record.peers.get_mut(index)) else { continue };
            peer.proxy_pid = peer.proxy_pid.or_else(|| seats.pid(&at));
            // Where nobody looked, nothing was seen, and nothing is said of it.
            if outcome.is_some() && peer.measured.as_ref().is_some_and(Measured::is_unseen) {
                peer.measured = peer.measured.take().filter(|_| peer.proxy_pid.is_some());
            }
        }
        record.outcome = Some(match outcome {
            None => agreement::of_whole(&mut record),
            Some(_) if is_unknown => Outcome::ProxyNotKnown,
            Some(_) if record.incomplete => Outcome::RecordsLost,
            Some(outcome) => outcome,
        });
        record
    }
}
