//! Rhythm of a communicator: how long an iteration usually takes, by when its counters move and stand. Pure.

use std::{collections::VecDeque, time::Duration};

/// Intervals that are kept.
const KEPT: usize = 32;
/// Intervals from which on there is a rhythm.
const LEAST: usize = 3;
/// Longest interval that counts: longer ones are pauses.
const LONGEST: Duration = Duration::from_mins(30);

/// Beginnings of bursts: moments at which counters moved after they had stood. Counters that move at every
/// reading have no bursts: their iterations are shorter than the time between readings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rhythm {
    stands: bool,
    begun: Option<Duration>,
    intervals: VecDeque<Duration>,
}

impl Rhythm {
    /// Takes note of a reading at which the counters had moved or stood since the reading before.
    pub(crate) fn note(&mut self, moved: bool, now: Duration) {
        let stood = std::mem::replace(&mut self.stands, !moved);
        if !moved || !stood {
            return;
        }
        if let Some(before) = self.begun.replace(now) {
            let interval = now.saturating_sub(before);
            if interval <= LONGEST {
                if self.intervals.len() == KEPT {
                    self.intervals.pop_front();
                }
                self.intervals.push_back(interval);
            }
        }
    }

    /// Returns the usual time from the beginning of one burst to that of the next: the median.
    pub(crate) fn usual(&self) -> Option<Duration> {
        let mut sorted: Vec<Duration> = self.intervals.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().filter(|_| sorted.len() >= LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn bursts_are_counted_from_beginning_to_beginning_and_one_pause_changes_nothing() {
        let mut rhythm = Rhythm::default();
        let mut now = 0;
        for iteration in 0..20 {
            // Three seconds of collectives, five of computing; once a checkpoint.
            let computing = if iteration == 9 { 90 } else { 5 };
            for second in 0..3 + computing {
                rhythm.note(second < 3, at(now));
                now += 1;
            }
        }
        assert_eq!(rhythm.usual(), Some(at(8)));
    }

    #[test]
    fn what_moves_at_every_reading_has_no_rhythm_nor_has_what_moved_twice() {
        let mut rhythm = Rhythm::default();
        (0..100).for_each(|second| rhythm.note(true, at(second)));
        assert_eq!(rhythm.usual(), None);
        for second in 100..120 {
            rhythm.note(second % 10 == 0, at(second));
        }
        assert_eq!(rhythm.usual(), None);
    }
}
