//! Clocks of a Perfetto trace: each packet names its clock, and snapshots compare clocks.

use std::collections::HashMap;

use super::messages::ClockSnapshot;

/// `BuiltinClock.BUILTIN_CLOCK_BOOTTIME`, the clock of times for which neither a packet nor a snapshot names
/// another.
const BOOTTIME: u32 = 6;

/// Number from which on a clock belongs to its sequence.
const FIRST_OF_SEQUENCE: u32 = 64;

/// Most clocks that are kept; a sequence has one or two.
const MAX_CLOCKS: usize = 1 << 16;

/// Largest time that is believed.
const MAX: i64 = i64::MAX / 2;

#[derive(Clone, Copy, Debug)]
struct Clock {
    /// Nanoseconds to add to a time of this clock, for a time of the trace's clock.
    offset: i64,
    /// Unit of its times, in ns.
    unit: i64,
    /// The last time, in ns, if each time is the distance from the one before.
    incremental: Option<i64>,
}

/// The clocks of a trace, by sequence (0 for those of all sequences) and number.
#[derive(Debug)]
pub(super) struct Clocks {
    known: HashMap<(u32, u32), Clock, foldhash::quality::RandomState>,
    /// The clock of the trace's times.
    trace: u32,
}

impl Default for Clocks {
    fn default() -> Self {
        Self { known: HashMap::default(), trace: BOOTTIME }
    }
}

fn key(sequence: u32, clock: u32) -> (u32, u32) {
    (if clock >= FIRST_OF_SEQUENCE { sequence } else { 0 }, clock)
}

impl Clocks {
    /// Takes a snapshot, in which all clocks were read at the same time.
    pub(super) fn snapshot(&mut self, sequence: u32, snapshot: &ClockSnapshot) {
        if let Some(primary) = snapshot.primary_trace_clock {
            self.trace = primary;
        }
        let units: Vec<_> = snapshot
            .clocks
            .iter()
            .filter_map(|clock| {
                let unit = i64::try_from(clock.unit_multiplier_ns.unwrap_or(1).max(1)).ok()?;
                let at = i64::try_from(clock.timestamp).ok()?.checked_mul(unit)?;
                (at <= MAX).then_some((clock, at, unit))
            })
            .collect();
        // The time by the trace's clock, or by a clock whose offset is known.
        let trace_at = units.iter().find(|(clock, ..)| clock.id == self.trace).map(|(_, at, _)| *at);
        let by_others = || {
            units.iter().find_map(|(clock, at, _)| {
                let known = self.known.get(&key(sequence, clock.id))?;
                (clock.id < FIRST_OF_SEQUENCE).then(|| at.saturating_add(known.offset))
            })
        };
        // If none of the clocks is known, their times are taken as they are.
        let trace_at = trace_at.or_else(by_others);
        for (clock, at, unit) in units {
            let offset = trace_at.map_or(0, |trace_at| trace_at.saturating_sub(at));
            let clock_key = key(sequence, clock.id);
            if self.known.len() < MAX_CLOCKS || self.known.contains_key(&clock_key) {
                let incremental = clock.is_incremental.then_some(at);
                self.known.insert(clock_key, Clock { offset, unit, incremental });
            }
        }
    }

    /// Returns the trace's time, in ns, of a packet of this sequence with this clock and time. A clock that
    /// no snapshot has is taken for the trace's; a clock of a sequence is then unknown.
    pub(super) fn time(&mut self, sequence: u32, clock: Option<u32>, timestamp: u64) -> Option<i64> {
        let id = clock.unwrap_or(self.trace);
        let timestamp = i64::try_from(timestamp).ok()?;
        let time = match self.known.get_mut(&key(sequence, id)) {
            None if id >= FIRST_OF_SEQUENCE => return None,
            None => timestamp,
            Some(clock) => {
                let mut at = timestamp.checked_mul(clock.unit)?;
                if let Some(last) = &mut clock.incremental {
                    *last = last.checked_add(at).filter(|at| *at <= MAX)?;
                    at = *last;
                }
                at.checked_add(clock.offset)?
            }
        };
        (time.abs() <= MAX).then_some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::perfetto::messages;

    fn snapshot(clocks: &[(u32, u64, bool, u64)]) -> ClockSnapshot {
        let clocks = clocks.iter().map(|(clock_id, timestamp, is_incremental, unit)| messages::Clock {
            id: *clock_id,
            timestamp: *timestamp,
            is_incremental: *is_incremental,
            unit_multiplier_ns: Some(*unit),
        });
        ClockSnapshot { clocks: clocks.collect(), primary_trace_clock: None }
    }

    #[test]
    fn clocks_are_compared_by_their_snapshots() {
        let mut clocks = Clocks::default();
        assert_eq!(clocks.time(1, None, 5), Some(5));
        assert_eq!(clocks.time(1, Some(3), 5), Some(5));
        assert_eq!(clocks.time(1, Some(64), 5), None);
        clocks.snapshot(
            1,
            &snapshot(&[(6, 1_000_000, false, 1), (3, 400_000, false, 1), (64, 100, true, 1000)]),
        );
        assert_eq!(clocks.time(2, Some(3), 400_007), Some(1_000_007));
        // Steps of a µs, counted from the snapshot.
        assert_eq!(clocks.time(1, Some(64), 2), Some(1_002_000));
        assert_eq!(clocks.time(1, Some(64), 3), Some(1_005_000));
        assert_eq!(clocks.time(2, Some(64), 3), None);
        // These clocks are compared by one that is known, without the trace's own.
        clocks.snapshot(2, &snapshot(&[(3, 500_000, false, 1), (64, 0, true, 1)]));
        assert_eq!(clocks.time(2, Some(64), 9), Some(1_100_009));
        assert_eq!(clocks.time(1, None, u64::MAX), None);
        assert_eq!(clocks.time(2, Some(64), 1 << 62), None);
    }
}
