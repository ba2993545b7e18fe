//! Lateness of one rank, over iterations: steady, or in pauses that all others wait for.

use std::collections::BTreeMap;

use super::{
    evidence::Evidence,
    launches::{median, sum},
    verdict::FAULT_PERCENT,
};

/// Iterations that must be seen before lateness says anything.
const MIN_ITERATIONS: usize = 8;

/// Fewest pauses that cost something, and fewest that have a rhythm.
const MIN_PAUSES: usize = 3;
const MIN_RHYTHM: usize = 5;

/// Fewest iterations from one pause to the next that have a rhythm in time: with fewer, chance has one.
const MIN_BETWEEN: u64 = 4;

/// Lateness of a rank in the communicator in which it is largest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pauses {
    /// Number of iterations that were compared.
    pub(super) iterations: usize,
    /// Usual lateness, and usual length of an iteration.
    pub(super) typical_ns: u64,
    pub(super) iteration_ns: u64,
    /// Part of the iterations in which the rank launched last by more than a hundredth of an iteration.
    pub(super) late_percent: f64,
    /// Number of iterations that were longer by as much as the rank was late in them.
    pub(super) count: usize,
    /// Usual length of such a pause.
    pub(super) pause_ns: u64,
    /// They come in each so-manieth iteration.
    pub(super) every: Option<u64>,
    /// They come after so much time, where that is no number of iterations.
    pub(super) every_ns: Option<u64>,
    /// Time of all pauses, in percent of the recorded iterations.
    pub(super) cost_percent: f64,
}

impl Pauses {
    /// Tells whether the rank is usually late, by no more than an iteration: a rank that is later in all of
    /// them has hosts that run ahead beside it.
    pub(super) fn is_late(&self) -> bool {
        self.iterations >= MIN_ITERATIONS
            && self.late_percent >= 80.0
            && self.typical_ns.saturating_mul(50) >= self.iteration_ns
            && self.typical_ns < self.iteration_ns
    }
}

/// Cost of pauses that nothing else shows, from which on they are told: on a busy machine each process is
/// without a processor now and then.
const ALONE_PERCENT: f64 = 10.0;

impl Pauses {
    /// Tells whether the pauses of `rank` hold the others back: they cost enough, and several times as much
    /// as those of any other rank. `is_idle`: its GPU has nothing to run meanwhile. `all`: those of all ranks.
    pub(super) fn is_cause(&self, is_idle: bool, all: &[Self], rank: usize) -> bool {
        let is_shown = is_idle || self.every.is_some() || self.every_ns.is_some();
        if self.cost_percent < if is_shown { FAULT_PERCENT } else { ALONE_PERCENT } {
            return false;
        }
        let mut others = all.iter().enumerate().filter(|(other, _)| *other != rank);
        others.all(|(_, other)| other.cost_percent * 3.0 <= self.cost_percent)
    }
}

/// Returns the lateness of a rank.
pub(super) fn of(evidence: &Evidence, rank: usize) -> Pauses {
    find(evidence, &|other| other == rank).remove(&rank).unwrap_or_default()
}

/// Returns the lateness of each rank.
pub(super) fn of_all(evidence: &Evidence) -> Vec<Pauses> {
    let mut found = find(evidence, &|_| true);
    (0..evidence.ranks.len()).map(|rank| found.remove(&rank).unwrap_or_default()).collect()
}

fn find(evidence: &Evidence, is_wanted: &dyn Fn(usize) -> bool) -> BTreeMap<usize, Pauses> {
    let mut found: BTreeMap<usize, Pauses> = BTreeMap::new();
    let is_more = |one: &Pauses, other: &Pauses| {
        let size = |pauses: &Pauses| pauses.cost_percent;
        size(one).total_cmp(&size(other)).then(one.typical_ns.cmp(&other.typical_ns)).is_ge()
    };
    for late in evidence.late.iter().filter(|late| late.ranks.len() > 1) {
        let iterations = &late.late.iterations;
        let Some(iteration) = late.iteration.filter(|_| iterations.len() >= MIN_ITERATIONS) else { continue };
        let ranks: Vec<usize> = late.ranks.iter().copied().filter(|rank| is_wanted(*rank)).collect();
        if ranks.is_empty() {
            continue;
        }
        let lasted: Vec<Option<u64>> = iterations.iter().map(|iteration| iteration.lasted_ns).collect();
        let begun: Vec<(u64, u64)> =
            iterations.iter().map(|iteration| (iteration.number, iteration.begun_ns)).collect();
        for rank in ranks {
            let pauses = in_communicator(&late.of(rank), &lasted, &begun, iteration.typical_ns);
            if found.get(&rank).is_none_or(|known| is_more(&pauses, known)) {
                found.insert(rank, pauses);
            }
        }
    }
    found
}

#[expect(clippy::cast_precision_loss, reason = "shares, for people")]
fn in_communicator(
    lateness: &[u64],
    lasted: &[Option<u64>],
    begun: &[(u64, u64)],
    iteration_ns: u64,
) -> Pauses {
    let typical_ns = median(lateness.to_vec());
    let late = lateness.iter().filter(|ns| ns.saturating_mul(100) >= iteration_ns).count();
    let late_percent = late as f64 * 100.0 / lateness.len().max(1) as f64;
    // A pause is longer than a tenth of an iteration, and the iteration that ends or begins with it is longer
    // by about as much.
    let (mut pauses, mut moments) = (Vec::new(), Vec::new());
    for (at, ns) in lateness.iter().enumerate() {
        let more = ns.saturating_sub(typical_ns);
        if more.saturating_mul(10) < iteration_ns || more == 0 {
            continue;
        }
        let before = at.checked_sub(1).and_then(|before| lasted.get(before)).copied().flatten();
        let own = lasted.get(at).copied().flatten();
        let longer = before.max(own).unwrap_or(0).saturating_sub(iteration_ns);
        if longer.saturating_mul(2) >= more && longer <= more.saturating_mul(2) {
            let (number, begun_ns) = begun.get(at).copied().unwrap_or_default();
            pauses.push((number, longer.min(more)));
            moments.push(begun_ns);
        }
    }
    let all_ns = sum(lasted.iter().flatten().copied());
    let every = rhythm(&pauses);
    Pauses {
        iterations: lateness.len(),
        typical_ns,
        iteration_ns,
        late_percent,
        count: pauses.len(),
        pause_ns: median(pauses.iter().map(|(_, ns)| *ns).collect()),
        every,
        every_ns: every_ns(&moments, iteration_ns).filter(|_| every.is_none()),
        cost_percent: recurring(&pauses) as f64 * 100.0 / all_ns.max(1) as f64,
    }
}

/// Returns the time of pauses, of which none counts for more than the [`MIN_PAUSES`]th longest: what comes
/// once or twice, as where a rank waited for data of a GPU that stood still, is no habit of a host.
fn recurring(pauses: &[(u64, u64)]) -> u64 {
    let mut longest: Vec<u64> = pauses.iter().map(|(_, ns)| *ns).collect();
    longest.sort_unstable_by_key(|ns| std::cmp::Reverse(*ns));
    let most = longest.get(MIN_PAUSES - 1).copied().unwrap_or(0);
    sum(longest.into_iter().map(|ns| ns.min(most)))
}

/// Returns the number of iterations from one pause to the next, if it is mostly the same.
fn rhythm(pauses: &[(u64, u64)]) -> Option<u64> {
    let between: Vec<u64> =
        pauses.windows(2).filter_map(|pair| Some(pair.last()?.0.saturating_sub(pair.first()?.0))).collect();
    let usual = median(between.clone());
    let same = between.iter().filter(|other| **other == usual).count();
    (pauses.len() >= MIN_RHYTHM && same * 10 >= between.len() * 7 && usual > 1).then_some(usual)
}

/// Returns the time from one pause to the next, if it is mostly the same, as far as iterations tell it.
fn every_ns(moments: &[u64], iteration_ns: u64) -> Option<u64> {
    // One pause can reach into the next iteration.
    let mut begins: Vec<u64> = Vec::new();
    for at in moments {
        if begins.last().is_none_or(|last| at.saturating_sub(*last) > iteration_ns.saturating_mul(2)) {
            begins.push(*at);
        }
    }
    let between: Vec<u64> =
        begins.windows(2).filter_map(|pair| Some(pair.last()?.saturating_sub(*pair.first()?))).collect();
    let usual = median(between.clone());
    let same = between.iter().filter(|other| other.abs_diff(usual) <= iteration_ns).count();
    let is_known = usual >= iteration_ns.saturating_mul(MIN_BETWEEN);
    (begins.len() > MIN_RHYTHM && is_known && same * 10 >= between.len() * 8).then_some(usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that is late by so many milliseconds, once in ten iterations of 10 ms, which are longer by that.
    fn cost(pauses_ms: &[u64]) -> f64 {
        let late: Vec<u64> = (0..100)
            .map(|at| if at % 10 == 5 { pauses_ms.get(at / 10).copied().unwrap_or(0) * 1_000_000 } else { 0 })
            .collect();
        let lasted: Vec<Option<u64>> = late.iter().map(|ns| Some(10_000_000 + ns)).collect();
        let begun: Vec<(u64, u64)> = (0..100).map(|at| (at, at * 10_000_000)).collect();
        in_communicator(&late, &lasted, &begun, 10_000_000).cost_percent
    }

    /// Twice a second, beside iterations of 60 ms; and as often, by chance.
    #[test]
    fn pauses_can_have_a_rhythm_of_their_own() {
        const MS: u64 = 1_000_000;
        let steady: Vec<u64> = (1..20).map(|stop| stop * 500 / 60 * 60 * MS).collect();
        assert!(every_ns(&steady, 60 * MS).unwrap().abs_diff(500 * MS) <= 60 * MS);
        let chance: Vec<u64> =
            [3, 7, 30, 33, 41, 70, 88, 90, 121, 126, 133, 160].map(|at| at * 60 * MS).into();
        assert_eq!(every_ns(&chance, 60 * MS), None);
        assert_eq!(every_ns(&steady[..5], 60 * MS), None);
    }

    #[test]
    fn a_single_long_pause_is_no_habit() {
        let equal = cost(&[20; 10]);
        assert!((equal - 200.0 * 100.0 / 1200.0).abs() < 0.1, "{equal}");
        let single = cost(&[3900, 21, 10]);
        assert!(single < 1.0, "{single}");
        assert!(cost(&[3900, 3900]) < 0.1);
        assert!(cost(&[3900, 3900, 3900]) > 90.0);
    }
}
