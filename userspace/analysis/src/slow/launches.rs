//! Who launches the same collective last, by one host's clock.
//!
//! A rank whose host is late launches all collectives of an iteration late. In a job that never waits for its
//! GPUs, launches run ahead of them, and say little.

use std::collections::BTreeMap;

use flow::schema::StackId;

/// Number of collectives in a row that are kept or left out together.
const BLOCK: u64 = 512;

/// Launches of the ranks of a communicator that one host has, by NCCL's number of the collective.
#[derive(Clone, Debug, Default)]
pub(super) struct Launches {
    ranks: BTreeMap<i32, Vec<(u64, u64)>>,
    /// Call stacks of launches, where they were recorded.
    stacks: BTreeMap<i32, BTreeMap<u64, StackId>>,
    /// One of so many blocks is kept.
    stride: u64,
    count: usize,
}

/// An iteration of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IterationLaunches {
    pub(super) number: u64,
    /// Wall time of its first launch, by the rank in the middle.
    pub(super) begun_ns: u64,
    /// Time until the next iteration, by the rank in the middle; `None`: the next one was not seen.
    pub(super) lasted_ns: Option<u64>,
    /// Lateness of each rank, in the order of [`Late::ranks`]; 0 for those that are not late.
    pub(super) late_ns: Box<[u64]>,
    /// Call stack of the launch at which each rank became late, in the same order; none, if no stacks were
    /// recorded.
    pub(super) late_at: Box<[Option<StackId>]>,
}

/// How late the ranks of a host were in each iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Late {
    pub(super) ranks: Vec<i32>,
    pub(super) iterations: Vec<IterationLaunches>,
}

impl Launches {
    /// Takes the launch of a collective. `most`: number of launches to keep, at most.
    pub(super) fn add(&mut self, rank: i32, number: u64, wall_ns: u64, most: usize) {
        if !self.is_kept(number) {
            return;
        }
        self.ranks.entry(rank).or_default().push((number, wall_ns));
        self.count += 1;
        if self.count > most {
            self.stride = self.stride.max(1) * 2;
            let stride = self.stride;
            self.ranks
                .values_mut()
                .for_each(|launches| launches.retain(|(number, _)| (number / BLOCK).is_multiple_of(stride)));
            self.count = self.ranks.values().map(Vec::len).sum();
            self.stacks
                .values_mut()
                .for_each(|stacks| stacks.retain(|number, _| (number / BLOCK).is_multiple_of(stride)));
        }
    }

    /// Takes the call stack of a launch.
    pub(super) fn add_stack(&mut self, rank: i32, number: u64, stack: StackId) {
        if self.is_kept(number) {
            self.stacks.entry(rank).or_default().insert(number, stack);
        }
    }

    /// Returns them by another clock.
    pub(super) fn by(&self, clock: impl Fn(u64) -> u64) -> Self {
        let mut made = Self::default();
        made.append(self, clock);
        made
    }

    /// Takes those of ranks on another host. `clock`: returns a time of that host by the common clock.
    pub(super) fn append(&mut self, more: &Self, clock: impl Fn(u64) -> u64) {
        self.stride = self.stride.max(more.stride);
        for (rank, launches) in &more.ranks {
            let launches = launches.iter().map(|(number, wall_ns)| (*number, clock(*wall_ns)));
            self.ranks.entry(*rank).or_default().extend(launches);
        }
        self.stacks.extend(more.stacks.iter().map(|(rank, stacks)| (*rank, stacks.clone())));
    }

    /// Gives back memory, as no more come.
    pub(super) fn shrink(&mut self) {
        self.ranks.values_mut().for_each(Vec::shrink_to_fit);
    }

    fn is_kept(&self, number: u64) -> bool {
        (number / BLOCK).is_multiple_of(self.stride.max(1))
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = i32> {
        self.ranks.keys().copied()
    }

    /// Returns the number of collectives of the rank that has most, and the wall times of the first and the
    /// last.
    pub(super) fn span(&self) -> Option<(usize, u64, u64)> {
        let launches = self.ranks.values().max_by_key(|launches| launches.len())?;
        let ((_, first), (_, last)) = (launches.first()?, launches.last()?);
        Some((launches.len(), *first, *last))
    }

    /// Returns the lateness of the ranks, for each iteration. `sequence`: number of collectives in the
    /// smallest sequence that recurs; an iteration can have it several times. `error_ns`: by how much launches
    /// can seem to be apart, and are not.
    pub(super) fn late(&self, sequence: u64, error_ns: u64) -> Late {
        let ranks: Vec<i32> = self.ranks().collect();
        let by_number = self.by_number(ranks.len());
        let per_iteration = sequence.max(1) * repetitions(&by_number, sequence.max(1));
        let begin = first_of_iteration(&by_number, per_iteration);
        let mut late = Late { ranks, iterations: Vec::new() };
        let of_iteration = |number: u64| (number + per_iteration - begin) / per_iteration;
        for iteration in by_number.chunk_by(|one, other| of_iteration(one.0) == of_iteration(other.0)) {
            let Some((first, launches)) = iteration.first() else { continue };
            let number = of_iteration(*first);
            if iteration.len() as u64 != per_iteration {
                continue;
            }
            let mut by_rank = vec![Vec::with_capacity(iteration.len()); launches.len()];
            for (_, launches) in iteration {
                for (rank, ns) in by_rank.iter_mut().zip(lateness(launches, error_ns)) {
                    rank.push(ns);
                }
            }
            let late_at = self.late_at(iteration, &by_rank, &late.ranks);
            let late_ns = by_rank.into_iter().map(median).collect();
            let begun_ns = median(launches.clone());
            late.iterations.push(IterationLaunches { number, begun_ns, lasted_ns: None, late_ns, late_at });
        }
        let begins: Vec<(u64, u64)> =
            late.iterations.iter().map(|iteration| (iteration.number, iteration.begun_ns)).collect();
        for (iteration, (next, until)) in late.iterations.iter_mut().zip(begins.into_iter().skip(1)) {
            iteration.lasted_ns =
                (next == iteration.number + 1).then(|| until.saturating_sub(iteration.begun_ns));
        }
        late
    }

    /// Returns the call stack of the launch of each rank at which it became late: by most of all. `by_rank`:
    /// lateness at each launch of the iteration.
    fn late_at(
        &self,
        iteration: &[(u64, Vec<u64>)],
        by_rank: &[Vec<u64>],
        ranks: &[i32],
    ) -> Box<[Option<StackId>]> {
        if self.stacks.is_empty() {
            return Box::default();
        }
        let of_rank = |(rank, late): (&i32, &Vec<u64>)| {
            let before = std::iter::once(0).chain(late.iter().copied());
            let more = late.iter().zip(before).map(|(late, before)| late.saturating_sub(before));
            // Of equal ones the first.
            let (at, more) = more.enumerate().max_by_key(|(at, more)| (*more, usize::MAX - at))?;
            let (number, _) = iteration.get(at).filter(|_| more > 0)?;
            self.stacks.get(rank)?.get(number).copied()
        };
        ranks.iter().zip(by_rank).map(of_rank).collect()
    }

    /// Returns the collectives that all ranks launched, with their times in the order of ranks.
    fn by_number(&self, ranks: usize) -> Vec<(u64, Vec<u64>)> {
        let mut by_number: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (at, launches) in self.ranks.values().enumerate() {
            for (number, ns) in launches.iter().filter(|(number, _)| self.is_kept(*number)) {
                if at == 0 {
                    by_number.insert(*number, vec![*ns]);
                } else if let Some(times) = by_number.get_mut(number).filter(|times| times.len() == at) {
                    times.push(*ns);
                }
            }
        }
        by_number.into_iter().filter(|(_, times)| times.len() == ranks).collect()
    }
}

/// Most repetitions of a sequence that are looked for in an iteration, and most collectives that are looked
/// at.
const MAX_REPETITIONS: u64 = 64;
const LOOKED_AT: usize = 8192;

/// Iterations that must be seen with a rhythm.
const MIN_ITERATIONS: usize = 8;

/// Returns how often a sequence comes in an iteration: layers, or parts of a gradient, are alike. The rhythm
/// of the launches tells: the pauses between them recur.
fn repetitions(by_number: &[(u64, Vec<u64>)], sequence: u64) -> u64 {
    let looked_at = by_number.get(..by_number.len().min(LOOKED_AT)).unwrap_or_default();
    let mut pauses = pauses_of_all(looked_at);
    let mut sorted: Vec<u64> = pauses.iter().map(|(_, pause)| *pause).collect();
    sorted.sort_unstable();
    // A checkpoint is no part of the rhythm.
    let longest = sorted.get(sorted.len() * 9 / 10).copied().unwrap_or(0).saturating_mul(4);
    for (_, pause) in &mut pauses {
        *pause = (*pause).min(longest);
    }
    let spread = |collectives: u64| -> u64 {
        let mut by_place: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (number, pause) in &pauses {
            by_place.entry(number % collectives).or_default().push(*pause);
        }
        let of_place = |pauses: Vec<u64>| {
            let usual = median(pauses.clone());
            sum(pauses.into_iter().map(|pause| pause.abs_diff(usual)))
        };
        sum(by_place.into_values().map(of_place))
    };
    let all = spread(1);
    let most = (pauses.len() / MIN_ITERATIONS) as u64 / sequence;
    let spreads: Vec<u64> = (1..=most.min(MAX_REPETITIONS)).map(|times| spread(times * sequence)).collect();
    let least = spreads.iter().copied().min().unwrap_or(all);
    // Without a rhythm, places differ by chance.
    if least > all / 2 {
        return 1;
    }
    let first = spreads.iter().position(|spread| *spread <= least.saturating_add(all / 20));
    first.map_or(1, |at| at as u64 + 1)
}

/// Part of a long pause that ranks are usually apart, from which on they launch ahead.
const LAUNCHES_AHEAD: u64 = 4;

/// Returns the pauses before collectives, with their numbers, from when all had launched the one before: that
/// a rank launches later than usual, as where its process was stopped, is no part of the rhythm. Where ranks are
/// usually apart, because they launch ahead, nothing is told apart.
fn pauses_of_all(by_number: &[(u64, Vec<u64>)]) -> Vec<(u64, u64)> {
    let late: Vec<u64> =
        by_number.iter().map(|(_, times)| lateness(times, 0).into_iter().max().unwrap_or(0)).collect();
    let usual = median(late.clone());
    let mut sorted: Vec<u64> = pauses(by_number).map(|(_, pause)| pause).collect();
    sorted.sort_unstable();
    let long = sorted.get(sorted.len() * 9 / 10);
    if usual.saturating_mul(LAUNCHES_AHEAD) > long.copied().unwrap_or(0) {
        return pauses(by_number).collect();
    }
    let first = |times: &Vec<u64>| {
        let mut sorted = times.clone();
        sorted.sort_unstable();
        // The lower of two: that of a rank which is not late.
        sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0)
    };
    let begun: Vec<(u64, u64)> = by_number.iter().map(|(number, times)| (*number, first(times))).collect();
    let pairs = begun.windows(2).zip(&late).filter_map(|(pair, late)| {
        let [(number, at), (next, until)] = pair else { return None };
        let all_there = at.saturating_add(late.saturating_sub(usual));
        (*next == number + 1).then(|| (*next, until.saturating_sub(all_there)))
    });
    pairs.collect()
}

/// Returns the pauses before collectives, with their numbers.
fn pauses(by_number: &[(u64, Vec<u64>)]) -> impl Iterator<Item = (u64, u64)> {
    by_number.windows(2).filter_map(|pair| {
        let [(number, times), (next, until)] = pair else { return None };
        let pause = || median(until.clone()).saturating_sub(median(times.clone()));
        (*next == number + 1).then(|| (*next, pause()))
    })
}

/// Returns the number, below `per_iteration`, of the collectives with which iterations begin: those before
/// which the usual pause is longest.
fn first_of_iteration(by_number: &[(u64, Vec<u64>)], per_iteration: u64) -> u64 {
    let mut by_place: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (number, pause) in pauses(by_number) {
        by_place.entry(number % per_iteration).or_default().push(pause);
    }
    by_place.into_iter().max_by_key(|(_, pauses)| median(pauses.clone())).map_or(0, |(begin, _)| begin)
}

/// Returns how late each rank is: those behind the largest pause of the later half, counted from the rank
/// before that pause. The others are not late.
fn lateness(launches: &[u64], error_ns: u64) -> Vec<u64> {
    let mut sorted = launches.to_vec();
    sorted.sort_unstable();
    let gaps = sorted.windows(2).map(|pair| pair.first().zip(pair.last()).map_or(0, |(a, b)| b - a));
    // At most half of the ranks are late.
    let begin = sorted.len().div_ceil(2).saturating_sub(1);
    let at = gaps.enumerate().skip(begin).max_by_key(|(_, gap)| *gap);
    let (at, gap) = at.unwrap_or((0, 0));
    if gap < error_ns {
        return vec![0; launches.len()];
    }
    let usual = sorted.get(at).copied().unwrap_or(0);
    launches.iter().map(|ns| ns.saturating_sub(usual)).collect()
}

/// Returns the median, the upper of two.
pub(super) fn median(mut values: Vec<u64>) -> u64 {
    let middle = values.len() / 2;
    if values.is_empty() { 0 } else { *values.select_nth_unstable(middle).1 }
}

/// Returns the sum. Times of forged recordings can be any numbers.
pub(super) fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::{
        super::late_ranks::{LateLine, LateRanks},
        *,
    };

    const MS: u64 = 1_000_000;

    /// Iterations of four collectives, 10 ms each, whose launches take 1 ms; `late` says how late a rank is.
    fn launches(ranks: i32, iterations: u64, late: impl Fn(i32, u64) -> u64) -> Launches {
        let mut launches = Launches::default();
        for iteration in 0..iterations {
            for (rank, at) in (0..ranks).flat_map(|rank| (0..4).map(move |at| (rank, at))) {
                let ns = iteration * 10 * MS + at * MS / 4 + late(rank, iteration);
                // The recording begins in the middle of an iteration.
                launches.add(rank, 7 + iteration * 4 + at, ns, usize::MAX);
            }
        }
        launches
    }

    #[test]
    fn a_rank_that_launches_last_is_late_and_nobody_else() {
        for ranks in [2, 3, 4, 8] {
            let late = launches(ranks, 20, |rank, _| if rank == 1 { MS } else { 0 }).late(4, 0);
            assert_eq!(late.iterations.len(), 20);
            for iteration in &late.iterations {
                let expected: Vec<u64> = (0..ranks).map(|rank| if rank == 1 { MS } else { 0 }).collect();
                assert_eq!(*iteration.late_ns, expected);
            }
            assert_eq!(late.iterations[3].lasted_ns, Some(10 * MS));
            assert_eq!(late.iterations[19].lasted_ns, None);
        }
    }

    #[test]
    fn two_late_ranks_of_eight_are_both_late() {
        let late = launches(8, 20, |rank, _| if rank > 5 { 2 * MS } else { u64::try_from(rank).unwrap() })
            .late(4, 0);
        assert_eq!(late.iterations[0].late_ns[6..], [2 * MS - 5; 2]);
        assert_eq!(late.iterations[0].late_ns[..6], [0; 6]);
    }

    /// The process of a rank is stopped each 8 or 9 iterations, for most of an iteration, and the others wait.
    #[test]
    fn a_process_that_is_stopped_again_and_again_is_no_rhythm_of_iterations() {
        for (ranks, per_iteration) in [(2i32, 1), (2, 3), (3, 1), (4, 4), (8, 2)] {
            let mut launches = Launches::default();
            let (mut at, mut stops) = (0, 0);
            for number in 0..240 * per_iteration {
                at += if number % per_iteration == 0 { 60 * MS } else { MS / 2 };
                let stopped = if at / (500 * MS) > stops { 45 * MS } else { 0 };
                stops = at / (500 * MS);
                for rank in 0..ranks {
                    let noise = (number * 7919 + u64::from(rank.unsigned_abs()) * 31) % 97 * 1000;
                    let late = if rank == 1 { stopped } else { 0 };
                    launches.add(rank, number, at + noise + late, usize::MAX);
                }
                at += stopped;
            }
            let late = launches.late(1, 0);
            let all = late.iterations.len();
            assert!((238..=240).contains(&all), "{ranks} ranks, {per_iteration}: {all} iterations");
        }
    }

    /// The third collective of an iteration is that before which rank 1 takes longer.
    #[test]
    fn a_late_rank_is_late_at_the_launch_that_comes_later_than_the_one_before() {
        let mut launches = Launches::default();
        for (number, rank) in (0..80).flat_map(|number| (0..3).map(move |rank| (number, rank))) {
            let (iteration, at) = (number / 4, number % 4);
            let late = if rank == 1 && at >= 2 { MS } else { 0 };
            launches.add(rank, number, iteration * 10 * MS + at * MS / 4 + late, usize::MAX);
            launches.add_stack(rank, number, StackId(100 + at));
        }
        let late = launches.late(4, 0);
        let moments: Vec<_> = late.iterations.iter().map(|one| one.late_at[1]).collect();
        assert_eq!(moments, vec![Some(StackId(102)); 20]);
        assert!(late.iterations.iter().all(|one| one.late_at[0].is_none() && one.late_at[2].is_none()));
        let mut ranks = LateRanks::new(vec![0, 1, 2], late);
        ranks.note_lines(&|at, stack| Some(format!("line {} of {at}", stack.0)));
        let line = LateLine { line: "line 102 of 1".to_owned(), count: 20, of: 20 };
        assert_eq!((ranks.line(0), ranks.line(1)), (None, Some(&line)));
    }

    #[test]
    fn where_there_are_too_many_launches_blocks_of_all_ranks_are_left_out_together() {
        let mut launches = Launches::default();
        for number in 0..64 * BLOCK {
            for rank in 0..2 {
                launches.add(rank, number, number * MS, 4096);
            }
        }
        assert!(launches.count <= 4096, "{}", launches.count);
        let late = launches.late(4, 0);
        assert!(late.iterations.len() as u64 >= BLOCK / 4, "{}", late.iterations.len());
        assert!(late.iterations.iter().all(|iteration| *iteration.late_ns == [0, 0]));
    }
}
