//! Judges ranks that launched other collectives than the others, by their counters: of two functions each
//! side has launched more of one.
//!
//! All ranks launch the same collectives in the same order, so the counters of one rank are those that the
//! other had a moment before. If neither rank ever had the other's counters, the ranks differ.

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, Kind, MAX_SENTENCES, Verdict, disagreement::minority, named};
use crate::RankReport;
use flow::text::joined;

type Counts = BTreeMap<String, u64>;

/// Tells whether only the driver of the GPUs has told that a verdict's operations differ: no counter and no
/// op in flight does.
pub(super) fn only_gpus_tell<'a>(ranks: impl Iterator<Item = &'a RankReport> + Clone) -> bool {
    let counters = ranks.clone().map(|rank| &rank.counters.seq_number);
    let first = counters.clone().next();
    ranks.into_iter().all(|rank| rank.proxy.ops.is_empty())
        && counters.into_iter().all(|own| Some(own) == first)
}

pub(super) fn other_operation(case: &Case<'_>) -> Option<Verdict> {
    let mut sides: BTreeMap<&Counts, BTreeSet<u32>> = BTreeMap::new();
    for (number, rank) in &case.ranks {
        let counts = &rank.counters.seq_number;
        if !counts.is_empty() {
            sides.entry(counts).or_default().insert(*number);
        }
    }
    // Sides that some other side contradicts.
    let contradict = |one: &Counts, other: &Counts| is_ahead(one, other) && is_ahead(other, one);
    let all: Vec<&Counts> = sides.keys().copied().collect();
    sides.retain(|counts, _| all.iter().any(|other| contradict(counts, other)));
    // A side that agrees with most ranks contradicts least.
    let against = |counts: &Counts| -> usize {
        let others = sides.iter().filter(|(other, _)| contradict(counts, other));
        others.map(|(_, ranks)| ranks.len()).sum()
    };
    let most = sides.keys().map(|counts| against(counts)).max()?;
    let worst = sides.iter().filter(|(counts, _)| against(counts) == most);
    let mut culprits: BTreeSet<u32> = worst.flat_map(|(_, ranks)| ranks).copied().collect();
    let n_ranks: usize = sides.values().map(BTreeSet::len).sum();
    if culprits.len() == n_ranks {
        culprits = minority(&sides);
    }
    let functions: BTreeSet<&String> = sides.keys().flat_map(|counts| counts.keys()).collect();
    let differs = |function: &&&String| {
        let values: BTreeSet<u64> = sides.keys().map(|counts| count(counts, function)).collect();
        values.len() > 1
    };
    let differing: Vec<&String> = functions.iter().filter(differs).copied().collect();
    let sentences = sides.iter().take(MAX_SENTENCES).map(|(counts, ranks)| {
        let launched = differing.iter().map(|function| format!("{function} {}", count(counts, function)));
        format!("{} launched {}", named(ranks), joined(launched, ", "))
    });
    let mut evidence = vec![
        format!("nothing moved for {:.1} s", case.seconds),
        format!("the operations differ: {}", joined(sentences, "; ")),
    ];
    if culprits.len() == n_ranks {
        evidence.push("which of them is right cannot be known: no side has more ranks".to_owned());
    }
    evidence.extend(case.gpu_sentences());
    Some(case.stuck(Kind::OtherOperation, culprits, evidence))
}

fn count(counts: &Counts, function: &str) -> u64 {
    counts.get(function).copied().unwrap_or(0)
}

/// Tells whether one has launched more of some function.
fn is_ahead(one: &Counts, other: &Counts) -> bool {
    one.iter().any(|(function, launched)| *launched > count(other, function))
}

#[cfg(test)]
mod tests {
    use crate::{
        RankReport,
        verdict::{
            State, judge,
            tests::made::{check, rank},
        },
    };

    fn counting(number: u32, reduce: u64, gather: u64) -> RankReport {
        let mut rank = rank(number, reduce, Vec::new());
        rank.counters.seq_number.insert("AllGather".to_owned(), gather);
        rank.proxy.carries_rings = Some(false);
        rank
    }

    #[test]
    fn another_operation_is_told_by_counters_of_which_neither_was_the_others() {
        let three = [counting(0, 4, 0), counting(1, 4, 0), counting(2, 3, 1), counting(3, 4, 0)];
        check(
            &judge(&three, &[]),
            State::Stuck,
            &[2],
            &[0, 1, 3],
            "ranks 0, 1, 3 launched AllGather 0, AllReduce 4",
        );
        // With two sides of one size both are named, and it is said why.
        let mut two = [counting(0, 4, 0), counting(1, 3, 1)];
        for rank in &mut two {
            rank.n_ranks = 2;
        }
        check(&judge(&two, &[]), State::Stuck, &[0, 1], &[], "which of them is right cannot be known");
    }

    #[test]
    fn a_rank_that_is_behind_has_not_done_anything_else() {
        let ranks = [counting(0, 4, 2), counting(1, 4, 2), counting(2, 4, 1), counting(3, 3, 1)];
        let verdict = judge(&ranks, &[]);
        check(&verdict, State::Stuck, &[2, 3], &[0, 1], "rank 3 has not joined");
    }
}
