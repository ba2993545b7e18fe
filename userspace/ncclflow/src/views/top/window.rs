//! Readings of the last minute. Who is waited for, and who does the same, is judged over several refreshes: a
//! reading can fall between the ends of one op on two ranks, and then one of them seems to wait alone.

use std::collections::VecDeque;

use super::rates::{RankRates, Snapshot};
use flow::statistics::{RankKey, RankStatistics, Statistics};

const SECOND: u64 = 1_000_000_000;

/// Least time between two readings that are kept: a dozen of them take some MB at most hosts.
const STEP_NS: u64 = 5 * SECOND;
/// Shortest time that says who is waited for.
const LEAST_NS: u64 = 10 * SECOND;
/// Time that is judged where it has enough ops; otherwise it is longer.
const USUAL_NS: u64 = 30 * SECOND;
/// Age from which a reading is dropped, if there are later ones.
const MOST_NS: u64 = 60 * SECOND;
/// Readings that are kept however old they are: with fewer there is no time within the time.
const LEAST_KEPT: usize = 3;
/// Ops of each rank that say who is waited for: of fewer, those that a reading parts are too many.
const LEAST_OPS: u64 = 4;
/// Age from which a reading has later ends of the same ops after it, on whatever rank.
const SETTLED_NS: u64 = SECOND;

/// Earlier readings, the latest last.
#[derive(Debug, Default)]
pub(super) struct Window {
    kept: VecDeque<Snapshot>,
    /// There is one interval only, whose first reading is the one that is kept.
    is_one: bool,
}

/// Time over which the ranks of a communicator are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'r> {
    pub(super) since: &'r Snapshot,
    /// Says who is waited for; `None`: not yet.
    pub(super) judged: Option<Judged<'r>>,
}

/// Two times over which waits are added up. The first lies within the second: an op whose ends on two ranks
/// are on both sides of a reading never counts as a wait for a rank without counting as its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged<'r> {
    /// For waits of others for a rank.
    pub(super) inner: [&'r Statistics; 2],
    pub(super) inner_ns: u64,
    /// For a rank's own waits.
    pub(super) outer: [&'r Statistics; 2],
    pub(super) outer_ns: u64,
}

impl Window {
    /// Makes the only interval there is: that of `--once`, or of a whole recording.
    pub(super) fn one(before: &Snapshot) -> Self {
        Self { kept: VecDeque::from([before.clone()]), is_one: true }
    }

    /// Keeps a reading, and drops those that are too old.
    pub(super) fn note(&mut self, now: &Snapshot) {
        let age = |reading: &Snapshot| now.at_ns.saturating_sub(reading.at_ns);
        if self.kept.back().is_none_or(|last| age(last) >= STEP_NS) {
            self.kept.push_back(now.clone());
        }
        while self.kept.len() > LEAST_KEPT && self.kept.get(1).is_some_and(|second| age(second) >= MOST_NS) {
            self.kept.pop_front();
        }
    }

    /// Returns the time over which these ranks of a communicator are compared, who were its members all the
    /// time.
    pub(super) fn span<'r>(&'r self, members: &[RankRates], now: &'r Snapshot) -> Option<Span<'r>> {
        let keys: Vec<RankKey> = members.iter().filter_map(|rank| rank.key).collect();
        let age = |reading: &Snapshot| now.at_ns.saturating_sub(reading.at_ns);
        let is_full = |since: &Snapshot| {
            let ops = |reading: &Snapshot, key| reading.statistics.ranks.get(key).map_or(0, |rank| ops(rank));
            keys.iter().all(|key| ops(now, key).saturating_sub(ops(since, key)) >= LEAST_OPS)
        };
        let first = self.kept.iter().position(|since| self.is_one || has_members(since, &keys))?;
        let usable = || self.kept.iter().enumerate().skip(first);
        let usual = usable().rfind(|(at, since)| {
            at + LEAST_KEPT <= self.kept.len() && age(since) >= USUAL_NS && is_full(since)
        });
        let (at, since) = usual.or_else(|| usable().next())?;
        let judged = || {
            let (outer, outer_ns) = ([&*since.statistics, &*now.statistics], age(since));
            if self.is_one {
                return Some(Judged { inner: outer, inner_ns: outer_ns, outer, outer_ns });
            }
            let from = self.kept.get(at + 1)?;
            let until = self.kept.iter().rfind(|reading| age(reading) >= SETTLED_NS)?;
            let inner_ns = until.at_ns.checked_sub(from.at_ns).filter(|ns| *ns > outer_ns / 4)?;
            (outer_ns >= LEAST_NS).then_some(Judged {
                inner: [&from.statistics, &until.statistics],
                inner_ns,
                outer,
                outer_ns,
            })
        };
        Some(Span { since, judged: if is_full(since) { judged() } else { None } })
    }
}

/// Tells whether a communicator had these members, in the order of their keys.
fn has_members(reading: &Snapshot, keys: &[RankKey]) -> bool {
    let Some(first) = keys.first() else { return false };
    let least = RankKey { rank: i32::MIN, pid: 0, ..*first };
    let most = RankKey { rank: i32::MAX, pid: u32::MAX, ..*first };
    reading.statistics.ranks.range(least..=most).map(|(key, _)| key).eq(keys)
}

fn ops(rank: &RankStatistics) -> u64 {
    let ops = rank.ops.iter().map(|(_, op)| op.ops);
    ops.chain(rank.calls.iter().map(|(_, call)| call.calls)).fold(0, u64::saturating_add)
}
