//! Times of a Perfetto trace: each packet says on which clock, and snapshots say how clocks compare.

use std::collections::HashMap;

use super::messages::ClockSnapshot;

/// `BuiltinClock.BUILTIN_CLOCK_BOOTTIME`: times are on this clock, if a packet or a snapshot says nothing else.
const BOOTTIME: u32 = 6;

/// From this number on, a clock belongs to its sequence.
const FIRST_OF_SEQUENCE: u32 = 64;

/// Most clocks that are known; a sequence has one or two.
const MAX_CLOCKS: usize = 1 << 16;

/// Times beyond this are nobody's.
const MAX: i64 = i64::MAX / 2;

#[derive(Clone, Copy, Debug)]
struct Clock {
    /// What is to be added to a time of this clock, in ns, to have one of the trace's.
    offset: i64,
    /// ns of its unit.
    unit: i64,
    /// Each time is the distance from the one before, which is here, in ns.
    incremental: Option<i64>,
}

/// The clocks of a trace, by sequence (0 for those of all) and number.
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
    /// All clocks of a snapshot were read at the same time.
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
        // The trace's clock, or one that is known by it already.
        let trace_at = units.iter().find(|(clock, ..)| clock.id == self.trace).map(|(_, at, _)| *at);
        let by_others = || {
            units.iter().find_map(|(clock, at, _)| {
                let known = self.known.get(&key(sequence, clock.id))?;
                (clock.id < FIRST_OF_SEQUENCE).then(|| at.saturating_add(known.offset))
            })
        };
        // None of them is known: those of the snapshot are taken as they are.
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

    /// The trace's time, in ns, of a packet of this sequence, whose clock and time these are. A clock that no snapshot has is
    /// taken for the trace's; one of a sequence is then unknown.
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
    use crate::stacks::trace::perfetto::messages;

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
        // Steps of a µs, from the snapshot on.
        assert_eq!(clocks.time(1, Some(64), 2), Some(1_002_000));
        assert_eq!(clocks.time(1, Some(64), 3), Some(1_005_000));
        assert_eq!(clocks.time(2, Some(64), 3), None);
        // Compared by a clock that is known, without the trace's own.
        clocks.snapshot(2, &snapshot(&[(3, 500_000, false, 1), (64, 0, true, 1)]));
        assert_eq!(clocks.time(2, Some(64), 9), Some(1_100_009));
        assert_eq!(clocks.time(1, None, u64::MAX), None);
        assert_eq!(clocks.time(2, Some(64), 1 << 62), None);
    }
}
