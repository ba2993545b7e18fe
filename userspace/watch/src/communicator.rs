//! A communicator over the ranks of this host, from reading to reading. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use dump::{Counting, watched::Counts};

use crate::{
    reading::{CommKey, GpuState, ProcessInfo, ProcessKey, RankCounts, RankInfo, RankReading, Steps},
    rhythm::Rhythm,
};

/// Share of the time, in percent, from which on a GPU counts as busy: a kernel of NCCL that waits keeps it
/// so.
const BUSY: u32 = 90;

/// State of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The process has the communicator.
    Here,
    /// The process has ended.
    Gone,
    /// The process lives, and has no such communicator any more.
    Left,
}

/// A rank of a communicator, as it was seen last.
#[derive(Clone, Debug)]
pub struct RankState {
    pub info: Arc<RankInfo>,
    pub process: Arc<ProcessInfo>,
    pub counts: Counts,
    pub life: Life,
    pub failure: Option<String>,
    steps: Option<Steps>,
    /// Readings at which it alone was behind all others of this host, since the last status.
    pub last_of_all: u32,
    seen_at: Duration,
}

/// Word of counters on whether a rank waits in a communicator that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waits {
    No,
    /// Counters do not tell: the operations do not go through a proxy.
    Unknown,
    /// The same, and a GPU runs something all the time: a kernel that waits does.
    Likely,
    Yes,
}

/// Ranks of one tenant. A tenant can forge ranks of another's communicator; they never hide that its own stand.
#[derive(Clone, Debug)]
struct Part {
    moved_at: Duration,
    /// When counters of one of them were read last.
    read_at: Duration,
    /// It has moved since the reading before.
    moves: bool,
    rhythm: Rhythm,
}

/// A communicator, as it was seen last.
#[derive(Clone, Debug)]
pub struct CommState {
    pub key: Arc<CommKey>,
    pub name: Option<String>,
    pub ranks: BTreeMap<(u32, ProcessKey), RankState>,
    /// When something last moved, or when the communicator was found.
    pub moved_at: Duration,
    /// Something was launched since the communicator was made.
    pub has_moved: bool,
    /// Something moved since the communicator was found.
    pub was_seen_to_move: bool,
    pub(crate) rhythm: Rhythm,
    /// Ranks by tenant ([`ProcessInfo::whose`]).
    parts: BTreeMap<String, Part>,
    pub(crate) was_seen: bool,
}

impl CommState {
    pub(crate) fn new(key: Arc<CommKey>, now: Duration) -> Self {
        Self {
            key,
            name: None,
            ranks: BTreeMap::new(),
            moved_at: now,
            has_moved: false,
            was_seen_to_move: false,
            rhythm: Rhythm::default(),
            parts: BTreeMap::new(),
            was_seen: false,
        }
    }

    /// Takes the reading of a rank.
    pub(crate) fn take(
        &mut self,
        process: &Arc<ProcessInfo>,
        is_live: bool,
        rank: &RankReading,
        now: Duration,
    ) {
        let key = (rank.info.rank, process.key);
        let counts = match &rank.state {
            RankCounts::Read(counts) if is_live => Some(counts),
            _ => None,
        };
        let life = match &rank.state {
            _ if !is_live => Life::Gone,
            RankCounts::Ended => Life::Left,
            RankCounts::Read(_) | RankCounts::Unread => Life::Here,
        };
        self.name = self.name.take().or_else(|| rank.info.name.clone());
        let Some(known) = self.ranks.get_mut(&key) else {
            // A rank that has come is progress of the set-up.
            self.moved_at = now;
            let part = Part { moved_at: now, read_at: now, moves: false, rhythm: Rhythm::default() };
            self.parts.entry(process.whose().to_owned()).or_insert(part).moved_at = now;
            let counts = counts.cloned().unwrap_or_else(|| Counts { is_set_up: true, ..Counts::default() });
            self.has_moved |= counts.has_moved();
            let state = RankState {
                info: Arc::clone(&rank.info),
                process: Arc::clone(process),
                counts,
                life,
                failure: rank.failure.clone(),
                steps: rank.steps,
                last_of_all: 0,
                seen_at: now,
            };
            self.ranks.insert(key, state);
            return;
        };
        (known.life, known.seen_at) = (life, now);
        known.info = Arc::clone(&rank.info);
        let part = self.parts.get_mut(known.process.whose());
        let (Some(counts), Some(part)) = (counts, part) else { return };
        part.read_at = now;
        // Since when it stands is counted from the call on that all ranks make.
        if (counts.is_ending, counts.is_set_up) != (known.counts.is_ending, known.counts.is_set_up) {
            (self.moved_at, part.moved_at) = (now, now);
        }
        known.failure.clone_from(&rank.failure);
        let mut moved = counts.moved_since(&known.counts);
        if moved {
            known.counts.clone_from(counts);
        } else {
            known.counts.has_ops_in_flight = counts.has_ops_in_flight;
            known.counts.is_ending = counts.is_ending;
            known.counts.is_set_up = counts.is_set_up;
        }
        if let Some(steps) = rank.steps {
            let before = known.steps.replace(steps);
            moved |= before.is_some_and(|before| steps == Steps::Moving || before != steps);
        }
        part.moves |= moved;
    }

    /// Ends a reading of these processes: all ranks were taken.
    pub(crate) fn settle(&mut self, read: &BTreeSet<ProcessKey>, now: Duration) {
        for ((_, process), rank) in &mut self.ranks {
            if rank.life == Life::Here && rank.seen_at < now && read.contains(process) {
                rank.life = Life::Left;
            }
        }
        let mut moved = false;
        for part in self.parts.values_mut() {
            let moves = std::mem::take(&mut part.moves);
            if moves {
                part.moved_at = now;
            }
            part.rhythm.note(moves, now);
            moved |= moves;
        }
        if moved {
            self.moved_at = now;
            (self.has_moved, self.was_seen_to_move) = (true, true);
        }
        self.rhythm.note(moved, now);
        let last = self.last();
        if let Some(rank) = last.and_then(|key| self.ranks.get_mut(&key)) {
            rank.last_of_all += 1;
        }
    }

    pub fn here(&self) -> impl Iterator<Item = &RankState> {
        self.ranks.values().filter(|rank| rank.life == Life::Here)
    }

    /// Tells whether no rank of this host is left.
    pub fn is_over(&self) -> bool {
        self.here().next().is_none()
    }

    /// Tells whether a rank of this host is in the set-up.
    pub(crate) fn is_coming(&self) -> bool {
        self.here().any(|rank| !rank.counts.is_set_up)
    }

    /// Tells whether all ranks of this host end it.
    fn is_ending(&self) -> bool {
        self.here().all(|rank| rank.counts.is_ending)
    }

    /// Returns the number of collectives that the rank that is ahead has launched, or of launches where those
    /// are not counted.
    pub fn launched(&self) -> u64 {
        let of = |rank: &RankState| {
            let counts = &rank.counts;
            counts.launched().or(counts.op_count).or(counts.p2p_op_count).unwrap_or_default()
        };
        self.ranks.values().map(of).max().unwrap_or_default()
    }

    pub fn stands_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.moved_at)
    }

    /// Tells whether tenants share it.
    pub(crate) fn is_shared(&self) -> bool {
        self.parts.len() > 1
    }

    /// Returns since when it stands; where tenants share it, since when the ranks of one of them do.
    pub(crate) fn still_since(&self) -> Duration {
        if !self.is_shared() {
            return self.moved_at;
        }
        self.parts_here().map(|part| part.moved_at).min().unwrap_or(self.moved_at)
    }

    /// Returns the time for which ranks of a tenant are known to stand: until their counters were read last. Of what is
    /// not read, nothing is seen to move.
    pub(crate) fn known_to_stand(&self) -> Duration {
        let known = self.parts_here().map(|part| part.read_at.saturating_sub(part.moved_at));
        known.max().unwrap_or_default()
    }

    fn parts_here(&self) -> impl Iterator<Item = &Part> {
        let is_here = |whose: &str| self.here().any(|rank| rank.process.whose() == whose);
        self.parts.iter().filter(move |(whose, _)| is_here(whose)).map(|(_, part)| part)
    }

    /// Returns the time for which the ranks of this tenant stand.
    pub(crate) fn stands_of(&self, whose: &str, now: Duration) -> Duration {
        self.parts.get(whose).map_or(Duration::ZERO, |part| now.saturating_sub(part.moved_at))
    }

    /// Returns the usual iteration; where tenants share it, the shortest of them.
    pub(crate) fn usual(&self) -> Option<Duration> {
        if !self.is_shared() {
            return self.rhythm.usual();
        }
        // None is less than any: an iteration that is shorter than two readings.
        self.parts.values().map(|part| part.rhythm.usual()).min().flatten()
    }

    /// Tells whether this tenant has ranks here that have not moved since.
    pub(crate) fn stands_of_since(&self, whose: &str, since: Duration) -> bool {
        let is_here = self.here().any(|rank| rank.process.whose() == whose);
        is_here && self.parts.get(whose).is_some_and(|part| part.moved_at <= since)
    }

    /// Returns what the ranks of this tenant alone are.
    pub(crate) fn of_tenant(&self, whose: &str) -> Option<Self> {
        if !self.is_shared() {
            return self.parts.contains_key(whose).then(|| self.clone());
        }
        let is_own = |rank: &RankState| rank.process.whose() == whose;
        let own = self.ranks.iter().filter(|(_, rank)| is_own(rank));
        self.part(whose, own.map(|(at, rank)| (*at, rank.clone())).collect())
    }

    /// Tells the ranks of each tenant apart.
    pub(crate) fn apart(mut self) -> Vec<Self> {
        let mut ranks: BTreeMap<String, BTreeMap<(u32, ProcessKey), RankState>> = BTreeMap::new();
        for (at, rank) in std::mem::take(&mut self.ranks) {
            let own = ranks.entry(rank.process.whose().to_owned()).or_default();
            own.insert(at, rank);
        }
        ranks.into_iter().filter_map(|(whose, own)| self.part(&whose, own)).collect()
    }

    /// Makes a communicator of the ranks of one tenant. Those of others are not copied: there can be many, and each
    /// is asked for.
    fn part(&self, whose: &str, ranks: BTreeMap<(u32, ProcessKey), RankState>) -> Option<Self> {
        let part = self.parts.get(whose).filter(|_| !ranks.is_empty())?;
        Some(Self {
            key: Arc::new(CommKey { tenant: Some(whose.to_owned()), ..(*self.key).clone() }),
            name: self.name.clone(),
            ranks,
            moved_at: part.moved_at,
            has_moved: self.has_moved,
            was_seen_to_move: self.was_seen_to_move,
            rhythm: part.rhythm.clone(),
            parts: [(whose.to_owned(), part.clone())].into(),
            was_seen: self.was_seen,
        })
    }

    /// Returns the ranks that have launched fewer collectives than another one of this host that NCCL counts
    /// alike.
    pub fn behind(&self) -> Vec<&RankState> {
        let mut most: BTreeMap<Counting, u64> = BTreeMap::new();
        let counts = || self.here().filter_map(|rank| Some((rank, rank.counts.launched()?)));
        for (rank, count) in counts() {
            let most = most.entry(rank.info.counting).or_default();
            *most = count.max(*most);
        }
        let is_behind = |(rank, count): &(&RankState, u64)| most.get(&rank.info.counting) > Some(count);
        counts().filter(is_behind).map(|(rank, _)| rank).collect()
    }

    /// Returns the key of the only rank that is behind all others.
    fn last(&self) -> Option<(u32, ProcessKey)> {
        let least = self.here().filter_map(|rank| rank.counts.launched()).min()?;
        let mut last = self.here().filter(|rank| rank.counts.launched() == Some(least));
        let only = last.next().filter(|_| last.next().is_none())?;
        let is_ahead = |rank: &RankState| {
            rank.info.counting == only.info.counting && rank.counts.launched() > Some(least)
        };
        self.here().any(is_ahead).then_some((only.info.rank, only.process.key))
    }

    /// Returns the ranks whose process ended while others have the communicator and do not end it.
    pub fn gone(&self) -> Vec<&RankState> {
        if self.is_ending() {
            return Vec::new();
        }
        self.ranks.values().filter(|rank| rank.life == Life::Gone).collect()
    }

    /// Tells whether a rank waits, as far as counters tell, if the communicator stands.
    pub fn waits(&self, gpus: &[GpuState]) -> Waits {
        let mut here = self.here().peekable();
        if here.peek().is_none() {
            return Waits::No;
        }
        if self.is_ending() {
            // Ranks that end a communicator can wait for one that died.
            let has_lost = self.ranks.values().any(|rank| rank.life == Life::Gone);
            return if has_lost { Waits::Yes } else { Waits::Unknown };
        }
        let is_missed = self.ranks.values().any(|rank| rank.life != Life::Here);
        let in_flight = self.here().any(|rank| rank.counts.has_ops_in_flight);
        let is_ended_by_some = self.here().any(|rank| rank.counts.is_ending);
        if is_missed || in_flight || is_ended_by_some || self.is_coming() || !self.behind().is_empty() {
            return Waits::Yes;
        }
        if here.all(|rank| rank.info.has_proxy == Some(true)) {
            return Waits::No;
        }
        let busy = |rank: &RankState| {
            let bus_id = rank.info.bus_id.as_deref()?;
            gpus.iter().find(|gpu| gpu.bus_id == bus_id)?.busy_percent
        };
        let is_idle = |rank: &RankState| busy(rank).is_some_and(|percent| percent < BUSY);
        if self.here().all(is_idle) {
            return Waits::No;
        }
        let is_busy = |rank: &RankState| busy(rank).is_some_and(|percent| percent >= BUSY);
        if self.here().any(is_busy) { Waits::Likely } else { Waits::Unknown }
    }
}
