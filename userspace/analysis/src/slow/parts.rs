//! Where an iteration's time goes, for each rank: what the counters of its GPU and its messages show. What
//! they do not show stays open.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{
    evidence::{Evidence, RankEvidence, WaitingRank},
    verdict::{Kind, NOTE_PERCENT, RankName, STANDARD_ERRORS, Slow, idle, milliseconds, rounded},
};

/// Parts of a rank's iteration, in the mean of all that were recorded. `None`: it was not seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IterationParts {
    #[serde(flatten)]
    pub name: RankName,
    /// Its GPU's multiprocessors are busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub computing_ms: Option<f64>,
    /// Where there are no counters of its GPU: that has what messages need, and works on it, or on other
    /// things.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_gpu_ms: Option<f64>,
    /// Its GPU has nothing to run while those of other ranks run kernels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_ms: Option<f64>,
    /// Its GPU has nothing to run, as those of the other ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<f64>,
    /// It waits for other ranks: its kernels run, and their multiprocessors are idle, for longer than those
    /// of the rank that waits least; or data had not been sent, or had not been taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_ms: Option<f64>,
    /// The data that it waits for is in the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_ms: Option<f64>,
    /// What is left of the iteration.
    pub not_measured_ms: f64,
}

/// Returns the parts of an iteration of each rank; none, if no iterations were found.
pub(super) fn of(evidence: &Evidence, slow: &Slow) -> Vec<IterationParts> {
    let Some(iteration) = evidence.iteration else { return Vec::new() };
    let least = least_idle(evidence, slow);
    let of_rank = |(at, rank): (usize, &RankEvidence)| {
        let mut left = 100.0_f64;
        let mut take = |percent: Option<f64>| {
            let percent = percent?.clamp(0.0, left);
            left -= percent;
            Some(percent)
        };
        let messages = longest(evidence, at);
        let of = |share: fn(&WaitingRank) -> Option<f64>| messages.and_then(share);
        let network = of(|rank| rank.in_network_percent);
        let by_messages = of(|rank| Some(rank.waiting.mean?.percent)).map(|all| all - network.unwrap_or(0.0));
        let computing = take(rank.multiprocessors.map(|busy| busy.percent));
        let own = of(|rank| Some(rank.own.mean?.percent));
        let own_gpu = take(own.filter(|_| computing.is_none()));
        let late = take(late(evidence, slow, at));
        let idle = take(rank.graphics.map(|runs| 100.0 - runs.percent - late.unwrap_or(0.0)));
        let by_counters = waiting(rank, least.get(at).copied().flatten());
        let most = |one: f64| by_messages.map_or(one, |other| one.max(other));
        let waiting = take(by_counters.map(most).or(by_messages));
        let network = take(network);
        let ms = |percent: f64| rounded(milliseconds(iteration.mean_ns) * percent / 100.0);
        IterationParts {
            name: rank.name.clone(),
            computing_ms: computing.map(ms),
            own_gpu_ms: own_gpu.map(ms),
            late_ms: late.map(ms),
            idle_ms: idle.map(ms),
            waiting_ms: waiting.map(ms),
            network_ms: network.map(ms),
            not_measured_ms: ms(left),
        }
    };
    evidence.ranks.iter().enumerate().map(of_rank).collect()
}

/// A late launch of a rank that holds the others back: its rank in the job, the wall time at which the others
/// launched, and by how much it came later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    pub(crate) rank: i32,
    pub(crate) at_ns: u64,
    pub(crate) ns: u64,
}

/// Returns where hosts were late that the verdict names: by a tenth of an iteration and more.
pub(super) fn stalls(evidence: &Evidence, slow: &Slow) -> Vec<Stall> {
    let named: Vec<i32> = slow
        .faults()
        .filter(|cause| cause.kind == Kind::Host)
        .flat_map(|cause| cause.ranks.clone())
        .collect();
    let ranks = evidence.ranks.iter().enumerate().filter(|(_, of)| named.contains(&of.name.rank));
    let of_rank = |(at, of): (usize, &RankEvidence)| -> Vec<Stall> {
        let late = evidence.late.iter().find(|late| late.ranks.contains(&at));
        let Some((late, iteration)) = late.and_then(|late| Some((late, late.iteration?))) else {
            return Vec::new();
        };
        let stalls = late.late.iterations.iter().zip(late.of(at));
        let is_long = |ns: u64| ns.saturating_mul(10) >= iteration.typical_ns;
        let stalls = stalls.filter(|(_, ns)| is_long(*ns));
        stalls.map(|(begun, ns)| Stall { rank: of.name.rank, at_ns: begun.begun_ns, ns }).collect()
    };
    ranks.flat_map(of_rank).collect()
}

/// Returns what a rank waited for in the communicator in which its messages took longest.
fn longest(evidence: &Evidence, at: usize) -> Option<&WaitingRank> {
    let of_rank = evidence.waits.iter().flatten().filter(|waits| waits.rank == at);
    let all = |waits: &WaitingRank| Some(waits.own.mean?.percent + waits.waiting.mean?.percent);
    let measured = of_rank.filter_map(|waits| Some((all(waits)?, waits)));
    measured.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, waits)| waits)
}

/// Returns the share of the time that a rank's late host costs: by its GPU's counters, or by the verdict.
fn late(evidence: &Evidence, slow: &Slow, at: usize) -> Option<f64> {
    let rank = evidence.ranks.get(at)?;
    if let (Some(idle), false) = idle(evidence, at) {
        let is_late = idle.percent >= NOTE_PERCENT && idle.certainty >= STANDARD_ERRORS;
        return Some(if is_late { idle.percent } else { 0.0 });
    }
    let is_it = |cause: &&super::Cause| cause.kind == Kind::Host && cause.ranks.contains(&rank.name.rank);
    slow.causes().filter(|cause| !cause.is_note).find(is_it)?.percent
}

/// Returns the share of the time in which kernels run on a rank's GPU whose multiprocessors are idle, and its
/// standard error: they wait, send, or are small.
fn with_idle_multiprocessors(rank: &RankEvidence) -> Option<(f64, f64)> {
    let (runs, busy) = (rank.graphics?, rank.multiprocessors?);
    Some(((runs.percent - busy.percent).max(0.0), runs.error.hypot(busy.error)))
}

/// Returns, for each rank, that share of the rank that waits least, of those with equal work and of the stage
/// that does most.
fn least_idle(evidence: &Evidence, slow: &Slow) -> Vec<Option<(f64, f64)>> {
    let ranks = &evidence.ranks;
    let least = |shares: &mut dyn Iterator<Item = Option<(f64, f64)>>| {
        shares.flatten().min_by(|(one, _), (other, _)| one.total_cmp(other))
    };
    let stages = slow.causes().filter(|cause| cause.kind == Kind::Stage);
    let most: BTreeSet<i32> = stages.flat_map(|stage| stage.ranks.iter().copied()).collect();
    let does_most = |rank: &&RankEvidence| most.contains(&rank.name.rank);
    let of_stages = least(&mut ranks.iter().filter(does_most).map(with_idle_multiprocessors));
    let mut all = vec![of_stages; ranks.len()];
    for group in &evidence.groups {
        let members = || group.iter().filter_map(|at| ranks.get(*at));
        let of_group = least(&mut members().map(with_idle_multiprocessors));
        for at in group {
            if let Some(known) = all.get_mut(*at) {
                *known = least(&mut [*known, of_group].into_iter());
            }
        }
    }
    all
}

/// Returns for how much longer they do so than on the GPU of the rank that waits least. All ranks of a
/// collective send and receive for as long.
fn waiting(rank: &RankEvidence, least: Option<(f64, f64)>) -> Option<f64> {
    let ((own, error), (least, other_error)) = (with_idle_multiprocessors(rank)?, least?);
    let more = own - least;
    let is_certain = more >= NOTE_PERCENT && more >= STANDARD_ERRORS * error.hypot(other_error).max(0.1);
    Some(if is_certain { more } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            activity::Mean,
            evidence::{MeasuredLink, TimeShare},
            late_ranks::Iteration,
            verdict::Cause,
        },
        *,
    };

    const ITERATION: Iteration = Iteration { typical_ns: 10_000_000, mean_ns: 10_000_000, count: 100 };

    fn mean(percent: f64) -> Mean {
        Mean { percent, error: 0.05 }
    }

    fn named(rank: i32) -> RankEvidence {
        RankEvidence { name: RankName { rank, ..RankName::default() }, ..RankEvidence::default() }
    }

    /// A rank on whose GPU a kernel runs, and multiprocessors are busy, for these parts of the time.
    fn counted(rank: i32, [runs, busy]: [f64; 2]) -> RankEvidence {
        RankEvidence { graphics: Some(mean(runs)), multiprocessors: Some(mean(busy)), ..named(rank) }
    }

    fn share(percent: f64, connections: usize) -> TimeShare {
        TimeShare { mean: Some(mean(percent)), halves: 0, connections }
    }

    /// In the order of computing, own GPU, late, idle, waiting, network, not measured, in hundredths of
    /// milliseconds.
    fn parts(evidence: &Evidence, slow: &Slow) -> Vec<[Option<i64>; 7]> {
        #[expect(clippy::cast_possible_truncation, reason = "a few milliseconds")]
        let hundredths = |ms: f64| (ms * 100.0).round() as i64;
        let of_rank = |of: IterationParts| {
            let measured =
                [of.computing_ms, of.own_gpu_ms, of.late_ms, of.idle_ms, of.waiting_ms, of.network_ms];
            let all: f64 = measured.iter().flatten().sum::<f64>() + of.not_measured_ms;
            assert!((all - 10.0).abs() < 0.01, "{of:?} is an iteration of 10 ms");
            let [computing, own, late, idle, waiting, network] = measured.map(|part| part.map(hundredths));
            [computing, own, late, idle, waiting, network, Some(hundredths(of.not_measured_ms))]
        };
        super::of(evidence, slow).into_iter().map(of_rank).collect()
    }

    /// Of ranks with equal work, those wait whose multiprocessors idle for longer while kernels run. A tenth
    /// of a percent is no difference. Who has nothing to run while others' kernels run is late.
    #[test]
    fn counters_tell_who_computes_is_late_and_waits() {
        let ranks = vec![
            counted(0, [98.0, 78.0]),
            counted(1, [98.0, 85.0]),
            counted(2, [98.1, 85.0]),
            counted(3, [78.0, 65.0]),
        ];
        let groups = vec![vec![0, 1, 2, 3]];
        let evidence = Evidence { ranks, groups, iteration: Some(ITERATION), ..Evidence::default() };
        let expected = [
            [Some(780), None, Some(0), Some(20), Some(70), None, Some(130)],
            [Some(850), None, Some(0), Some(20), Some(0), None, Some(130)],
            [Some(850), None, Some(0), Some(19), Some(0), None, Some(131)],
            [Some(650), None, Some(200), Some(20), Some(0), None, Some(130)],
        ];
        assert_eq!(parts(&evidence, &Slow::default()), expected);
        // Nothing is known of how long ranks with other work send and receive.
        let apart = Evidence { groups: Vec::new(), ..evidence.clone() };
        assert_eq!(
            parts(&apart, &Slow::default())[0],
            [Some(780), None, Some(0), Some(20), None, None, Some(200)]
        );
        // But the stage that does most is the one that the others wait for.
        let first = Cause { kind: Kind::Stage, ranks: vec![1], is_note: true, ..Cause::default() };
        let slow = Slow { first, ..Slow::default() };
        assert_eq!(parts(&apart, &slow)[0], expected[0]);
        let unknown = Evidence { iteration: None, ..evidence };
        assert!(super::of(&unknown, &Slow::default()).is_empty());
    }

    /// Rank 1 has two connections, of which one receives; its data is in the network for a fifth of the time.
    #[test]
    fn messages_tell_what_waits_and_what_is_in_the_network() {
        let waits = WaitingRank {
            rank: 1,
            waits: crate::slow::RankWaits::default(),
            own: share(30.0, 2),
            waiting: share(25.0, 2),
            in_network_percent: None,
        };
        let link = |from, to, percent| MeasuredLink {
            from,
            to,
            in_network: share(percent, 1),
            typical_ns: 1,
            error_ns: 0,
            nics: None,
        };
        let in_network_percent = waits.in_network(&[link(0, 1, 20.0), link(1, 0, 70.0)]);
        let evidence = Evidence {
            ranks: vec![named(0), named(1)],
            iteration: Some(ITERATION),
            waits: vec![vec![WaitingRank { in_network_percent, ..waits.clone() }]],
            ..Evidence::default()
        };
        let slow = Slow::default();
        assert_eq!(
            parts(&evidence, &slow),
            [
                [None, None, None, None, None, None, Some(1000)],
                [None, Some(300), None, None, Some(150), Some(100), Some(450)]
            ]
        );
        // The verdict knows by launches that rank 0 is late.
        let first = Cause { kind: Kind::Host, ranks: vec![0], percent: Some(12.5), ..Cause::default() };
        let late = Slow { first, ..Slow::default() };
        assert_eq!(parts(&evidence, &late)[0], [None, None, Some(125), None, None, None, Some(875)]);
        assert_eq!(waits.in_network(&[link(1, 0, 70.0)]), None);
    }
}
