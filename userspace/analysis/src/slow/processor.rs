//! Ranks that get too little of the processor: by their container's limit, or by what else runs on their
//! host.

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

fn is_throttled(evidence: &Evidence, at: usize) -> bool {
    stands_out(evidence, at, THROTTLED_PERCENT, RankEvidence::throttled_percent)
}

/// Tells whether a rank, and no other one, gets too little of the processor.
pub(super) fn gets_too_little(evidence: &Evidence, at: usize) -> bool {
    is_throttled(evidence, at) || stands_out(evidence, at, WAITED_PERCENT, RankEvidence::waited_percent)
}

fn stands_out(evidence: &Evidence, at: usize, least: f64, measure: fn(&RankEvidence) -> f64) -> bool {
    let others = evidence.ranks.iter().enumerate().filter(|(other, _)| *other != at);
    let most = others.map(|(_, rank)| measure(rank)).fold(0.0, f64::max);
    let own = evidence.ranks.get(at).map_or(0.0, measure);
    own >= least && own >= most * TIMES_THE_OTHERS
}

/// Returns ranks that get too little of the processor. Where nothing shows what that costs, it is a note.
pub(super) fn causes(evidence: &Evidence) -> Vec<Cause> {
    let of_rank = |(at, rank): (usize, &RankEvidence)| {
        let is_throttled = is_throttled(evidence, at);
        if !gets_too_little(evidence, at) {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::{change::Slowdown, gathered::ProcessorTime, verdict::RankName},
        *,
    };

    fn rank(rank: i32, waited_ms: u64, throttled: u64) -> RankEvidence {
        let time = ProcessorTime {
            ran: Duration::from_millis(100),
            waited: Duration::from_millis(waited_ms),
            all: Duration::from_secs(1),
            periods: 10,
            throttled,
        };
        RankEvidence {
            name: RankName { rank, ..RankName::default() },
            processor: Some(time),
            ..RankEvidence::default()
        }
    }

    fn judged(ranks: [RankEvidence; 3], slowdown: Option<Slowdown>) -> Vec<(i32, bool, Option<f64>)> {
        let evidence = Evidence { ranks: ranks.into(), slowdown, ..Evidence::default() };
        let causes = causes(&evidence);
        causes.iter().map(|cause| (cause.ranks[0], cause.is_note, cause.percent)).collect()
    }

    #[test]
    fn a_rank_that_waits_for_a_processor_is_named_where_it_costs_something() {
        let slower = Some(Slowdown { before: 50, after: 100, since_ns: 1 });
        let starved = || [rank(0, 10, 0), rank(1, 400, 0), rank(2, 20, 0)];
        assert_eq!(judged(starved(), slower), [(1, false, Some(50.0))]);
        assert_eq!(judged(starved(), None), [], "nothing shows that anybody waits for it");
        // A host on which all threads wait names nobody.
        assert_eq!(judged([rank(0, 300, 0), rank(1, 400, 0), rank(2, 350, 0)], slower), []);
        assert_eq!(judged([rank(0, 0, 0), rank(1, 40, 0), rank(2, 0, 0)], slower), [], "too little");
    }

    #[test]
    fn a_limit_that_stops_a_process_is_told_and_is_a_note_where_its_cost_is_not_known() {
        assert_eq!(judged([rank(0, 0, 0), rank(1, 0, 0), rank(2, 0, 9)], None), [(2, true, None)]);
        assert_eq!(judged([rank(0, 0, 8), rank(1, 0, 8), rank(2, 0, 9)], None), [], "all alike");
        assert_eq!(judged([rank(0, 0, 0), rank(1, 0, 0), rank(2, 0, 2)], None), []);
    }
}
