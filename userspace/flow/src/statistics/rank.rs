//! Statistics of one rank of one communicator.

use std::collections::BTreeMap;

use super::{
    durations::{Durations as _, Histogram, Sum},
    links::LinkSums,
};
use crate::schema::{ApiCallRow, LaunchKind, MessageRow, MessageSums, Observed, Op, named::named};
use nccl_library::nccl::{Algorithm, Direction};

/// Words of 64 ops that are remembered: the last 4,033 ops at least. The channels of an op come within one
/// plan, or, where messages are measured, when the last of them is done.
const WORDS: usize = 64;

/// The latest ops of a rank, by number.
#[derive(Clone, Debug)]
pub(super) struct OpWindow {
    words: [u64; WORDS],
    /// The newest word; `None` before the first op.
    newest: Option<u64>,
}

/// Answer of a window about an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    First,
    Again,
    /// So old that it is not known whether the op was seen.
    Forgotten,
}

impl Default for OpWindow {
    fn default() -> Self {
        Self { words: [0; WORDS], newest: None }
    }
}

impl OpWindow {
    /// Notes a record of the op with this number.
    pub(super) fn note(&mut self, number: u64) -> Seen {
        let word = number / 64;
        match self.newest {
            Some(newest) if word > newest => {
                for between in newest + 1..=word.min(newest.saturating_add(WORDS as u64)) {
                    self.words[slot(between)] = 0;
                }
                self.words[slot(word)] = 0;
                self.newest = Some(word);
            }
            Some(newest) if word + WORDS as u64 <= newest => return Seen::Forgotten,
            Some(_) => {}
            None => self.newest = Some(word),
        }
        let (bits, bit) = (&mut self.words[slot(word)], 1 << (number % 64));
        let seen = if *bits & bit == 0 { Seen::First } else { Seen::Again };
        *bits |= bit;
        seen
    }
}

/// Windows of a rank: of its collectives, and of its sends and receives, which are numbered apart.
pub(super) type OpWindows = [OpWindow; 2];

fn slot(word: u64) -> usize {
    usize::try_from(word % WORDS as u64).unwrap_or(0)
}

/// Kinds of op and names of functions that are kept apart for each rank. NCCL has 20 functions, 7 algorithms
/// and 3 protocols, of which a job uses some; names come from the target's library, which can have any.
const MAX_KINDS: usize = 48;
/// Peers that are kept apart for each rank. A ring has two, an all-to-all as many as there are ranks.
const MAX_PEERS: usize = 128;

/// Kind of op: the function with its algorithm and protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpKind {
    /// Function: `AllReduce`, `Send` …; `None`: not known, or beyond the number that is kept apart.
    pub coll: Option<String>,
    /// Algorithm, or kind of a launch without proxy ops; `None` for p2p, and before 2.24.
    pub algorithm: Option<&'static str>,
    pub protocol: Option<&'static str>,
}

/// Ops of one kind. An op counts once, on however many channels it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStatistics {
    pub ops: u64,
    /// Bytes that the ops were called with: elements times their size, or the bytes of a send or receive.
    pub bytes: u64,
    /// Ops whose bytes are not known.
    pub unsized_ops: u64,
}

/// Calls of one function of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallStatistics {
    pub calls: u64,
    /// Bytes of the calls: elements times their size.
    pub bytes: u64,
    /// Calls that returned an error; where returns are traced.
    pub errors: u64,
    /// Measured: time on the calling thread; where returns are traced.
    pub host: Histogram,
}

named! {
    /// Kind of connection between a rank and a peer: NCCL's transports.
    #[derive(PartialOrd, Ord, Hash)]
    PeerKind {
        /// The network.
        Net = "NET",
        /// GPU to GPU, over NVLink or PCIe.
        P2p = "P2P",
        /// Shared memory of the host.
        Shm = "SHM",
        /// The network's own reduction (CollNet).
        Col = "COL",
        /// Another transport, or one whose name could not be read.
        Other = "other",
    }
}

impl PeerKind {
    pub fn of(transport: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.name() == transport).unwrap_or(Self::Other)
    }
}

/// Traffic in one direction over one kind of connection.
pub type Traffic = LinkSums<Histogram>;

/// Sums over the messages with one peer.
pub type PeerStatistics = LinkSums<Sum>;

/// All statistics of a rank.
#[derive(Clone, Debug, Default)]
pub struct RankStatistics {
    pub n_ranks: i32,
    /// Ops by kind, in the order in which kinds were first seen.
    pub ops: Vec<(OpKind, OpStatistics)>,
    /// Calls by function.
    pub calls: Vec<(String, CallStatistics)>,
    pub traffic: BTreeMap<(PeerKind, Direction), Traffic>,
    pub peers: BTreeMap<(Direction, i32), PeerStatistics>,
    /// Peers beyond the number that is kept apart, together.
    pub folded_peers: PeerStatistics,
    /// When the latest op was planned or posted, or a message came to its end: `CLOCK_MONOTONIC` nanoseconds.
    pub last_ns: u64,
    /// Ops (times channels) that can lack something, as records of their process were lost.
    pub incomplete: u64,
    /// Ops (times channels) that were computed from their plan's device work and not seen themselves.
    pub derived: u64,
    /// Records that came so long after the first of their op that it is not known whether the op was counted;
    /// it was not counted again.
    pub late: u64,
}

impl RankStatistics {
    /// Counts an op on a channel.
    pub(super) fn op(&mut self, op: &Op, windows: &mut OpWindows) {
        let row = &op.row;
        self.n_ranks = row.n_ranks;
        self.last_ns = self.last_ns.max(row.post_ts_ns.unwrap_or(row.ts_ns));
        self.incomplete += u64::from(row.incomplete);
        self.derived += u64::from(row.derived);
        let [collectives, p2p] = windows;
        // A launch of a graph replays each of its ops once, in one line, with the captured op's number.
        if row.graph_launch.is_some() {
            self.count_op(op);
            return;
        }
        let window = if row.seq & 1 == 0 { collectives } else { p2p };
        match window.note(row.seq >> 1) {
            Seen::First => self.count_op(op),
            Seen::Again => {}
            Seen::Forgotten => self.late += 1,
        }
        for peer in &row.peers {
            self.traffic.entry((PeerKind::of(&peer.transport), peer.op)).or_default();
            if self.peers.len() < MAX_PEERS {
                self.peers.entry((peer.op, peer.peer)).or_default();
            }
        }
    }

    /// Counts messages of an op that was counted.
    pub(super) fn messages(&mut self, messages: &[MessageRow]) {
        for with_peer in messages.chunk_by(|a, b| (a.op, a.peer) == (b.op, b.peer)) {
            let Some(MessageRow { op, peer, transport, .. }) = with_peer.first() else { continue };
            let traffic = self.traffic.entry((PeerKind::of(transport), *op)).or_default();
            let sums = self.peers.get_mut(&(*op, *peer)).unwrap_or(&mut self.folded_peers);
            for message in with_peer {
                traffic.add(message);
                sums.add(message);
                self.last_ns = self.last_ns.max(message.t_end_ns.get().unwrap_or(0));
            }
        }
    }

    /// Counts messages that were only planned, of an op that was counted.
    pub(super) fn message_sums(&mut self, sums: &[MessageSums]) {
        for with_peer in sums {
            let traffic = self.traffic.entry((PeerKind::of(&with_peer.transport), with_peer.op)).or_default();
            traffic.add_sums(with_peer);
        }
    }

    fn count_op(&mut self, op: &Op) {
        let row = &op.row;
        let coll = row.coll.as_deref().filter(|name| is_plain(name));
        // A launch without proxy ops has its kind in place of an algorithm, and no protocol.
        let algorithm = row.launch.map(LaunchKind::name).or(row.algorithm.map(Algorithm::name));
        let protocol = row.launch.is_none().then(|| row.protocol.name());
        let at = self.ops.iter().position(|(kind, _)| {
            kind.coll.as_deref() == coll && kind.algorithm == algorithm && kind.protocol == protocol
        });
        let at = at.unwrap_or_else(|| {
            if self.ops.len() < MAX_KINDS {
                let coll = coll.map(str::to_owned);
                self.ops.push((OpKind { coll, algorithm, protocol }, OpStatistics::default()));
            } else if self.ops.len() == MAX_KINDS {
                let rest = OpKind { coll: None, algorithm: None, protocol: None };
                self.ops.push((rest, OpStatistics::default()));
            }
            self.ops.len() - 1
        });
        let Some((_, statistics)) = self.ops.get_mut(at) else { return };
        statistics.ops += 1;
        match op.call_bytes {
            Some(bytes) => statistics.bytes = statistics.bytes.saturating_add(bytes),
            None => statistics.unsized_ops += 1,
        }
    }

    /// Counts a call of the API.
    pub(super) fn call(&mut self, row: &ApiCallRow) {
        if let Some(n_ranks) = row.n_ranks {
            self.n_ranks = n_ranks;
        }
        self.last_ns = self.last_ns.max(row.ts_ns);
        let name = Some(row.function.as_str()).filter(|name| is_plain(name)).unwrap_or(OTHER);
        let at_of = |calls: &[(String, _)], name: &str| calls.iter().position(|(known, _)| known == name);
        let name =
            if self.calls.len() < MAX_KINDS || at_of(&self.calls, name).is_some() { name } else { OTHER };
        let at = at_of(&self.calls, name).unwrap_or_else(|| {
            self.calls.push((name.to_owned(), CallStatistics::default()));
            self.calls.len() - 1
        });
        let Some((_, call)) = self.calls.get_mut(at) else { return };
        call.calls += 1;
        call.bytes = call.bytes.saturating_add(row.bytes.unwrap_or(0));
        if let (Some(host_ns), Observed::Known(result)) = (row.host_ns.get(), &row.result) {
            call.host.note(host_ns);
            call.errors += u64::from(*result != "ncclSuccess" && *result != "ncclInProgress");
        }
    }
}

/// Name that stands for everything beyond a limit.
pub const OTHER: &str = "other";

/// Tells whether a name is like those of NCCL's functions. Names come from the target's library; other names
/// are counted together.
fn is_plain(name: &str) -> bool {
    (1..=48).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_op_is_new_once_however_its_records_interleave() {
        let mut window = OpWindow::default();
        let order = [0, 1, 0, 1, 5, 3, 5, 64, 0, 70, 64, 4000, 4000, 70];
        let first: Vec<u64> =
            order.into_iter().filter(|number| window.note(*number) == Seen::First).collect();
        assert_eq!(first, [0, 1, 5, 3, 64, 70, 4000]);
    }

    #[test]
    fn what_is_far_back_is_forgotten_and_jumps_forget_all() {
        let mut window = OpWindow::default();
        window.note(10);
        assert_eq!(window.note(10 + 64 * 64), Seen::First);
        assert_eq!(window.note(10), Seen::Forgotten);
        assert_eq!(window.note(1 << 61), Seen::First);
        assert_eq!(window.note((1 << 61) - 3), Seen::First, "not taken for one of an earlier round");
        assert_eq!(window.note(1 << 61), Seen::Again);
    }
}
