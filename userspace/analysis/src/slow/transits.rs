//! Time of messages in the network, link by link: from the moment at which the sender's network took a message
//! to that at which it was there, by one host's clock.
//!
//! A network that buffers takes a message at once, however slow it is: a sender's own times say nothing of
//! it, and its receiver cannot tell it from a late sender.

use std::{
    collections::{BTreeMap, HashMap},
    hash::BuildHasher as _,
};

use flow::schema::{MessageRow, Stage};
use foldhash::fast::FixedState;
use nccl_library::nccl::Direction;

use super::{launches::median, shares::Shares};

/// Most messages of a communicator of which one end was seen; with more, one of two collectives is left out.
const MAX_PENDING: usize = 1 << 16;

/// Most messages of a link whose time is kept; then every second one goes.
const MAX_TIMES: usize = 1 << 12;

/// A message of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    seq: u64,
    channel: u32,
    step: u64,
    from: i32,
    to: i32,
}

/// What one end saw.
#[derive(Clone, Copy, Debug)]
enum End {
    Sent {
        at_ns: u64,
    },
    Arrived {
        /// When the receiver could take it.
        since_ns: u64,
        at_ns: u64,
    },
}

/// Messages of a communicator.
#[derive(Clone, Debug, Default)]
pub(super) struct Transits {
    pending: HashMap<Place, End>,
    /// One of so many collectives is kept.
    stride: u64,
    pub(super) links: BTreeMap<(i32, i32), Link>,
}

/// Messages from a rank to another.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    /// Time in which the receiver waited for what was in the network.
    pub(super) shares: Shares,
    /// End of that time so far, by channel.
    until_ns: BTreeMap<u32, u64>,
    times_ns: Vec<u64>,
    /// One of so many messages' times is kept.
    stride: usize,
    seen: usize,
}

impl Transits {
    /// Takes one end of a message. Sends and receives have no number that both ends know.
    pub(super) fn add(&mut self, row: &MessageRow) {
        if row.stage == Stage::P2p || row.seq_local == Some(true) || !self.is_kept(row.seq) {
            return;
        }
        let (from, to, end) = match row.op {
            Direction::Send => {
                let Some(at_ns) = row.t_sent_ns.get() else { return };
                (row.rank, row.peer, End::Sent { at_ns })
            }
            Direction::Recv => {
                let Some((at_ns, since_ns)) = row.t_arrived_ns.get().zip(row.begin()) else { return };
                (row.peer, row.rank, End::Arrived { since_ns, at_ns })
            }
        };
        let place = Place { seq: row.seq, channel: row.channel, step: row.step, from, to };
        match (self.pending.remove(&place), end) {
            (Some(End::Sent { at_ns }), End::Arrived { since_ns, at_ns: arrived_ns })
            | (Some(End::Arrived { since_ns, at_ns: arrived_ns }), End::Sent { at_ns }) => {
                self.links.entry((from, to)).or_default().add(row.channel, at_ns, since_ns, arrived_ns);
            }
            _ => {
                self.pending.insert(place, end);
            }
        }
        if self.pending.len() > MAX_PENDING {
            self.stride = self.stride.max(1).saturating_mul(2);
            let stride = self.stride;
            self.pending.retain(|place, _| is_kept(place.seq, stride));
        }
    }

    fn is_kept(&self, seq: u64) -> bool {
        is_kept(seq, self.stride)
    }
}

/// Numbers of measured collectives may have a rhythm of their own.
fn is_kept(seq: u64, stride: u64) -> bool {
    FixedState::with_seed(0).hash_one(seq).is_multiple_of(stride.max(1))
}

impl Link {
    fn add(&mut self, channel: u32, sent_ns: u64, since_ns: u64, arrived_ns: u64) {
        self.shares.connection(channel, false, 0);
        let until = self.until_ns.entry(channel).or_default();
        self.shares.add(false, sent_ns.max(since_ns).max(*until), arrived_ns);
        *until = arrived_ns.max(*until);
        self.seen += 1;
        if self.seen.is_multiple_of(self.stride.max(1)) {
            self.times_ns.push(arrived_ns.saturating_sub(sent_ns));
        }
        if self.times_ns.len() >= MAX_TIMES {
            let mut number = 0usize;
            self.times_ns.retain(|_| {
                number += 1;
                number.is_multiple_of(2)
            });
            self.stride = self.stride.max(1) * 2;
        }
    }

    /// Returns the usual time of a message in the network.
    pub(super) fn typical_ns(&self) -> u64 {
        median(self.times_ns.clone())
    }
}
