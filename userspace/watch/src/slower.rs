//! A change point in a job's pace, against its own past. Pure.
//!
//! The pace is collectives a second: as long as a job does the same, it falls as iterations get longer. It is
//! measured in bins that are longer than some iterations, so that a bin's pace hardly depends on where it
//! begins.

use std::{collections::VecDeque, time::Duration};

/// Shortest bin, and iterations that a bin has at least.
const BIN: Duration = Duration::from_secs(10);
const ITERATIONS: u32 = 3;
/// Bins that tell of now: a minute.
const RECENT: usize = 6;
/// Fewest and most bins of the past that now is compared with: five and ten minutes.
const LEAST: usize = 30;
const MOST: usize = 60;
/// Parts of the pace of the past: below the first a job is slower, from the second on it is not any more.
const SLOWER: f64 = 0.8;
const MENDED: f64 = 0.9;
/// Part of the pace of the past below which a job crawls, bins of now and fewest of the past that tell of it.
const CRAWLS: f64 = 0.2;
const CRAWLING: usize = 3;
const LEAST_BEFORE: usize = 12;
/// Bins after which a slower pace is the usual one: half an hour.
const USUAL: usize = 180;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    /// The job is slower: its pace now, and before.
    Begins { now: f64, before: f64 },
    /// The pace is as before.
    Mended,
    /// The slower pace has become the usual one.
    Usual,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    bins: VecDeque<f64>,
    begun: Option<Duration>,
    count: u64,
    /// Pace before the change that is open, and bins since then.
    open: Option<(f64, usize)>,
}

impl Pace {
    /// Returns the pace before the change that is open, and the pace now, in collectives a second.
    pub(crate) fn slower(&self) -> Option<(f64, f64)> {
        let (before, _) = self.open?;
        let recent = self.bins.iter().rev().take(RECENT);
        Some((before, recent.sum::<f64>() / f64::from(u32::try_from(RECENT).unwrap_or(1))))
    }

    /// Returns the change that is open, if the job is as slow now.
    pub(crate) fn lasts(&self) -> Option<Change> {
        let (before, now) = self.slower()?;
        let mut recent = self.bins.iter().rev().take(RECENT);
        recent.all(|pace| *pace < SLOWER * before).then_some(Change::Begins { now, before })
    }

    /// Returns the pace before and now of a job that moves, and does much less than before. It may do something else
    /// now, so that this is only a suspicion.
    pub(crate) fn crawls(&self) -> Option<(f64, f64)> {
        let past = self.bins.len().checked_sub(CRAWLING).filter(|past| *past >= LEAST_BEFORE)?;
        // Three quarters of the past were faster: a job that has handed its weights out does not crawl.
        let mut sorted: Vec<f64> = self.bins.iter().take(past).copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let before = *sorted.get(past / 4)?;
        let recent = self.bins.iter().skip(past);
        let is_less = self.open.is_none() && recent.clone().all(|pace| *pace < CRAWLS * before);
        is_less.then(|| (before, recent.sum::<f64>() / f64::from(u32::try_from(CRAWLING).unwrap_or(1))))
    }

    /// Takes note that a job that crawls is slower: this ends as any such change does.
    pub(crate) fn open(&mut self, before: f64) {
        self.open = Some((before, 0));
    }

    /// Takes the collectives since the reading before. `stands`: ranks wait for something else.
    pub(crate) fn note(
        &mut self,
        collectives: u64,
        now: Duration,
        stands: bool,
        usual: Option<Duration>,
    ) -> Option<Change> {
        if stands {
            (self.begun, self.count) = (None, 0);
            return None;
        }
        let Some(begun) = self.begun else {
            self.begun = Some(now);
            return None;
        };
        self.count = self.count.saturating_add(collectives);
        let length = now.saturating_sub(begun);
        if length < BIN.max(usual.unwrap_or_default() * ITERATIONS) {
            return None;
        }
        let count = u32::try_from(std::mem::take(&mut self.count)).unwrap_or(u32::MAX);
        self.begun = Some(now);
        // A job that does nothing is not slow.
        if count == 0 {
            return None;
        }
        self.push(f64::from(count) / length.as_secs_f64())
    }

    fn push(&mut self, pace: f64) -> Option<Change> {
        self.bins.push_back(pace);
        if self.bins.len() > MOST + RECENT {
            self.bins.pop_front();
        }
        let past = self.bins.len().checked_sub(RECENT)?;
        let recent: Vec<f64> = self.bins.iter().skip(past).copied().collect();
        if let Some((before, since)) = &mut self.open {
            *since += 1;
            if recent.iter().all(|pace| *pace >= MENDED * *before) {
                self.open = None;
                return Some(Change::Mended);
            }
            if *since >= USUAL {
                self.open = None;
                self.bins.drain(..past);
                return Some(Change::Usual);
            }
            return None;
        }
        if past < LEAST {
            return None;
        }
        let mut sorted: Vec<f64> = self.bins.iter().take(past).copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (before, low) = (*sorted.get(past / 2)?, *sorted.get(past / 20)?);
        if !recent.iter().all(|pace| *pace < SLOWER * before && *pace < low) {
            return None;
        }
        self.open = Some((before, 0));
        let now = recent.iter().sum::<f64>() / f64::from(u32::try_from(recent.len()).unwrap_or(1));
        Some(Change::Begins { now, before })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a job for so many seconds at so many collectives a second, some of them more and less.
    fn run(pace: &mut Pace, clock: &mut u64, seconds: u64, collectives: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        for _ in 0..seconds {
            *clock += 1;
            let wobble = collectives * (*clock % 7) / 40;
            changes.extend(pace.note(collectives + wobble, Duration::from_secs(*clock), false, None));
        }
        changes
    }

    #[test]
    fn a_job_that_gets_slower_begins_once_and_ends_once_when_it_is_mended() {
        let (mut pace, mut clock) = (Pace::default(), 0);
        assert!(run(&mut pace, &mut clock, 900, 100).is_empty());
        let begins = run(&mut pace, &mut clock, 600, 60);
        let [Change::Begins { now, before }] = begins[..] else { panic!("{begins:?}") };
        assert!((0.55..0.65).contains(&(now / before)), "{now} {before}");
        assert_eq!(run(&mut pace, &mut clock, 300, 100), [Change::Mended]);
        assert!(run(&mut pace, &mut clock, 3000, 100).is_empty());
    }

    #[test]
    fn a_slower_pace_becomes_the_usual_one_and_small_or_short_changes_are_none() {
        let (mut pace, mut clock) = (Pace::default(), 0);
        run(&mut pace, &mut clock, 900, 100);
        assert!(run(&mut pace, &mut clock, 600, 90).is_empty(), "a tenth");
        assert!(run(&mut pace, &mut clock, 900, 100).is_empty());
        assert!(run(&mut pace, &mut clock, 40, 30).is_empty(), "for forty seconds");
        run(&mut pace, &mut clock, 900, 100);
        assert_eq!(run(&mut pace, &mut clock, 3000, 50).last(), Some(&Change::Usual));
        assert!(run(&mut pace, &mut clock, 3000, 50).is_empty());
    }

    #[test]
    fn what_stands_or_has_just_begun_is_not_slow() {
        let (mut pace, mut clock) = (Pace::default(), 0);
        run(&mut pace, &mut clock, 200, 100);
        assert!(run(&mut pace, &mut clock, 100, 10).is_empty(), "three minutes are no past");
        let (mut pace, mut clock) = (Pace::default(), 0);
        run(&mut pace, &mut clock, 900, 100);
        for second in 0..600 {
            assert_eq!(pace.note(0, Duration::from_secs(clock + second), true, None), None);
        }
        clock += 600;
        assert!(run(&mut pace, &mut clock, 300, 0).is_empty(), "it does nothing");
        assert!(run(&mut pace, &mut clock, 600, 100).is_empty());
    }
}
