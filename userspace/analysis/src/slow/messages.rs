//! What measured messages tell: of the ranks of a communicator, the one that others wait for waits least.

use super::{
    evidence::{Evidence, MeasuredLink, RankEvidence, TimeShare, WaitingRank},
    launches::median,
    longest_waits::{Culprit, Reason, TIMES_THE_OTHERS, culprit},
    pauses, text,
    verdict::{Cause, FAULT_PERCENT, Kind, STANDARD_ERRORS, above},
};

/// Points of the time by which a proxy may wait longer for a processor than others that wait as long as it does.
const STARVED_ALIKE: f64 = 5.0;
/// A link between proxies that wait for processors is slow if its messages are this many times as long as on any other
/// one.
const TIMES_THE_STARVED: u64 = 2;

/// Returns ranks whose GPUs had the data that they needed and did not go on, ranks that came late, ranks that
/// were not recorded, and links.
pub(super) fn causes(evidence: &Evidence) -> Vec<Cause> {
    let mut causes: Vec<Cause> =
        evidence.links.iter().filter_map(|links| slow_link(evidence, links)).collect();
    let by_link = causes.iter().filter_map(|cause| cause.percent).fold(0.0, f64::max);
    for ranks in &evidence.waits {
        let waits: Vec<_> = ranks.iter().map(|rank| rank.waits.clone()).collect();
        let end = culprit(&waits);
        let found: Vec<Cause> = ranks
            .iter()
            .filter_map(|rank| {
                of_rank(evidence, ranks, rank, end.is_some_and(|end| end.rank == rank.waits.rank))
            })
            .collect();
        if found.is_empty() {
            causes.extend(end.and_then(|end| elsewhere(evidence, ranks, end)));
        }
        // Who waits for a slow link does not hold others up.
        causes.extend(found.into_iter().filter(|cause| cause.percent.unwrap_or(0.0) > 2.0 * by_link));
    }
    causes
}

/// Returns the link whose receiver waits for the network more than those of other links do.
fn slow_link(evidence: &Evidence, links: &[MeasuredLink]) -> Option<Cause> {
    let (slowest, percent, typical_ns) = slowest_link(links)?;
    let [from, to] = [slowest.from, slowest.to].map(|at| evidence.ranks.get(at));
    let (from, to) = (from?, to?);
    let iteration = evidence.iteration;
    if (from.is_starved() || to.is_starved()) && !is_late_by_network(evidence, links, slowest) {
        return None;
    }
    let (from, to) = (&from.name, &to.name);
    Some(Cause {
        kind: Kind::Link,
        ranks: vec![from.rank],
        peer: Some(to.rank),
        text: text::link(from, to.rank, iteration, percent),
        evidence: vec![text::link_evidence(slowest, typical_ns)],
        ..Cause::sized(percent, iteration, 0.95)
    })
}

/// Tells whether messages are late by the network, although proxies that get no processor make them late, too: those at
/// both ends of most other links get as little, and the slow one stands out from each of those links.
fn is_late_by_network(evidence: &Evidence, links: &[MeasuredLink], slowest: &MeasuredLink) -> bool {
    let starved = |at: usize| evidence.ranks.get(at).map_or(0.0, RankEvidence::starved_percent);
    let is_alike = |link: &&&MeasuredLink| {
        starved(link.from) + STARVED_ALIKE >= starved(slowest.from)
            && starved(link.to) + STARVED_ALIKE >= starved(slowest.to)
    };
    let others: Vec<&MeasuredLink> = links.iter().filter(|link| !std::ptr::eq(*link, slowest)).collect();
    let alike = others.iter().filter(is_alike).count();
    let longest_ns = others.iter().map(|link| link.typical_ns).max().unwrap_or(u64::MAX);
    let certain_ns = slowest.typical_ns.saturating_sub(slowest.error_ns);
    alike * 2 > others.len() && certain_ns >= longest_ns.saturating_mul(TIMES_THE_STARVED)
}

/// Returns the link on which messages are longest, by how many points of the time its receiver waits longer
/// than those of the others, and the usual time of a message on the others.
fn slowest_link(links: &[MeasuredLink]) -> Option<(&MeasuredLink, f64, u64)> {
    let share = |link: &MeasuredLink| link.in_network.mean.map_or(0.0, |mean| mean.percent);
    let slowest = links.iter().max_by(|one, other| share(one).total_cmp(&share(other)))?;
    let others = || links.iter().filter(|link| !std::ptr::eq(*link, slowest));
    let typical_ns = median(others().map(|link| link.typical_ns).collect());
    let certain_ns = slowest.typical_ns.saturating_sub(slowest.error_ns);
    if certain_ns < typical_ns.saturating_mul(TIMES_THE_OTHERS) {
        return None;
    }
    let shares: Vec<TimeShare> = others().map(|link| link.in_network).collect();
    Some((slowest, exceeds(slowest.in_network, &shares)?, typical_ns))
}

/// Returns by how many points of the time the messages of a rank take longer than those of others, by itself
/// or by the network on either side.
pub(super) fn excess(evidence: &Evidence, rank: usize) -> Option<f64> {
    let own = evidence.waits.iter().filter_map(|ranks| {
        let own = ranks.iter().find(|waits| waits.rank == rank)?.own;
        let others: Vec<TimeShare> =
            ranks.iter().filter(|waits| waits.rank != rank).map(|waits| waits.own).collect();
        exceeds(own, &others)
    });
    let on_links = evidence.links.iter().filter_map(|links| {
        let (slowest, percent, _) = slowest_link(links)?;
        (slowest.from == rank || slowest.to == rank).then_some(percent)
    });
    own.chain(on_links).reduce(f64::max)
}

/// Half seconds that one rank must stand out in, if nothing else shows that it does.
const MIN_HALVES: u64 = 4;

/// Returns by how many points of the time a rank's share exceeds the median of others, if that is certain: it
/// does so in all of the time alike, or in whole half seconds that the others do not have.
fn exceeds(own: TimeShare, others: &[TimeShare]) -> Option<f64> {
    let difference = above(own.mean, others.iter().map(|other| other.mean))?;
    let most = others.iter().map(|other| other.halves).max().unwrap_or(0);
    let stands_out = own.halves >= MIN_HALVES && own.halves >= most * 3;
    let is_certain = difference.certainty >= STANDARD_ERRORS || stands_out;
    (difference.percent >= FAULT_PERCENT && is_certain).then_some(difference.percent)
}

/// Returns by how many points a rank's share lies below the median of others, as [`exceeds`].
fn falls_short(own: TimeShare, others: &[TimeShare]) -> Option<f64> {
    let difference = above(own.mean, others.iter().map(|other| other.mean))?;
    let least = others.iter().map(|other| other.halves).min().unwrap_or(0);
    let stands_out = least >= MIN_HALVES && own.halves * 3 <= least;
    let is_certain = difference.certainty >= STANDARD_ERRORS || stands_out;
    (difference.percent <= -FAULT_PERCENT && is_certain).then_some(-difference.percent)
}

/// `is_end`: the longest waits lead to this rank.
fn of_rank(evidence: &Evidence, ranks: &[WaitingRank], of: &WaitingRank, is_end: bool) -> Option<Cause> {
    let name = &evidence.ranks.get(of.rank)?.name;
    let is_equal = |other: &&WaitingRank| {
        other.rank != of.rank
            && evidence.groups.iter().any(|group| group.contains(&of.rank) && group.contains(&other.rank))
    };
    let own: Vec<TimeShare> = ranks.iter().filter(is_equal).map(|other| other.own).collect();
    let waiting: Vec<TimeShare> = ranks.iter().filter(is_equal).map(|other| other.waiting).collect();
    let percents = |shares: &[TimeShare]| -> Vec<f64> {
        shares.iter().filter_map(|share| Some(share.mean?.percent)).collect()
    };
    let line = |what: &str, of: TimeShare, others: &[TimeShare]| {
        let of = of.mean.map_or(0.0, |mean| mean.percent);
        format!(
            "{what} {of:.1} % of the time of its connections; of its peers {}",
            text::range(&percents(others))
        )
    };
    let iteration = evidence.iteration;
    let waits = line("it waits for others", of.waiting, &waiting);
    if let Some(percent) = exceeds(of.own, &own) {
        // Others must wait meanwhile.
        let most = percents(&waiting).into_iter().fold(0.0, f64::max);
        return (most >= percent / 2.0).then(|| Cause {
            kind: Kind::Gpu,
            ranks: vec![name.rank],
            text: text::gpu(name, iteration, percent, false),
            evidence: vec![line("its GPU has its input and does not advance", of.own, &own), waits],
            ..Cause::sized(percent, iteration, 0.95)
        });
    }
    let percent = falls_short(of.waiting, &waiting).filter(|_| is_end)?;
    let pauses = pauses::of(evidence, of.rank);
    Some(Cause {
        kind: Kind::Host,
        ranks: vec![name.rank],
        text: text::host(name, &pauses, false, iteration, percent),
        evidence: [waits]
            .into_iter()
            .chain(text::host_evidence(evidence.ranks.get(of.rank)?, &pauses, None, false))
            .chain(text::late_line(evidence, of.rank))
            .collect(),
        ..Cause::sized(percent, iteration, if pauses.is_late() { 0.95 } else { 0.85 })
    })
}

/// Returns what ranks wait for that is no recorded rank: the longest waits lead there.
///
/// `found`: where they lead.
fn elsewhere(evidence: &Evidence, ranks: &[WaitingRank], found: Culprit) -> Option<Cause> {
    let shares = ranks.iter().filter_map(|rank| Some(rank.waiting.mean?.percent));
    let percent = shares.fold(0.0, f64::max);
    if percent < FAULT_PERCENT {
        return None;
    }
    let name = |rank: i32| {
        let of = ranks.iter().find(|other| other.waits.rank == rank)?;
        Some(evidence.ranks.get(of.rank)?.name.clone())
    };
    let (kind, rank, peer, text) = match found.reason {
        Reason::Link => {
            let (from, to) = (name(found.rank)?, found.peer.and_then(name));
            let peer = to.as_ref().map(|to| to.rank).or(found.peer)?;
            (Kind::Link, from.rank, Some(peer), text::link(&from, peer, evidence.iteration, percent))
        }
        Reason::NotRecorded => {
            let text = text::not_recorded(found.rank, evidence.iteration, percent);
            (Kind::Outside, found.rank, None, text)
        }
        Reason::OwnGpu | Reason::Late => return None,
    };
    Some(Cause {
        kind,
        ranks: vec![rank],
        peer,
        text,
        is_note: kind == Kind::Outside,
        ..Cause::sized(percent, evidence.iteration, 0.85)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::slow::{activity::Mean, gathered::ProcessorTime};

    /// A ring whose proxies wait for so many percent of the time, and whose links have so long messages, in µs.
    fn ring(starved: [u64; 3], messages_us: [u64; 3]) -> Evidence {
        let rank = |(number, percent): (i32, u64)| {
            let mut rank = RankEvidence::default();
            rank.name.rank = number;
            let [waited, all] = [Duration::from_millis(percent), Duration::from_millis(100)];
            rank.proxy = Some(ProcessorTime { waited, all, ..ProcessorTime::default() });
            rank
        };
        let link = |(from, us): (usize, u64)| MeasuredLink {
            from,
            to: (from + 1) % 3,
            in_network: TimeShare {
                mean: Some(Mean { percent: if us > 1000 { 30.0 } else { 3.0 }, error: 0.1 }),
                ..TimeShare::default()
            },
            typical_ns: us * 1000,
            error_ns: 0,
            nics: None,
        };
        Evidence {
            ranks: (0..).zip(starved).map(rank).collect(),
            links: vec![messages_us.into_iter().enumerate().map(link).collect()],
            ..Evidence::default()
        }
    }

    fn named(evidence: &Evidence) -> Vec<(Kind, Vec<i32>, Option<i32>)> {
        causes(evidence).into_iter().map(|cause| (cause.kind, cause.ranks, cause.peer)).collect()
    }

    /// A proxy that gets no processor sees its messages late: where all get as little, a link can still stand out.
    #[test]
    fn a_link_between_proxies_that_wait_for_processors_must_stand_out_from_each() {
        let from_1_to_2 = [(Kind::Link, vec![1], Some(2))];
        assert_eq!(named(&ring([0, 0, 0], [100, 5000, 100])), from_1_to_2);
        assert_eq!(named(&ring([30, 30, 30], [100, 5000, 100])), from_1_to_2);
        assert_eq!(named(&ring([30, 30, 30], [3000, 5000, 100])), [], "another link is nearly as slow");
        assert_eq!(named(&ring([0, 0, 30], [100, 5000, 100])), [], "the receiver alone gets no processor");
        assert_eq!(named(&ring([0, 30, 0], [100, 5000, 100])), [], "the sender alone gets no processor");
    }
}
