//! Time of messages in the network, link by link: from the moment at which the sender's network took a
//! message to that at which it was there, by one host's clock.
//!
//! A network that buffers takes a message at once, however slow it is: a sender's own times say nothing of
//! it, and its receiver cannot tell it from a late sender.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher as _, Hash},
};

use flow::schema::{MessageRow, Stage};
use foldhash::fast::FixedState;
use nccl_library::nccl::Direction;

use super::{launches::median, shares::Shares, thinned::Thinned};

/// Most messages of a communicator of which one end was seen; with more, one of two collectives is left out.
const MAX_PENDING: usize = 1 << 16;

/// Most messages of a link whose time is kept; then every second one goes.
const MAX_TIMES: usize = 1 << 12;

/// A message of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    seq: u64,
    pub(super) channel: u32,
    step: u64,
    from: i32,
    to: i32,
}

impl Place {
    /// Returns its sender and its receiver.
    pub(super) fn link(&self) -> (i32, i32) {
        (self.from, self.to)
    }
}

/// What one end saw, by its host's clock.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Sent {
        at_ns: u64,
    },
    Arrived {
        /// When the receiver could take it.
        since_ns: u64,
        at_ns: u64,
    },
}

/// What both ends of a message saw, and who saw it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Both<T> {
    pub(super) from: T,
    pub(super) to: T,
    pub(super) sent_ns: u64,
    /// When the receiver could take it.
    pub(super) since_ns: u64,
    pub(super) arrived_ns: u64,
}

/// Puts what an end saw beside what the other did, which may still be to come.
pub(super) fn join<K: Eq + Hash, T>(
    pending: &mut HashMap<K, (T, End)>,
    message: K,
    by: T,
    end: End,
) -> Option<Both<T>> {
    match (pending.remove(&message), (by, end)) {
        (Some((from, End::Sent { at_ns })), (to, End::Arrived { since_ns, at_ns: arrived_ns }))
        | (Some((to, End::Arrived { since_ns, at_ns: arrived_ns })), (from, End::Sent { at_ns })) => {
            Some(Both { from, to, sent_ns: at_ns, since_ns, arrived_ns })
        }
        (_, seen) => {
            pending.insert(message, seen);
            None
        }
    }
}

/// Messages of a communicator.
#[derive(Clone, Debug, Default)]
pub(super) struct Transits {
    pending: HashMap<Place, ((), End)>,
    /// One of so many collectives is kept.
    stride: u64,
    pub(super) links: BTreeMap<(i32, i32), Link>,
}

/// Messages from a rank to another.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// Time in which the receiver waited for what was in the network.
    pub(super) shares: Shares,
    /// End of that time so far, by channel.
    until_ns: BTreeMap<u32, u64>,
    times_ns: Thinned<u64>,
}

impl Default for Link {
    fn default() -> Self {
        let (shares, until_ns) = (Shares::default(), BTreeMap::new());
        Self { shares, until_ns, times_ns: Thinned::new(MAX_TIMES) }
    }
}

impl End {
    /// Returns it by another clock.
    pub(super) fn by(self, clock: impl Fn(u64) -> u64) -> Self {
        match self {
            Self::Sent { at_ns } => Self::Sent { at_ns: clock(at_ns) },
            Self::Arrived { since_ns, at_ns } => {
                Self::Arrived { since_ns: clock(since_ns), at_ns: clock(at_ns) }
            }
        }
    }
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
        if let Some(Both { sent_ns, since_ns, arrived_ns, .. }) = join(&mut self.pending, place, (), end) {
            self.links.entry((from, to)).or_default().add(row.channel, sent_ns, since_ns, arrived_ns);
        }
        self.thin(MAX_PENDING);
    }

    /// Leaves out collectives until no more than so many messages wait for their other end.
    pub(super) fn thin(&mut self, most: usize) {
        while self.pending.len() > most && self.stride < u64::MAX / 2 {
            self.stride = self.stride.max(1).saturating_mul(2);
            let stride = self.stride;
            self.pending.retain(|place, _| is_kept(place.seq, stride));
        }
    }

    pub(super) fn shrink(&mut self) {
        self.pending.shrink_to_fit();
    }

    /// Returns of how many collectives one is kept.
    pub(super) fn stride(&self) -> u64 {
        self.stride.max(1)
    }

    /// Returns the messages whose other end is on another host, or was not seen.
    pub(super) fn unmatched(&self) -> impl Iterator<Item = (Place, End)> {
        self.pending.iter().map(|(place, ((), end))| (*place, *end))
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
    /// Takes a message, in the order of arrivals on a channel; all moments by one clock.
    pub(super) fn add(&mut self, channel: u32, sent_ns: u64, since_ns: u64, arrived_ns: u64) {
        self.shares.connection(channel, false, 0);
        let until = self.until_ns.entry(channel).or_default();
        self.shares.add(false, sent_ns.max(since_ns).max(*until), arrived_ns);
        *until = arrived_ns.max(*until);
        self.times_ns.add(arrived_ns.saturating_sub(sent_ns));
    }

    /// Returns the usual time of a message in the network.
    pub(super) fn typical_ns(&self) -> u64 {
        median(self.times_ns.values.clone())
    }
}

#[cfg(test)]
mod tests {
    use flow::{made::rows::message_rows, schema::Observed};

    use super::*;

    const MS: u64 = 1_000_000;

    /// Both ends of a message from a rank to another.
    fn ends(seq: u64, (from, to): (i32, i32), sent: u64, since: u64, arrived: u64) -> [MessageRow; 2] {
        let row = |op, rank, peer| MessageRow {
            seq,
            op,
            rank,
            peer,
            stage: Stage::Ring,
            seq_local: None,
            t_sent_ns: Observed::looked_for((op == Direction::Send).then_some(sent)),
            t_arrived_ns: Observed::looked_for((op == Direction::Recv).then_some(arrived)),
            t_posted_ns: Observed::looked_for(None),
            t_slot_free_ns: Observed::looked_for(Some(since)),
            ..message_rows()[0].clone()
        };
        [row(Direction::Send, from, to), row(Direction::Recv, to, from)]
    }

    #[test]
    fn a_message_is_in_the_network_until_it_is_there_whichever_end_comes_first() {
        let mut transits = Transits::default();
        for seq in 0..20 {
            let begun = seq * 500 * MS;
            let slow = ends(seq, (0, 1), begun, begun, begun + 400 * MS);
            // The receiver was busy with something else: it did not wait.
            let fast = ends(seq, (1, 0), begun, begun + 390 * MS, begun + 400 * MS);
            slow.iter().chain(fast.iter().rev()).for_each(|row| transits.add(row));
        }
        assert!(transits.pending.is_empty());
        let percent = |ranks| {
            let link: &Link = &transits.links[&ranks];
            let (_, waiting) = link.shares.means((0, 20 * 500 * MS - 1)).unwrap();
            (link.typical_ns() / MS, format!("{:.0} %", waiting.percent))
        };
        assert_eq!(percent((0, 1)), (400, "80 %".to_owned()));
        assert_eq!(percent((1, 0)), (400, "2 %".to_owned()));
    }

    #[test]
    fn messages_of_which_one_end_was_seen_have_a_bound() {
        let mut transits = Transits::default();
        for seq in 0..200_000 {
            transits.add(&ends(seq, (0, 1), 0, 0, MS)[0]);
        }
        assert!(transits.pending.len() <= MAX_PENDING);
        for seq in 0..200_000 {
            transits.add(&ends(seq, (0, 1), 0, 0, MS)[1]);
        }
        assert!(transits.pending.is_empty(), "both ends leave out the same");
        let link = &transits.links[&(0, 1)];
        assert!(
            link.times_ns.seen > 20_000 && link.times_ns.values.len() < MAX_TIMES,
            "{}",
            link.times_ns.seen
        );
    }
}
