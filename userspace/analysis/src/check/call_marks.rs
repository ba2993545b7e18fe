//! Marks: calls of a rank at which the numbering of its collectives can resume. Where only calls were
//! recorded, a second reading would otherwise have to begin with the first of them.

use crate::sources::CallNumbers;

/// Most marks of one rank; beyond that, every other one is forgotten.
const MAX_MARKS: usize = 64;

/// Time of a call, by its host's clock, and its thread: a thread makes one call at a time.
pub(super) type CallAt = (u64, u32);

/// A call, and the state of numbering before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) at: CallAt,
    pub(super) numbers: CallNumbers,
}

/// Marks of a rank: the more calls it has, the further apart they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    kept: Vec<Mark>,
    /// Calls between two marks, as a power of two.
    doublings: u32,
    calls: u64,
}

impl Marks {
    /// Notes a call; `numbers` is the state before it is numbered.
    pub(super) fn note(&mut self, at: CallAt, numbers: CallNumbers) {
        if self.calls.is_multiple_of(1 << self.doublings) {
            if self.kept.len() >= MAX_MARKS {
                let mut place = 0u64;
                self.kept.retain(|_| {
                    place += 1;
                    !place.is_multiple_of(2)
                });
                self.doublings += 1;
            }
            if self.calls.is_multiple_of(1 << self.doublings) {
                self.kept.push(Mark { at, numbers });
            }
        }
        self.calls += 1;
    }

    /// Returns the last mark before both this collective and the previous one.
    pub(super) fn before(&self, number: u64) -> Option<Mark> {
        self.kept.iter().rev().find(|mark| mark.numbers.next() < number).or(self.kept.first()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From each mark on, calls have the numbers that they have from the beginning.
    #[test]
    fn calls_are_numbered_from_a_mark_as_from_the_beginning() {
        for calls in [1u64, 2, 63, 64, 65, 1000, 5000] {
            let (mut marks, mut numbers, mut all) = (Marks::default(), CallNumbers::default(), Vec::new());
            for call in 0..calls {
                // Every third is no collective; NCCL's own count lags.
                let (at, is_collective, launched) = ((100 + 7 * call, 5), call % 3 != 2, Some(40 + call / 2));
                marks.note(at, numbers);
                all.push((at, is_collective, launched, numbers.number(is_collective, launched, false)));
            }
            assert!(marks.kept.len() <= MAX_MARKS, "{calls}");
            for wanted in all.iter().map(|(.., number)| *number) {
                let mark = marks.before(wanted).unwrap();
                let mut numbers = mark.numbers;
                let again: Vec<(u64, u64)> = all
                    .iter()
                    .skip_while(|(at, ..)| mark.at != *at)
                    .map(|(_, is_collective, launched, number)| {
                        (numbers.number(*is_collective, *launched, false), *number)
                    })
                    .collect();
                assert!(again.iter().all(|(again, number)| again == number), "{calls} {wanted}");
                // The collective before it is there, too.
                let begins = again.first().unwrap().1;
                assert!(wanted == 40 || begins < wanted, "{calls} {wanted} {begins}");
            }
            if calls == 5000 {
                let late = marks.before(all.last().unwrap().3).unwrap();
                assert!(late.at.0 > 100 + 7 * 4700, "{late:?}");
            }
        }
    }
}
