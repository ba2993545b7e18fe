//! The verdict: who holds the job back, how much, and what shows it.

use serde::Serialize;

use super::{
    activity::Mean,
    evidence::{Evidence, RankEvidence},
    hosts::{HostClock, HostClocks},
    late_ranks::Iteration,
    messages,
    parts::{IterationParts, Stall},
    pauses, processor, text, together,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A rank's GPU computes longer than those of ranks with equal work.
    Gpu,
    /// A rank's host launches late.
    Host,
    /// A group of ranks does more work than others, by the program's design.
    Stage,
    /// Messages from a rank to a peer are long in the network.
    Link,
    /// All ranks became slower together.
    All,
    /// All ranks pause together, for something that is no rank.
    Outside,
    Nobody,
    /// There is too little evidence for a verdict.
    #[default]
    Unknown,
}

/// A rank of the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RankName {
    /// Rank in the job; where nobody names it, in the largest communicator.
    pub rank: i32,
    pub host: String,
    pub pid: u32,
    /// NVML's number of its GPU.
    pub gpu: Option<u32>,
}

/// Something that holds the job back.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    pub kind: Kind,
    pub ranks: Vec<i32>,
    /// The other end of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<i32>,
    /// Time that it costs in each iteration, in the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_ms: Option<f64>,
    /// That time in percent of an iteration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// It comes in each so-manieth iteration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_iterations: Option<u64>,
    /// Probability that ranks and kind are right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// It is no fault: so the program, or the chips, are made.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_note: bool,
    pub text: String,
    pub evidence: Vec<String>,
}

/// The verdict on a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Slow {
    /// Name of the job, as of its communicators.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration_ms: Option<f64>,
    pub iterations: u64,
    /// The cause that costs most, or nobody.
    #[serde(flatten)]
    pub first: Cause,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Cause>,
    /// Clocks of the job's hosts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clocks: Vec<HostClock>,
    /// What could not be seen.
    pub not_seen: Vec<String>,
    /// Parts of an iteration of each rank, in the mean.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub iteration_parts: Vec<IterationParts>,
    /// Iterations that were seen whole: wall time of the begin, and length, in nanoseconds.
    #[serde(skip)]
    pub(crate) lengths: Vec<(u64, u64)>,
    /// Late launches of the ranks that hold the job back.
    #[serde(skip)]
    pub(crate) stalls: Vec<Stall>,
}

/// Smallest part of an iteration that is a fault, in percent.
pub(super) const FAULT_PERCENT: f64 = 2.0;

/// The same of a GPU that computes longer: chips of one kind differ by nature, as four H200s by 2.4 percent
/// of what their multiprocessors do.
const CHIPS_PERCENT: f64 = 3.0;

/// Smallest part of an iteration that is told at all.
pub(super) const NOTE_PERCENT: f64 = 1.0;

/// A GPU whose multiprocessors are busy for less than this part of the time computes too little to tell by
/// how much.
const LEAST_BUSY_PERCENT: f64 = 10.0;

/// Least part of what a GPU's multiprocessors are busy for longer, that its tensor cores or its memory are.
const LEAST_WORK: f64 = 1.0 / 3.0;

/// Standard errors by which a difference must exceed 0.
pub(super) const STANDARD_ERRORS: f64 = 4.0;

/// The same of a GPU that has nothing to run, where iterations pause: a second with a pause differs from one without.
const STANDARD_ERRORS_OF_PAUSES: f64 = 3.0;

/// Difference of GPUs, in percent of the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Difference {
    pub(super) percent: f64,
    /// In standard errors.
    pub(super) certainty: f64,
}

impl Difference {
    /// Returns it in percent of what the rank has in all: where multiprocessors of a GPU that computes are
    /// not all busy, a difference of two points is more than two percent of the time.
    fn of(self, own: Option<Mean>) -> f64 {
        let own = own.map_or(100.0, |own| own.percent).clamp(LEAST_BUSY_PERCENT, 100.0);
        self.percent * 100.0 / own
    }
}

impl Evidence {
    /// Tells whether GPUs can be compared by what they do.
    pub(super) fn has_counters(&self) -> bool {
        self.ranks.iter().filter(|rank| rank.multiprocessors.is_some()).count() > 1
    }

    /// Tells whether launches of several ranks can be compared.
    pub(super) fn has_launches(&self) -> bool {
        self.late.iter().any(|late| late.ranks.len() > 1)
    }
}

impl Slow {
    /// Judges a job.
    pub(super) fn of(evidence: &Evidence) -> Self {
        // A GPU that stands still makes its host late, too: messages tell which it was.
        let by_messages = messages::causes(evidence);
        let not_seen = text::not_seen(evidence, by_messages.iter().any(|cause| cause.kind == Kind::Link));
        let has_data = |rank: i32| {
            by_messages.iter().any(|cause| cause.kind == Kind::Gpu && cause.ranks.contains(&rank))
        };
        let pauses = together::pauses(evidence);
        let mut causes = hosts(evidence, pauses.is_some(), &has_data);
        // Who waits for a slow link goes on later than the others, and launches later.
        let is_behind = |host: &Cause| {
            by_messages.iter().any(|link| {
                let is_receiver = link.peer.is_some_and(|peer| host.ranks.contains(&peer));
                link.kind == Kind::Link && is_receiver && link.percent >= host.percent
            })
        };
        causes.retain(|host| !is_behind(host));
        let late: Vec<i32> = causes.iter().flat_map(|cause| cause.ranks.clone()).collect();
        causes.extend(gpus(evidence, &late));
        causes.extend(stages(evidence));
        add_unnamed(&mut causes, processor::causes(evidence));
        // Counters of the GPUs say more than messages, of the ranks that have them.
        let is_told = |cause: &Cause| {
            let has_counters =
                |rank: &RankEvidence| cause.ranks.contains(&rank.name.rank) && rank.multiprocessors.is_some();
            matches!(cause.kind, Kind::Gpu | Kind::Host) && evidence.ranks.iter().any(has_counters)
        };
        add_unnamed(&mut causes, by_messages.into_iter().filter(|cause| !is_told(cause)));
        let is_named = causes.iter().any(|cause| cause.kind == Kind::Host && !cause.is_note);
        causes.extend(together::causes(evidence, pauses.filter(|_| !is_named)));
        // That all became slower is no other cause than what made them slower.
        let named = causes.iter().filter(|cause| cause.names_somebody()).filter_map(|cause| cause.percent);
        let slower = evidence.slowdown.map_or(0.0, |slowdown| slowdown.percent_of_after());
        let is_all_explained = named.fold(0.0, f64::max) * 2.0 >= slower;
        causes.sort_by(|one, other| {
            let is_explained = |cause: &Cause| cause.kind == Kind::All && is_all_explained;
            let rank = |cause: &Cause| (cause.is_note, is_explained(cause), -cause.percent.unwrap_or(0.0));
            rank(one).partial_cmp(&rank(other)).unwrap_or(std::cmp::Ordering::Equal)
        });
        let kind =
            if evidence.has_counters() || !evidence.waits.is_empty() { Kind::Nobody } else { Kind::Unknown };
        // What chips of one kind differ by names nobody.
        let is_first = |cause: &Cause| !(cause.is_note && cause.kind == Kind::Gpu);
        let first = match causes.iter().position(is_first) {
            Some(at) => causes.remove(at),
            None => Cause { kind, text: text::nobody(kind, evidence, &not_seen), ..Cause::default() },
        };
        Self {
            job: evidence.job.clone(),
            iteration_ms: evidence.iteration.map(|iteration| milliseconds(iteration.typical_ns)),
            iterations: evidence.iteration.map_or(0, |iteration| iteration.count),
            first,
            others: causes,
            clocks: match &evidence.clocks {
                HostClocks::Known(clocks) => clocks.clone(),
                HostClocks::OneHost | HostClocks::Unknown => Vec::new(),
            },
            not_seen,
            ..Self::default()
        }
    }

    /// Returns the causes, that which costs most first.
    pub(super) fn causes(&self) -> impl Iterator<Item = &Cause> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Returns what its first fault costs, in percent.
    pub(crate) fn weight(&self) -> f64 {
        self.faults().next().and_then(|cause| cause.percent).unwrap_or(0.0)
    }

    /// Returns the faults, that which costs most first.
    pub fn faults(&self) -> impl Iterator<Item = &Cause> {
        let is_fault =
            |cause: &&Cause| !cause.is_note && matches!(cause.kind, Kind::Gpu | Kind::Host | Kind::Link);
        self.causes().filter(is_fault)
    }
}

/// Adds those of further causes of which no rank is named yet.
fn add_unnamed(causes: &mut Vec<Cause>, more: impl IntoIterator<Item = Cause>) {
    let named: Vec<i32> = causes.iter().flat_map(|cause| cause.ranks.clone()).collect();
    let is_new = |cause: &Cause| !cause.ranks.iter().any(|rank| named.contains(rank));
    causes.extend(more.into_iter().filter(is_new));
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(super) fn milliseconds(ns: u64) -> f64 {
    // Microseconds are enough.
    (ns / 1000) as f64 / 1000.0
}

/// Returns how far a rank's mean lies above the median of others.
pub(super) fn above(own: Option<Mean>, others: impl Iterator<Item = Option<Mean>>) -> Option<Difference> {
    let own = own?;
    let mut others: Vec<Mean> = others.flatten().collect();
    let is_even = others.len().is_multiple_of(2);
    let order = |one: &Mean, other: &Mean| one.percent.total_cmp(&other.percent);
    let middle = others.len().checked_sub(1)? / 2;
    let (_, lower, above) = others.select_nth_unstable_by(middle, order);
    let next = above.iter().copied().filter(|_| is_even).min_by(order);
    let (lower, upper) = (*lower, next.unwrap_or(*lower));
    let percent = own.percent - f64::midpoint(lower.percent, upper.percent);
    // Counters have two decimals, and samples are not quite independent.
    let error = own.error.hypot(lower.error.max(upper.error)).max(0.1);
    Some(Difference { percent, certainty: percent.abs() / error })
}

fn others<'a>(
    evidence: &'a Evidence,
    group: &'a [usize],
    but: usize,
) -> impl Iterator<Item = &'a RankEvidence> {
    group.iter().filter(move |at| **at != but).filter_map(|at| evidence.ranks.get(*at))
}

/// Returns for how much longer a rank's GPU has nothing to run than those of the others, and whether a coarse
/// counter tells that.
pub(super) fn idle(evidence: &Evidence, at: usize) -> (Option<Difference>, bool) {
    let all: Vec<usize> = (0..evidence.ranks.len()).collect();
    let of = |measure: fn(&RankEvidence) -> Option<Mean>| {
        let rank = evidence.ranks.get(at)?;
        let difference = above(measure(rank), others(evidence, &all, at).map(measure))?;
        Some(Difference { percent: -difference.percent, ..difference })
    };
    match of(|rank| rank.graphics) {
        Some(idle) => (Some(idle), false),
        None => (of(|rank| rank.utilization), true),
    }
}

/// Returns ranks whose hosts launch late: their GPUs have nothing to run while kernels of the others wait; or
/// they pause, and the iteration takes as much longer for all.
///
/// `all_pause`: some iterations are much longer, in which no rank launches late. `has_data`: the rank's GPU had the data
/// that it needed, and did not go on.
fn hosts(evidence: &Evidence, all_pause: bool, has_data: &dyn Fn(i32) -> bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    let least_certainty = if all_pause { STANDARD_ERRORS_OF_PAUSES } else { STANDARD_ERRORS };
    let all = pauses::of_all(evidence);
    for ((at, rank), pauses) in evidence.ranks.iter().enumerate().zip(&all) {
        let (idle, is_coarse) = idle(evidence, at);
        let is_idle = idle.is_some_and(|idle| {
            idle.percent >= FAULT_PERCENT
                && idle.certainty >= least_certainty
                && (!is_coarse || pauses.is_late())
        });
        let is_cause = pauses.is_cause(is_idle, &all, at) && !has_data(rank.name.rank);
        if !is_idle && !is_cause {
            continue;
        }
        let idle = idle.filter(|_| is_idle).map(|idle| idle.percent);
        let percent = if is_cause { pauses.cost_percent } else { idle.unwrap_or(0.0) };
        let confidence = match (is_idle && !is_coarse, pauses.is_late() || is_cause) {
            (true, true) => 0.99,
            (true, false) => 0.9,
            (false, _) => 0.7,
        };
        let every_iterations = pauses.every.filter(|_| is_cause);
        let iteration = evidence.iteration;
        causes.push(Cause {
            kind: Kind::Host,
            ranks: vec![rank.name.rank],
            every_iterations,
            text: text::host(&rank.name, pauses, is_cause, iteration, percent),
            evidence: [text::host_evidence(rank, pauses, idle, is_coarse), text::late_line(evidence, at)]
                .concat(),
            ..Cause::sized(percent, iteration, confidence)
        });
    }
    causes
}

/// Returns ranks whose GPUs compute longer than those of ranks with equal work. Ranks whose hosts are late
/// are none of them.
fn gpus(evidence: &Evidence, late: &[i32]) -> Vec<Cause> {
    let mut causes = Vec::new();
    for group in &evidence.groups {
        for at in group {
            let Some(rank) = evidence.ranks.get(*at).filter(|rank| !late.contains(&rank.name.rank)) else {
                continue;
            };
            // A GPU without work computes less, which says nothing of the others.
            let is_usual = |other: &&RankEvidence| !late.contains(&other.name.rank);
            let of = |measure: fn(&RankEvidence) -> Option<Mean>| {
                let others = others(evidence, group, *at).filter(is_usual);
                above(measure(rank), others.map(measure))
            };
            let Some(busy) = of(|rank| rank.multiprocessors) else { continue };
            let size = busy.of(rank.multiprocessors);
            // What the multiprocessors did more must have been work: waiting kernels of NCCL have no tensor
            // cores and little memory traffic.
            let works = |measure: fn(&RankEvidence) -> Option<Mean>| {
                of(measure).zip(measure(rank)).is_some_and(|(more, own)| {
                    more.percent >= NOTE_PERCENT / 2.0
                        && more.percent * 100.0 >= size * own.percent * LEAST_WORK
                })
            };
            let is_work = works(|rank| rank.tensor) || works(|rank| rank.memory);
            if size < NOTE_PERCENT || busy.certainty < STANDARD_ERRORS || !is_work {
                continue;
            }
            let is_note = size < CHIPS_PERCENT;
            let confidence = if busy.certainty >= 2.0 * STANDARD_ERRORS { 0.99 } else { 0.95 };
            causes.push(Cause {
                kind: Kind::Gpu,
                ranks: vec![rank.name.rank],
                is_note,
                text: text::gpu(&rank.name, evidence.iteration, busy.percent, is_note),
                evidence: text::gpu_evidence(evidence, group, *at),
                ..Cause::sized(busy.percent, evidence.iteration, confidence)
            });
        }
    }
    causes
}

/// Returns the stage that does most work, where ranks form groups of equal work.
fn stages(evidence: &Evidence) -> Option<Cause> {
    let in_group = |at: &usize| evidence.groups.iter().any(|group| group.contains(at));
    let alone = (0..evidence.ranks.len()).filter(|at| !in_group(at)).map(|at| vec![at]);
    let groups: Vec<Vec<usize>> = evidence.groups.iter().cloned().chain(alone).collect();
    let mean = |group: &Vec<usize>| -> Option<Mean> {
        let of_group: Vec<Mean> =
            group.iter().filter_map(|at| evidence.ranks.get(*at)?.multiprocessors).collect();
        #[expect(clippy::cast_precision_loss, reason = "a number of ranks")]
        let n = of_group.len() as f64;
        let percent = of_group.iter().map(|mean| mean.percent).sum::<f64>() / n;
        let error = of_group.iter().map(|mean| mean.error).fold(0.0, f64::max);
        (!of_group.is_empty()).then_some(Mean { percent, error })
    };
    let means: Vec<Option<Mean>> = groups.iter().map(mean).collect();
    let (at, most) = means
        .iter()
        .enumerate()
        .filter_map(|(at, mean)| Some((at, (*mean)?)))
        .max_by(|(_, one), (_, other)| one.percent.total_cmp(&other.percent))?;
    let others = means.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, mean)| *mean);
    let busy = above(Some(most), others)?;
    if busy.of(Some(most)) < FAULT_PERCENT || busy.certainty < STANDARD_ERRORS {
        return None;
    }
    let ranks: Vec<i32> =
        groups.get(at)?.iter().filter_map(|at| Some(evidence.ranks.get(*at)?.name.rank)).collect();
    Some(Cause {
        kind: Kind::Stage,
        is_note: true,
        text: text::stage(&ranks, evidence.iteration, busy.percent),
        evidence: text::stage_evidence(evidence, &groups, at),
        ranks,
        ..Cause::sized(busy.percent, evidence.iteration, 0.95)
    })
}

impl Cause {
    /// Tells whether somebody is named for what it costs.
    fn names_somebody(&self) -> bool {
        matches!(self.kind, Kind::Gpu | Kind::Host | Kind::Stage | Kind::Link)
    }

    pub(super) fn sized(percent: f64, iteration: Option<Iteration>, confidence: f64) -> Self {
        let cost_ms = iteration.map(|iteration| rounded(milliseconds(iteration.mean_ns) * percent / 100.0));
        Self { percent: Some(rounded(percent)), cost_ms, confidence: Some(confidence), ..Self::default() }
    }
}

pub(super) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slow::{
        late_ranks::LateRanks,
        launches::{IterationLaunches, Late},
    };

    /// A rank by what its GPU's counters say: a kernel runs, multiprocessors, tensor cores and memory are busy.
    fn rank(number: i32, percents: [f64; 4]) -> RankEvidence {
        let [graphics, multiprocessors, tensor, memory] =
            percents.map(|percent| Some(Mean { percent, error: 0.05 }));
        let name = RankName { rank: number, host: "node17".to_owned(), pid: 1, gpu: None };
        RankEvidence { name, graphics, multiprocessors, tensor, memory, ..RankEvidence::default() }
    }

    fn accused(ranks: [[f64; 4]; 2]) -> Vec<(Kind, i32)> {
        let ranks = (0..).zip(ranks).map(|(number, percents)| rank(number, percents)).collect();
        let slow = Slow::of(&Evidence { ranks, groups: vec![vec![0, 1]], ..Evidence::default() });
        slow.faults().map(|cause| (cause.kind, cause.ranks[0])).collect()
    }

    /// Two H200s; the host of rank 0 was 1.2 ms late in each iteration of 5.8 ms. Kernels of NCCL on rank 1
    /// waited meanwhile.
    #[test]
    fn who_waits_for_a_late_host_does_not_compute_longer() {
        assert_eq!(accused([[79.1, 56.2, 50.1, 16.6], [98.5, 60.9, 50.9, 16.1]]), [(Kind::Host, 0)]);
    }

    /// The same GPUs; rank 0 multiplied matrices for 10 % longer.
    #[test]
    fn tensor_cores_tell_who_computes_longer() {
        assert_eq!(accused([[98.4, 75.3, 68.0, 19.3], [98.5, 66.3, 57.4, 17.3]]), [(Kind::Gpu, 0)]);
        // Multiprocessors alone tell nothing.
        assert_eq!(accused([[98.4, 75.3, 58.0, 17.4], [98.5, 66.3, 57.4, 17.3]]), []);
    }

    /// Two of eight ranks on the bed, of which one was stopped twice a second for 286 ms: a second had two stops, one or
    /// none, and launches were late by nothing.
    #[test]
    fn where_all_pause_a_gpu_that_often_has_nothing_to_run_has_a_late_host() {
        const MS: u64 = 1_000_000;
        let judged = |paused_ms: u64, idle: f64| {
            let lasted = |at: u64| 60 * MS + if at % 8 == 5 { paused_ms * MS } else { 0 };
            let iteration = |number| IterationLaunches {
                number,
                begun_ns: number * 60 * MS,
                lasted_ns: Some(lasted(number)),
                late_ns: [0, 0].into(),
                late_at: Box::default(),
            };
            let late = Late { ranks: vec![0, 1], iterations: (0..120).map(iteration).collect() };
            let mut ranks = vec![rank(0, [99.6, 38.0, 20.0, 10.0]), rank(1, [99.6 - idle, 38.0, 20.0, 10.0])];
            ranks[1].graphics = Some(Mean { percent: 99.6 - idle, error: 5.8 });
            let late = LateRanks::new(vec![0, 1], late);
            let iteration = late.iteration;
            Slow::of(&Evidence { ranks, iteration, late: vec![late], ..Evidence::default() })
        };
        let kinds =
            |slow: &Slow| slow.causes().map(|cause| (cause.kind, cause.ranks.clone())).collect::<Vec<_>>();
        assert_eq!(kinds(&judged(286, 20.3)), [(Kind::Host, vec![1])]);
        // All GPUs are alike.
        assert_eq!(kinds(&judged(286, 0.1)), [(Kind::Outside, Vec::new())]);
        // Without pauses such a difference can be chance.
        assert_eq!(kinds(&judged(0, 20.3)), [(Kind::Nobody, Vec::new())]);
    }
}
