//! Ranks that get too little of the processor: by their container's limit, or by what else runs on their host.

use super::{
    evidence::{Evidence, RankEvidence},
    messages,
    pauses::Pauses,
    text,
    verdict::{Cause, Kind},
};

/// Share of the time in which a thread waits for a processor, from which on that can be what others wait for.
const WAITED_PERCENT: f64 = 5.0;

/// Share of the periods of a limit in which it is used up, from which on it is told.
const THROTTLED_PERCENT: f64 = 25.0;

/// The rank has so many times as much of it as any other.
const TIMES_THE_OTHERS: f64 = 3.0;

/// Returns ranks that get too little of the processor. Where nothing shows what that costs, it is a note.
pub(super) fn causes(evidence: &Evidence) -> Vec<Cause> {
    let stands_out = |at: usize, least: f64, measure: fn(&RankEvidence) -> f64| {
        let others = evidence.ranks.iter().enumerate().filter(|(other, _)| *other != at);
        let most = others.map(|(_, rank)| measure(rank)).fold(0.0, f64::max);
        let own = evidence.ranks.get(at).map_or(0.0, measure);
        own >= least && own >= most * TIMES_THE_OTHERS
    };
    let of_rank = |(at, rank): (usize, &RankEvidence)| {
        let is_throttled = stands_out(at, THROTTLED_PERCENT, RankEvidence::throttled_percent);
        if !is_throttled && !stands_out(at, WAITED_PERCENT, RankEvidence::waited_percent) {
            return None;
        }
        let slower = evidence.slowdown.map(|slowdown| slowdown.percent_of_after());
        let cost = messages::excess(evidence, at).or(slower);
        if cost.is_none() && !is_throttled {
            return None;
        }
        let sized = cost.map(|percent| Cause::sized(percent, evidence.iteration, 0.9));
        let throttled = is_throttled.then(|| rank.throttled_percent());
        Some(Cause {
            kind: Kind::Host,
            ranks: vec![rank.name.rank],
            is_note: cost.is_none(),
            text: text::starved(&rank.name, throttled, evidence.iteration, cost),
            evidence: text::host_evidence(rank, &Pauses::default(), None, false),
            ..sized.unwrap_or_default()
        })
    };
    evidence.ranks.iter().enumerate().filter_map(of_rank).collect()
}
