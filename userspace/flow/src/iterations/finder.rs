//! Finds the smallest part of a sequence that recurs.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Collectives of a process that are looked at; a part can have at most a third of them.
pub const MAX_COLLECTIVES: usize = 32_768;

/// Repetitions in a row that make a part recur.
const REPETITIONS: usize = 3;

/// Collectives that must be repetitions of a part before it is taken for the iteration …
const ENOUGH_COLLECTIVES: usize = 256;

/// … or else the time that it must go on. Until then, the part can be one of the layers of a step.
const ENOUGH_NS: u64 = 10_000_000_000;

/// A collective as a process called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    /// Hash of function, size, datatype and communicator, by which collectives are compared.
    symbol: u64,
    /// Hash with the communicator's size instead of its identity: equal on ranks of several communicators.
    shape: u64,
    /// When it was called or launched, in nanoseconds.
    pub ts_ns: u64,
    /// `commHash`, and NCCL's number of the collective: the same on all ranks.
    pub comm_hash: Option<u64>,
    pub seq: u64,
}

impl Collective {
    pub fn new(
        (function, count, datatype): (&str, Option<u64>, Option<&str>),
        (comm_hash, n_ranks): (Option<u64>, i32),
        seq: u64,
        ts_ns: u64,
    ) -> Self {
        let hash = |with: Option<u64>| {
            let mut hasher = DefaultHasher::new();
            (function, count, datatype, n_ranks, with).hash(&mut hasher);
            hasher.finish()
        };
        Self { symbol: hash(comm_hash), shape: hash(None), ts_ns, comm_hash, seq }
    }
}

/// The iteration: the part of the sequence that recurs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period {
    /// Symbol and shape of each collective of an iteration, beginning with the first.
    part: Vec<(u64, u64)>,
    /// Collectives of the sequence that lie in repetitions of the iteration.
    pub covered: usize,
}

impl Period {
    /// Returns the number of collectives of an iteration.
    pub fn collectives(&self) -> usize {
        self.part.len()
    }

    /// Lets iterations begin where those of `other` begin, if both have the same shapes.
    pub fn align_with(&mut self, other: &Self) {
        let length = self.part.len();
        if length != other.part.len() {
            return;
        }
        let is_at = |at: &usize| {
            let turned = self.part.iter().cycle().skip(*at).take(length);
            turned.map(|(_, shape)| shape).eq(other.part.iter().map(|(_, shape)| shape))
        };
        if let Some(at) = (0..length).find(is_at) {
            self.part.rotate_left(at);
        }
    }

    pub(super) fn is_at(&self, collectives: &[Collective]) -> bool {
        collectives.len() >= self.part.len()
            && collectives
                .iter()
                .zip(&self.part)
                .all(|(collective, (symbol, _))| collective.symbol == *symbol)
    }
}

/// Looks for the iteration of a process.
#[derive(Clone, Debug, Default)]
pub struct IterationFinder {
    collectives: Vec<Collective>,
    /// Number of collectives at which another look is worth its time.
    next_look: usize,
}

/// A stretch of a sequence in which a part recurs: first index, and the index after the last.
type Stretch = (usize, usize);

impl IterationFinder {
    /// Takes the next collective. Collectives after [`MAX_COLLECTIVES`] are not kept.
    pub fn push(&mut self, collective: Collective) {
        if self.collectives.len() < MAX_COLLECTIVES {
            self.collectives.push(collective);
        }
    }

    pub fn collectives(&self) -> &[Collective] {
        &self.collectives
    }

    /// Forgets the first `count` collectives, once it is known what recurs.
    pub fn forget(&mut self, count: usize) {
        self.collectives.drain(..count.min(self.collectives.len()));
    }

    pub fn is_full(&self) -> bool {
        self.collectives.len() >= MAX_COLLECTIVES
    }

    /// Tells whether enough collectives have come since this was last true: a look takes time that grows with
    /// the square of their number.
    pub fn is_due(&mut self) -> bool {
        let length = self.collectives.len();
        let is_due = length >= self.next_look;
        if is_due {
            self.next_look = length + length / 4 + 1;
        }
        is_due
    }

    /// Finds the smallest part that recurs. `is_last`: no more collectives will come, so less evidence is
    /// enough.
    pub fn find(&self, is_last: bool) -> Option<Period> {
        let symbols: Vec<u64> = self.collectives.iter().map(|collective| collective.symbol).collect();
        let mut stretches = Vec::new();
        for length in 1..=symbols.len() / REPETITIONS {
            find_stretches(&symbols, length, &mut stretches);
            if self.is_iteration(&stretches, length, is_last) {
                return self.period(&stretches, length);
            }
        }
        None
    }

    fn is_iteration(&self, stretches: &[Stretch], length: usize, is_last: bool) -> bool {
        let (Some((first, _)), Some((_, end))) = (stretches.first(), stretches.last()) else { return false };
        let covered: usize = stretches.iter().map(|(from, until)| until - from).sum();
        let at = |index: usize| self.collectives.get(index).map_or(0, |collective| collective.ts_ns);
        let is_long = covered >= ENOUGH_COLLECTIVES || at(end - 1).saturating_sub(at(*first)) >= ENOUGH_NS;
        // The part covers half of all collectives and four fifths of those since it began, and was not left
        // long ago.
        let is_most = covered * 2 >= self.collectives.len() && covered * 5 >= (end - first) * 4;
        let is_open = self.collectives.len() - end <= REPETITIONS * length;
        (is_long || is_last) && is_most && is_open && !is_part(stretches, length, is_last)
    }

    fn period(&self, stretches: &[Stretch], length: usize) -> Option<Period> {
        let longest = stretches.iter().max_by_key(|(from, until)| until - from)?;
        let collectives = self.collectives.get(longest.0..longest.1)?;
        let part = collectives.get(..length)?.iter();
        let mut part: Vec<_> = part.map(|collective| (collective.symbol, collective.shape)).collect();
        part.rotate_left(longest_pause(collectives, length));
        let covered = stretches.iter().map(|(from, until)| until - from).sum();
        Some(Period { part, covered })
    }
}

/// Finds the stretches in which a part of this length recurs often enough.
fn find_stretches(symbols: &[u64], length: usize, stretches: &mut Vec<Stretch>) {
    stretches.clear();
    let mut begin = 0;
    let pairs = symbols.iter().zip(symbols.iter().skip(length)).map(|(first, second)| first == second);
    for (at, is_same) in pairs.chain([false]).enumerate() {
        if !is_same {
            if at - begin >= (REPETITIONS - 1) * length {
                stretches.push((begin, at + length));
            }
            begin = at + 1;
        }
    }
    keep_alike(symbols, length, stretches);
}

/// Keeps the stretches in which the same part recurs as in the longest one. They are compared by sums, which
/// are the same wherever in the cycle a stretch begins.
fn keep_alike(symbols: &[u64], length: usize, stretches: &mut Vec<Stretch>) {
    let sum = |(from, _): &Stretch| {
        let part = symbols.iter().skip(*from).take(length);
        part.fold(0u64, |sum, symbol| sum.wrapping_add(*symbol))
    };
    let longest = stretches.iter().max_by_key(|(from, until)| until - from).map(sum);
    stretches.retain(|stretch| Some(sum(stretch)) == longest);
}

/// Tells whether what recurs is, or may be, interrupted regularly: then it is only a part of an iteration.
fn is_part(stretches: &[Stretch], length: usize, is_last: bool) -> bool {
    let lengths: Vec<usize> = stretches.iter().map(|(from, until)| until - from).collect();
    match lengths.as_slice() {
        [] | [_] => false,
        // A single interruption does not show whether interruptions are regular.
        [_, _] => !is_last,
        // The first stretch may have begun before we looked, and the last goes on.
        [first, between @ .., last] => {
            let longest = between.iter().copied().max().unwrap_or(0);
            let is_even = between.iter().all(|other| longest - other < length);
            is_even && *first < longest + length && *last < longest + length
        }
    }
}

/// Returns the index of the collective of a part before which the median pause is longest.
fn longest_pause(collectives: &[Collective], length: usize) -> usize {
    let median = |place: usize| {
        let mut pauses: Vec<u64> = collectives
            .windows(2)
            .skip((place + length - 1) % length)
            .step_by(length)
            .map(|pair| pair[1].ts_ns.saturating_sub(pair[0].ts_ns))
            .collect();
        let middle = pauses.len() / 2;
        if pauses.is_empty() { 0 } else { *pauses.select_nth_unstable(middle).1 }
    };
    (0..length).max_by_key(|place| (median(*place), length - place)).unwrap_or(0)
}

/// The beginning of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// First collective of the iteration.
    pub first: Collective,
    /// Index of that collective in the sequence.
    pub at: usize,
    /// When the collective after the iteration's last one came.
    pub next_ns: Option<u64>,
    /// Iterations before this one since the first mark. A disturbed iteration counts, but has no mark.
    pub number: u64,
}

/// Returns the beginnings of iterations in a sequence; each iteration has all of its collectives there.
pub fn marks(collectives: &[Collective], period: &Period) -> Vec<Mark> {
    let length = period.collectives().max(1);
    let (mut marks, mut at, mut last, mut number) = (Vec::new(), 0, None::<usize>, 0);
    while let Some(rest) = collectives.get(at..) {
        let Some(first) = rest.first() else { break };
        if !period.is_at(rest) {
            at += 1;
            continue;
        }
        if let Some(last) = last {
            // Rounded: other collectives came in between, or an iteration was disturbed.
            let passed = (at - last + length / 2) / length;
            number += passed.max(1) as u64;
        }
        let next_ns = rest.get(length).map(|next| next.ts_ns);
        marks.push(Mark { first: *first, at, next_ns, number });
        last = Some(at);
        at += length;
    }
    marks
}
