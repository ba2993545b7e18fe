//! Sets of mostly consecutive numbers.

use std::collections::BTreeMap;

/// A set of numbers, kept as ranges: numbers without a gap take the memory of one range.
#[derive(Debug, Default)]
pub struct Ranges {
    /// Last number of each range, by its first one. No two ranges touch.
    lasts: BTreeMap<u64, u64>,
    /// Number of numbers in the set.
    pub count: u64,
}

impl Ranges {
    /// Memory of one range, about.
    pub const BYTES: usize = 32;

    /// Adds a number. Returns `false` if it was there.
    pub fn insert(&mut self, number: u64) -> bool {
        let before = self.lasts.range_mut(..=number).next_back();
        if let Some((first, last)) = before {
            if number <= *last {
                return false;
            }
            let first = *first;
            if *last == number - 1 {
                *last = number;
                self.join_next(first, number);
                self.count += 1;
                return true;
            }
        }
        self.lasts.insert(number, number);
        self.join_next(number, number);
        self.count += 1;
        true
    }

    /// Adds a number as [`insert`](Self::insert), in bounded memory: once there are `most` ranges, the last
    /// one grows over the gap before a larger number, and what is in gaps is not counted any more.
    pub fn insert_within(&mut self, number: u64, most: usize) -> bool {
        if self.lasts.len() < most {
            return self.insert(number);
        }
        let Some(mut last) = self.lasts.last_entry().filter(|last| *last.get() < number) else {
            return false;
        };
        *last.get_mut() = number;
        self.count += 1;
        true
    }

    /// Joins the next range to this one, if it begins right behind it.
    fn join_next(&mut self, first: u64, last: u64) {
        if let Some(next) = last.checked_add(1)
            && let Some(end) = self.lasts.remove(&next)
        {
            self.lasts.insert(first, end);
        }
    }

    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        self.lasts.range(..=number).next_back().is_some_and(|(_, last)| number <= *last)
    }

    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.lasts.keys().next().copied()
    }

    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.lasts.values().next_back().copied()
    }

    /// Returns how many ranges they make.
    #[must_use]
    pub fn ranges(&self) -> usize {
        self.lasts.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Ranges;

    #[test]
    fn in_any_order_it_has_what_was_added() {
        // A full cycle of a generator modulo 101, twice.
        let numbers = (0..200u64).map(|n| (n * 37 + 11) % 101).filter(|number| number % 10 != 3);
        let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
        for number in numbers {
            assert_eq!(ranges.insert(number), set.insert(number), "{number}");
            assert_eq!(ranges.count, set.len() as u64);
            for number in 0..103 {
                assert_eq!(ranges.contains(number), set.contains(&number), "{number}");
            }
        }
        assert_eq!((ranges.first(), ranges.last()), (set.first().copied(), set.last().copied()));
        assert_eq!(ranges.ranges(), 11);
        assert!(ranges.insert(u64::MAX) && ranges.contains(u64::MAX));
    }

    #[test]
    fn with_a_bound_increasing_numbers_are_still_counted_once() {
        let mut ranges = Ranges::default();
        for number in (0..100).map(|n| n * 3) {
            assert!(ranges.insert_within(number, 8));
            assert!(!ranges.insert_within(number, 8), "{number} is there");
        }
        assert_eq!((ranges.count, ranges.ranges(), ranges.last()), (100, 8, Some(297)));
    }
}
