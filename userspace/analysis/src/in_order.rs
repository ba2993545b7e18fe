//! Collectives that do not come in their order. An op whose messages are measured comes when they have ended,
//! and one that is left out of that at once: where only some are measured, they come after later ones.

/// Collectives of a communicator by which one can be late: about as many as a host launches ahead of its GPU.
pub(crate) const MOST_LATE: usize = 1024;

const WORDS: usize = MOST_LATE / 64;

/// The latest collectives of a rank, which come once for each of their channels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Firsts {
    latest: Option<u64>,
    /// A bit for each of the numbers up to the latest.
    seen: [u64; WORDS],
}

impl Firsts {
    /// Tells whether a collective was not seen before, by its number. Those that are too late count as seen.
    pub(crate) fn is_first(&mut self, number: u64) -> bool {
        let latest = self.latest.unwrap_or(number);
        if number > latest {
            for passed in latest + 1..=number.min(latest.saturating_add(MOST_LATE as u64)) {
                self.set(passed, false);
            }
        } else if latest - number >= MOST_LATE as u64 {
            return false;
        }
        self.latest = Some(latest.max(number));
        !self.set(number, true)
    }

    /// Sets the bit of a number. Returns what it was.
    fn set(&mut self, number: u64, is_seen: bool) -> bool {
        let bit = 1 << (number % 64);
        // The remainder is small.
        let at = usize::try_from(number / 64 % WORDS as u64).unwrap_or(0);
        let Some(word) = self.seen.get_mut(at) else { return false };
        let before = *word & bit != 0;
        *word = if is_seen { *word | bit } else { *word & !bit };
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_collective_is_first_once_in_whatever_order_it_comes() {
        let mut firsts = Firsts::default();
        let mut first = |number| firsts.is_first(number);
        assert!(first(4111) && first(4110) && first(4112));
        assert!(!first(4110) && !first(4111) && !first(4112));
        // It was passed over, and comes later.
        assert!(first(4114) && first(4113) && !first(4113));
        assert!(first(4114 + 1023) && first(4115) && !first(4114) && !first(4113));
        assert!(first(1 << 40) && !first(4116), "what is too late is left out");
        assert!(first((1 << 40) - 1) && first((1 << 40) - 1023));
        assert!(first(u64::MAX) && !first(u64::MAX) && first(u64::MAX - 5));
    }
}
