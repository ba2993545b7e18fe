//! The verdict by counters alone, without a recording: what GPUs and processors did over a period. When ranks
//! launched, and what messages waited for, is not known, so only a GPU that computes longer, and a host that
//! gets too little of the processor, can be named. Pure.

use std::{sync::Arc, time::Duration};

use flow::schema::GpuRow;

use super::{
    activity::Activity,
    change::Slowdown,
    evidence::{Evidence, RankEvidence},
    gathered::ProcessorTime,
    late_ranks::Iteration,
    processor,
    verdict::{Kind, RankName, Slow},
};

/// Counters of a rank over a period, which is the same for all ranks.
#[derive(Clone, Debug, Default)]
pub struct CountedRank {
    pub name: RankName,
    /// Rows of its GPU, in the order of time. The first covers time before the period.
    pub gpu: Vec<Arc<GpuRow>>,
    /// Time of the thread that launches; none, if it was not looked at.
    pub launching: Option<ProcessorTime>,
    /// Time of its proxy's thread.
    pub proxy: Option<ProcessorTime>,
}

/// Counters of a job over a period.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    pub ranks: Vec<CountedRank>,
    /// Ranks with equal work, by their place in `ranks`: groups of two or more.
    pub groups: Vec<Vec<usize>>,
    /// Usual length of an iteration.
    pub iteration: Option<Duration>,
    /// The job became slower: length of a part of its work before, and after.
    pub slower: Option<(Duration, Duration)>,
}

impl Counted {
    /// Judges the job. A host is a fault only where its threads get too little of the processor: that its GPU
    /// has nothing to run can be how the program is made.
    pub fn judge(&self) -> Slow {
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let iteration = self.iteration.map(ns).map(|ns| Iteration { typical_ns: ns, mean_ns: ns, count: 0 });
        let slowdown =
            self.slower.map(|(before, after)| Slowdown { before: ns(before), after: ns(after), since_ns: 0 });
        let evidence = Evidence {
            ranks: self.ranks.iter().map(of_rank).collect(),
            groups: self.groups.clone(),
            iteration,
            slowdown,
            ..Evidence::default()
        };
        let mut slow = Slow::of(&evidence);
        for cause in std::iter::once(&mut slow.first).chain(&mut slow.others) {
            let is_starved = |rank: &i32| {
                let at = evidence.ranks.iter().position(|other| other.name.rank == *rank);
                at.is_some_and(|at| processor::gets_too_little(&evidence, at))
            };
            cause.is_note |= cause.kind == Kind::Host && !cause.ranks.iter().all(is_starved);
        }
        slow
    }
}

fn of_rank(rank: &CountedRank) -> RankEvidence {
    let mut activity = Activity::default();
    for row in &rank.gpu {
        activity.add(row, row.ts_ns);
    }
    let span = rank.gpu.first().zip(rank.gpu.last()).map(|(first, last)| (first.ts_ns, last.ts_ns));
    let (processor, proxy) = (rank.launching, rank.proxy);
    RankEvidence { processor, proxy, ..RankEvidence::new(rank.name.clone(), Some(&activity), span) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank of which a GPU's counters are these, with some noise, for 20 s.
    fn rank(number: u8, graphics: f64, busy: f64, waited: f64) -> CountedRank {
        let row = |second: u64| {
            let noise =
                f64::from(u32::try_from((second * 7919 + u64::from(number) * 13) % 100).unwrap()) / 250.0;
            Arc::new(GpuRow {
                ts_ns: second * 1_000_000_000,
                graphics_active_percent: Some(graphics - noise),
                sm_active_percent: Some(busy + noise),
                tensor_active_percent: Some(busy / 2.0 + noise),
                ..GpuRow::default()
            })
        };
        let time = ProcessorTime {
            ran: Duration::from_secs(10),
            waited: Duration::from_secs_f64(waited),
            all: Duration::from_secs(20),
            ..ProcessorTime::default()
        };
        CountedRank {
            name: RankName { rank: number.into(), pid: 100 + u32::from(number), ..RankName::default() },
            gpu: (0..=20).map(row).collect(),
            launching: Some(time),
            proxy: None,
        }
    }

    fn faults(ranks: [CountedRank; 4], slower: Option<(Duration, Duration)>) -> Vec<(Kind, i32)> {
        let counted =
            Counted { ranks: ranks.into(), groups: vec![vec![0, 1, 2, 3]], iteration: None, slower };
        counted.judge().faults().map(|cause| (cause.kind, cause.ranks[0])).collect()
    }

    #[test]
    fn a_gpu_that_computes_longer_is_named_and_equal_ones_are_not() {
        let even = |number| rank(number, 99.0, 60.0, 0.1);
        assert_eq!(faults([even(0), even(1), even(2), even(3)], None), []);
        assert_eq!(faults([even(0), even(1), rank(2, 99.0, 68.0, 0.1), even(3)], None), [(Kind::Gpu, 2)]);
        // Of ranks that do other work, nothing is known.
        let counted = Counted { ranks: vec![even(0), rank(1, 99.0, 68.0, 0.1)], ..Counted::default() };
        assert_eq!(counted.judge().faults().count(), 0);
    }

    #[test]
    fn a_host_is_named_only_where_it_gets_too_little_of_the_processor() {
        let even = |number| rank(number, 99.0, 60.0, 0.1);
        assert_eq!(faults([even(0), rank(1, 80.0, 60.0, 0.1), even(2), even(3)], None), []);
        let starved = || [even(0), rank(1, 80.0, 60.0, 6.0), even(2), even(3)];
        assert_eq!(faults(starved(), None), [(Kind::Host, 1)]);
        // Without counters of GPUs, that the job became slower shows that the others wait.
        let blind = || starved().map(|rank| CountedRank { gpu: Vec::new(), ..rank });
        assert_eq!(faults(blind(), None), []);
        let slower = (Duration::from_millis(10), Duration::from_millis(15));
        assert_eq!(faults(blind(), Some(slower)), [(Kind::Host, 1)]);
    }
}
