//! Bytes by time, of all ranks together: in spans of one width, which doubles when there are too many.

use std::collections::BTreeMap;

use serde::Serialize;

/// Most spans on the page.
const MAX_SPANS: usize = 1200;

const FIRST_WIDTH_NS: u64 = 1_000_000;

/// Bytes that are counted in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// Measured bytes of sends, at their end.
    Sent = 0,
    /// Planned bytes of sends, at the launch: exact ones and capacities.
    Planned = 1,
}

#[derive(Debug)]
pub(super) struct Rates {
    width_ns: u64,
    spans: BTreeMap<u64, [u64; 2]>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RatesData {
    pub(super) width_us: u64,
    /// Begin of the first span; the others follow, without a gap.
    pub(super) at: i64,
    pub(super) sent: Vec<u64>,
    pub(super) planned: Vec<u64>,
}

impl Default for Rates {
    fn default() -> Self {
        Self { width_ns: FIRST_WIDTH_NS, spans: BTreeMap::new() }
    }
}

impl Rates {
    pub(super) fn add(&mut self, counted: Counted, at_ns: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let span = self.spans.entry(at_ns / self.width_ns).or_default();
        let sum = &mut span[counted as usize];
        *sum = sum.saturating_add(bytes);
        // Spans are shown without gaps, so they count from the first to the last.
        while self.length() > MAX_SPANS as u64 && self.width_ns < u64::MAX >> 1 {
            self.width_ns *= 2;
            for (span, sums) in std::mem::take(&mut self.spans) {
                let wider = self.spans.entry(span / 2).or_default();
                for (wider, sum) in wider.iter_mut().zip(sums) {
                    *wider = wider.saturating_add(sum);
                }
            }
        }
    }

    fn length(&self) -> u64 {
        let ends = self.spans.first_key_value().zip(self.spans.last_key_value());
        ends.map_or(0, |((first, _), (last, _))| last - first + 1)
    }

    pub(super) fn data(&self, t0_ns: u64) -> RatesData {
        let first = self.spans.first_key_value().map_or(0, |(span, _)| *span);
        let all = first..first.saturating_add(self.length());
        let sums = |counted: Counted| {
            let sum = |span| self.spans.get(&span).map_or(0, |sums| sums[counted as usize]);
            all.clone().map(sum).collect()
        };
        let at_ns = first.saturating_mul(self.width_ns);
        RatesData {
            width_us: self.width_ns / 1000,
            at: (at_ns / 1000).cast_signed() - (t0_ns / 1000).cast_signed(),
            sent: sums(Counted::Sent),
            planned: sums(Counted::Planned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_get_wider_and_lose_nothing() {
        let mut rates = Rates::default();
        let (second, day) = (1_000_000_000, 86_400_000_000_000);
        for at in [0, second, 2 * second, day] {
            rates.add(Counted::Sent, day + at, 100);
            rates.add(Counted::Planned, day + at, 7);
        }
        let data = rates.data(day);
        assert!(data.sent.len() <= MAX_SPANS && data.sent.len() > MAX_SPANS / 3, "{}", data.sent.len());
        assert_eq!((data.sent.iter().sum::<u64>(), data.planned.iter().sum::<u64>()), (400, 28));
        assert!(data.at <= 0 && data.at > -data.width_us.cast_signed(), "{data:?}");
    }
}
