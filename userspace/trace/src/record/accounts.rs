//! Accounts for every hit: compares the kernel's counts with the records that came or were dropped. Hits are
//! also numbered per probe and CPU: a missing number shows when a loss happened.
//!
//! Each record carries how many records of its process were lost before it. If the first record of an op and
//! the one that completes it differ in that count, the op says `incomplete`; it takes no peers that come
//! after a loss.

use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
};

use anyhow::Result;
use flow::{
    recording::FirstHit,
    schema::{CpuReport, Gap},
    session::{ProbeReport, SessionReport},
};
use ncclflow_common::{ProbeCounters, RecordHeader};

use crate::kernel::{loader::Attachment, stream::ProbeCounts};

/// Most gaps told apart per probe and CPU, and in the report. Further ones are merged with neighbours.
const MAX_GAPS: usize = 256;

/// Records delivered by each probe, and the gaps between them.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    delivered: ProbeCounts,
    gaps: Gaps,
}

impl Accounts {
    /// Begins accounts at these hits; earlier hits are not expected.
    pub(super) fn beginning_at(hits: &[FirstHit]) -> Self {
        let mut accounts = Self::default();
        for first in hits {
            accounts.gaps.begin_at(first.probe, first.cpu, first.hit);
        }
        accounts
    }

    /// Counts a record of a probe that we know.
    pub(super) fn note(&mut self, header: &RecordHeader) {
        self.delivered.count(header.probe, header.cpu);
        self.gaps.note(header);
    }

    /// Returns how many records came.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered.total()
    }

    /// Adds the accounts of records that came later.
    pub(super) fn append(&mut self, later: &Self) {
        self.delivered.add(&later.delivered);
        self.gaps.append(&later.gaps);
    }
}

/// Kernel counters at the opening of a window; empty for a whole session.
#[derive(Clone, Debug, Default)]
pub(super) struct Baseline(
    /// Counters by cookie and CPU.
    Vec<Vec<ProbeCounters>>,
);

impl Baseline {
    pub(super) fn of(attachment: &Attachment) -> Result<Self> {
        let counters = attachment.probes().iter().map(|probe| attachment.counters(probe));
        Ok(Self(counters.collect::<Result<_>>()?))
    }

    /// Returns the number of the next hit, for each probe and CPU that has been hit.
    pub(super) fn next_hits(&self) -> Vec<FirstHit> {
        let of_probe = |(probe, cpus)| {
            (0..).zip(cpus).map(move |(cpu, now): (_, &ProbeCounters)| FirstHit { probe, cpu, hit: now.hits })
        };
        (0..).zip(&self.0).flat_map(of_probe).filter(|first| first.hit > 0).collect()
    }

    fn at(&self, cookie: u32, cpu: usize) -> ProbeCounters {
        let cookie = usize::try_from(cookie).unwrap_or(usize::MAX);
        self.0.get(cookie).and_then(|cpus| cpus.get(cpu)).copied().unwrap_or_default()
    }
}

/// Draws up the accounts since the baseline, once the session is closed and all records are taken. Returns
/// the number of hits unaccounted for and of records never counted as a hit; if not 0, ncclflow is at fault.
pub(super) fn draw_up(
    report: &mut SessionReport,
    attachment: &Attachment,
    accounts: &mut Accounts,
    dropped: &ProbeCounts,
    baseline: &Baseline,
    now_ns: u64,
) -> Result<u64> {
    let Accounts { delivered, gaps } = accounts;
    let (mut probes, mut cpus, mut unaccounted) = (Vec::new(), Vec::<CpuReport>::new(), 0);
    for probe in attachment.probes() {
        let (mut sum, mut faulted, mut disarmed, mut lossy) = (CpuReport::default(), 0, 0, Vec::new());
        for (cpu, counters) in attachment.counters(probe)?.iter().enumerate() {
            let number = u32::try_from(cpu).unwrap_or(u32::MAX);
            let before = baseline.at(probe.cookie, cpu);
            let account = CpuReport {
                cpu: number,
                hits: counters.hits.saturating_sub(before.hits),
                delivered: delivered.of(probe.cookie, cpu),
                lost: counters.lost_full.saturating_sub(before.lost_full),
                dropped: dropped.of(probe.cookie, cpu),
            };
            let missing =
                gaps.end(u16::try_from(probe.cookie).unwrap_or(u16::MAX), number, counters.hits, now_ns);
            let known = account.lost + account.dropped;
            // Two ways to find losses: by counting, and by missing numbers.
            unaccounted += account.hits.abs_diff(account.delivered + known).max(missing.abs_diff(known));
            if account.hits != account.delivered {
                lossy.push(account);
            }
            sum.add(&account);
            faulted += counters.faulted.saturating_sub(before.faulted);
            disarmed += counters.disarmed.saturating_sub(before.disarmed);
            if cpus.len() <= cpu {
                cpus.push(CpuReport { cpu: number, ..CpuReport::default() });
            }
            if let Some(total) = cpus.get_mut(cpu) {
                total.add(&account);
            }
        }
        probes.push(ProbeReport {
            function: probe.function.clone(),
            symbol: probe.symbol.clone(),
            at: probe.place,
            part: probe.part.map(Cow::Borrowed),
            pid: probe.pid,
            library: probe.library,
            hits: sum.hits + disarmed,
            delivered: sum.delivered,
            lost: sum.lost,
            dropped: sum.dropped,
            disarmed,
            faulted,
            cpus: lossy,
        });
    }
    cpus.retain(|cpu| cpu.hits + cpu.delivered > 0);
    (report.probes, report.cpus, report.gaps) = (probes, cpus, gaps.report());
    Ok(unaccounted)
}

/// Adds the hits that came while probes were detached, for which no records are owed. `report` lists the
/// probes in the attachment's order.
pub(super) fn add_hits_while_detaching(report: &mut SessionReport, attachment: &Attachment) -> Result<()> {
    for (known, probe) in report.probes.iter_mut().zip(attachment.probes()) {
        let disarmed: u64 = attachment.counters(probe)?.iter().map(|cpu| cpu.disarmed).sum();
        known.hits += disarmed.saturating_sub(known.disarmed);
        known.disarmed = known.disarmed.max(disarmed);
    }
    Ok(())
}

/// A range of numbers that have not come.
#[derive(Clone, Debug)]
struct Missing {
    first: u64,
    last: u64,
    gap: Gap,
}

/// Hit numbers of one probe on one CPU.
#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    last_ns: u64,
    missing: VecDeque<Missing>,
}

#[derive(Debug, Default)]
struct Gaps {
    by_probe_and_cpu: HashMap<(u16, u32), Numbers>,
}

impl Gaps {
    pub(super) fn note(&mut self, header: &RecordHeader) {
        let numbers = self.by_probe_and_cpu.entry((header.probe, header.cpu)).or_default();
        if header.hit < numbers.next {
            numbers.late(header.hit);
        } else {
            numbers.until(header.hit, header.ts_ns);
            numbers.next = header.hit.saturating_add(1);
            numbers.last_ns = header.ts_ns;
        }
    }

    /// Makes `hit` the first expected number of this probe on this CPU.
    pub(super) fn begin_at(&mut self, probe: u16, cpu: u32, hit: u64) {
        self.by_probe_and_cpu.insert((probe, cpu), Numbers { next: hit, ..Numbers::default() });
    }

    /// Appends the gaps of later accounts, and goes on where they ended.
    pub(super) fn append(&mut self, later: &Self) {
        for (key, later) in &later.by_probe_and_cpu {
            let numbers = self.by_probe_and_cpu.entry(*key).or_default();
            numbers.missing.extend(later.missing.iter().cloned());
            numbers.next = numbers.next.max(later.next);
            numbers.last_ns = numbers.last_ns.max(later.last_ns);
        }
    }

    /// Ends the numbers of this probe on this CPU, of which the kernel has counted `hits`. Returns how many
    /// are missing.
    pub(super) fn end(&mut self, probe: u16, cpu: u32, hits: u64, now_ns: u64) -> u64 {
        let numbers = self.by_probe_and_cpu.entry((probe, cpu)).or_default();
        numbers.until(hits, now_ns);
        numbers.next = numbers.next.max(hits);
        numbers.missing.iter().map(|missing| missing.gap.records).sum()
    }

    /// Returns the gaps of all probes and CPUs by time, with overlapping ones merged.
    pub(super) fn report(&self) -> Vec<Gap> {
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
            let join = |mut first: Gap, second: Gap| {
                first.join(&second);
                first
            };
            merged = merged.chunks(2).filter_map(|pair| pair.iter().copied().reduce(join)).collect();
        }
        merged
    }
}

impl Numbers {
    /// Marks the numbers from the next one to before `hit` as missing.
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

    /// Takes a number that comes after a larger one: its program was preempted.
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
        RecordHeader { probe: 1, cpu: 0, hit, ts_ns: hit.saturating_add(1000), ..RecordHeader::default() }
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
    fn the_largest_number_is_one_as_any_other() {
        let mut gaps = Gaps::default();
        for hit in [0, u64::MAX, 7, u64::MAX] {
            gaps.note(&header(hit));
        }
        assert_eq!(gaps.report().len(), 1);
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
