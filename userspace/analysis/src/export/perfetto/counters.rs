//! Bytes by time: the bytes of messages that ended in each span of time, by rank.
//!
//! Messages do not come in the order in which they ended. So they are counted in spans of one width, which
//! doubles when there are too many: memory is bounded, however long the recording is.

use std::collections::BTreeMap;

use super::tracks::RankId;

/// Bytes that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counted {
    /// Measured bytes of sends, at their end.
    Sent,
    /// Measured bytes of receives, at their end.
    Received,
    /// Bytes that the plan sends, where they follow exactly from it, at the launch.
    Planned,
}

impl Counted {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent (measured)",
            Self::Received => "received (measured)",
            Self::Planned => "to be sent (planned)",
        }
    }
}

/// Most spans of all counters together.
const MAX_SPANS: usize = 1 << 20;

const NS_PER_MS: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Counters {
    width_ns: u64,
    counted: BTreeMap<(RankId, Counted, u64), u64>,
}

impl Default for Counters {
    fn default() -> Self {
        Self { width_ns: NS_PER_MS, counted: BTreeMap::new() }
    }
}

/// Values of a counter: the times from which each one holds.
pub(super) type Values = Vec<(u64, u64)>;

impl Counters {
    pub(super) fn add(&mut self, rank: RankId, counted: Counted, at_ns: u64, bytes: u64) {
        self.add_within(rank, counted, at_ns, bytes, MAX_SPANS);
    }

    fn add_within(&mut self, rank: RankId, counted: Counted, at_ns: u64, bytes: u64, most: usize) {
        let span = self.counted.entry((rank, counted, at_ns / self.width_ns)).or_default();
        *span = span.saturating_add(bytes);
        // If that many ranks have counters, each counter has one span at last.
        while self.counted.len() > most && self.width_ns < u64::MAX >> 1 {
            self.width_ns *= 2;
            let mut wider: BTreeMap<(RankId, Counted, u64), u64> = BTreeMap::new();
            for ((rank, counted, span), bytes) in std::mem::take(&mut self.counted) {
                let sum = wider.entry((rank, counted, span / 2)).or_default();
                *sum = sum.saturating_add(bytes);
            }
            self.counted = wider;
        }
    }

    pub(super) fn width_ms(&self) -> u64 {
        self.width_ns / NS_PER_MS
    }

    /// Takes each counter with its values in the order of time. Between spans it is 0.
    pub(super) fn take(&mut self) -> Vec<(RankId, Counted, Values)> {
        let mut counters: Vec<(RankId, Counted, Values)> = Vec::new();
        let mut open_until = 0;
        for ((rank, counted, span), bytes) in std::mem::take(&mut self.counted) {
            let (begin, end) = (span * self.width_ns, span.saturating_add(1).saturating_mul(self.width_ns));
            match counters.last_mut() {
                Some((of, what, values)) if (*of, *what) == (rank, counted) => {
                    if open_until < begin {
                        values.push((open_until, 0));
                    }
                    values.push((begin, bytes));
                }
                last => {
                    if let Some((_, _, values)) = last {
                        values.push((open_until, 0));
                    }
                    counters.push((rank, counted, vec![(begin, bytes)]));
                }
            }
            open_until = end;
        }
        if let Some((_, _, values)) = counters.last_mut() {
            values.push((open_until, 0));
        }
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spans become wider, and no byte is lost.
    #[test]
    fn what_is_counted_stays_whole_when_there_is_too_much() {
        let rank = RankId(0);
        let mut counters = Counters::default();
        for at in 0..1000 {
            counters.add_within(rank, Counted::Sent, at * NS_PER_MS, 1, 100);
            counters.add_within(rank, Counted::Received, at * 1000, 2, 100);
        }
        assert!(counters.counted.len() <= 100 && counters.width_ms() == 16, "{}", counters.width_ms());
        let taken = counters.take();
        assert_eq!(taken.len(), 2);
        for (_, counted, values) in taken {
            let bytes: u64 = values.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(bytes, if counted == Counted::Sent { 1000 } else { 2000 });
            assert!(values.is_sorted_by(|a, b| a.0 < b.0), "{values:?}");
            assert_eq!(values.last().unwrap().1, 0);
        }
    }

    #[test]
    fn between_spans_nothing_is_counted() {
        let rank = RankId(0);
        let mut counters = Counters::default();
        for at_ms in [5, 5, 6, 9] {
            counters.add(rank, Counted::Sent, at_ms * NS_PER_MS + 7, 10);
        }
        let ms = |values: &Values| -> Vec<(u64, u64)> {
            values.iter().map(|(at, bytes)| (at / NS_PER_MS, *bytes)).collect()
        };
        let [(_, _, values)] = &counters.take()[..] else { panic!("one counter") };
        assert_eq!(ms(values), [(5, 20), (6, 10), (7, 0), (9, 10), (10, 0)]);
    }
}
