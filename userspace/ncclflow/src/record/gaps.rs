//! Where records are missing: hits are numbered per probe and CPU, and a number that does not come is a loss.

use std::collections::{HashMap, VecDeque};

use flow::schema::Gap;
use ncclflow_common::RecordHeader;

/// Gaps that are told apart per probe and CPU, and in the report. Beyond that neighbours become one.
const MAX_GAPS: usize = 256;

/// Numbers that have not come.
#[derive(Clone, Debug)]
struct Missing {
    first: u64,
    last: u64,
    gap: Gap,
}

/// The numbers of one probe on one CPU.
#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    last_ns: u64,
    missing: VecDeque<Missing>,
}

/// All numbers.
#[derive(Debug, Default)]
pub struct Gaps {
    by_probe_and_cpu: HashMap<(u16, u32), Numbers>,
}

impl Gaps {
    /// A record has come.
    pub fn note(&mut self, header: &RecordHeader) {
        let numbers = self.by_probe_and_cpu.entry((header.probe, header.cpu)).or_default();
        if header.hit < numbers.next {
            numbers.late(header.hit);
        } else {
            numbers.until(header.hit, header.ts_ns);
            numbers.next = header.hit + 1;
            numbers.last_ns = header.ts_ns;
        }
    }

    /// Hits before this number were not meant to come.
    pub fn begin_at(&mut self, probe: u16, cpu: u32, hit: u64) {
        self.by_probe_and_cpu.insert((probe, cpu), Numbers { next: hit, ..Numbers::default() });
    }

    /// Goes on where others, which came after these, ended.
    pub fn append(&mut self, later: &Self) {
        for (key, later) in &later.by_probe_and_cpu {
            let numbers = self.by_probe_and_cpu.entry(*key).or_default();
            numbers.missing.extend(later.missing.iter().cloned());
            numbers.next = numbers.next.max(later.next);
            numbers.last_ns = numbers.last_ns.max(later.last_ns);
        }
    }

    /// No more come, and the kernel has counted so many hits of this probe on this CPU. Gives the number of
    /// those that are missing.
    pub fn end(&mut self, probe: u16, cpu: u32, hits: u64, now_ns: u64) -> u64 {
        let numbers = self.by_probe_and_cpu.entry((probe, cpu)).or_default();
        numbers.until(hits, now_ns);
        numbers.next = numbers.next.max(hits);
        numbers.missing.iter().map(|missing| missing.gap.records).sum()
    }

    /// The gaps of all probes and CPUs by time, those that overlap as one.
    pub fn report(&self) -> Vec<Gap> {
        let numbers = self.by_probe_and_cpu.values();
        let mut gaps: Vec<Gap> =
            numbers.flat_map(|numbers| &numbers.missing).map(|missing| missing.gap).collect();
        gaps.sort_by_key(|gap| (gap.from_ns, gap.to_ns));
        let mut merged: Vec<Gap> = Vec::new();
        for gap in gaps {
            match merged.last_mut() {
                Some(last) if gap.from_ns <= last.to_ns => last.join(&gap),
                _ => merged.push(gap),
            }
        }
        while merged.len() > MAX_GAPS {
            merged = merged
                .chunks(2)
                .filter_map(|pair| {
                    let (first, rest) = pair.split_first()?;
                    let mut joined = *first;
                    for gap in rest {
                        joined.join(gap);
                    }
                    Some(joined)
                })
                .collect();
        }
        merged
    }
}

impl Numbers {
    /// What lies between the next number and `hit` is missing.
    fn until(&mut self, hit: u64, ts_ns: u64) {
        if hit <= self.next {
            return;
        }
        let gap = Gap { from_ns: self.last_ns, to_ns: ts_ns.max(self.last_ns), records: hit - self.next };
        self.missing.push_back(Missing { first: self.next, last: hit - 1, gap });
        if self.missing.len() > MAX_GAPS
            && let Some(oldest) = self.missing.pop_front()
            && let Some(next) = self.missing.front_mut()
        {
            next.first = oldest.first;
            next.gap.join(&oldest.gap);
        }
    }

    /// A number comes after a larger one: its program was preempted in the middle.
    fn late(&mut self, hit: u64) {
        let at = self.missing.iter().rposition(|missing| (missing.first..=missing.last).contains(&hit));
        let Some(at) = at else { return };
        if let Some(missing) = self.missing.get_mut(at) {
            missing.gap.records = missing.gap.records.saturating_sub(1);
            if missing.gap.records == 0 {
                self.missing.remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(hit: u64) -> RecordHeader {
        RecordHeader { probe: 1, cpu: 0, hit, ts_ns: 1000 + hit, ..RecordHeader::default() }
    }

    #[test]
    fn numbers_that_do_not_come_are_missing_and_late_ones_are_not() {
        let mut gaps = Gaps::default();
        for hit in [0, 1, 5, 7, 6, 8, 20] {
            gaps.note(&header(hit));
        }
        assert_eq!(gaps.end(1, 0, 25, 5000), 3 + 11 + 4);
        assert_eq!(gaps.end(2, 3, 7, 5000), 7, "a probe of which nothing came");
        let mut other = Gaps::default();
        other.note(&header(0));
        assert_eq!(other.end(1, 0, 1, 5000), 0);
        assert!(other.report().is_empty());
        let only = |gaps: &Gaps| gaps.report().iter().map(|gap| gap.records).sum::<u64>();
        assert_eq!(only(&gaps), 25);
    }

    #[test]
    fn gaps_say_when_and_never_become_too_many() {
        let mut gaps = Gaps::default();
        for hit in (0..100_000).step_by(10) {
            gaps.note(&header(hit));
        }
        let report = gaps.report();
        assert!(report.len() <= MAX_GAPS);
        assert_eq!(report.iter().map(|gap| gap.records).sum::<u64>(), 9_999 * 9);
        assert_eq!(report.first().map(|gap| gap.from_ns), Some(1000));
        assert!(report.windows(2).all(|pair| pair[0].to_ns <= pair[1].from_ns));
    }
}
