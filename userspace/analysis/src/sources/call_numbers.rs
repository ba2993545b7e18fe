//! Numbers of collectives where only calls of the API were recorded.
//!
//! NCCL counts the collectives that it launches, the same on every rank, and a call says how many there were
//! before it (`launched`). That count lags while calls of a group wait, and replays of CUDA graphs count in
//! it at moments that differ between ranks. So the first call of a rank takes its number from NCCL, and later
//! ones are counted. Where records were lost, NCCL's count is taken again as soon as it is ahead.

/// The numbers of one rank of a communicator.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallNumbers {
    next: u64,
    /// Set once a call has come.
    has_begun: bool,
    /// Number of collectives that were launched before the first call.
    first: u64,
    /// Set if NCCL has launched more than was called: replays of graphs, another communicator with the same
    /// resources, or calls whose records were lost.
    is_ahead: bool,
}

/// Bound of believed counts of launches, larger than any.
const MAX_NUMBER: u64 = 1 << 62;

impl CallNumbers {
    /// Returns the number of a call's collective or, for another call, that of the next collective.
    /// `was_lost`: calls can be missing before this one.
    pub(crate) fn number(&mut self, is_collective: bool, launched: Option<u64>, was_lost: bool) -> u64 {
        let launched = launched.unwrap_or(0).min(MAX_NUMBER);
        if !self.has_begun {
            (self.has_begun, self.first, self.next) = (true, launched, launched);
        }
        if launched > self.next {
            self.is_ahead = true;
            if was_lost {
                self.next = launched;
            }
        }
        let number = self.next;
        self.next += u64::from(is_collective);
        number
    }

    /// Returns the number of the next collective; 0 before the first call.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Tells whether the numbers are those of the other ranks: the rank was seen from its first collective
    /// on, or only its calls were launched.
    pub(crate) fn are_certain(&self) -> bool {
        self.first == 0 || !self.is_ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(calls: &[(bool, u64)], was_lost: bool) -> (Vec<u64>, bool) {
        let mut numbers = CallNumbers::default();
        let given = calls
            .iter()
            .map(|(is_collective, launched)| numbers.number(*is_collective, Some(*launched), was_lost));
        (given.collect(), numbers.are_certain())
    }

    #[test]
    fn calls_are_counted_from_nccls_number_on() {
        // Groups of two calls, and a send between them.
        let grouped = [(true, 41), (true, 41), (false, 43), (true, 43), (true, 43)];
        assert_eq!(numbers(&grouped, false), (vec![41, 42, 43, 43, 44], true));
    }

    #[test]
    fn replays_of_graphs_do_not_shift_calls() {
        // Seven collectives were replayed; it is chance whether the second or the third call saw them.
        assert_eq!(numbers(&[(true, 0), (true, 1), (true, 9)], false), (vec![0, 1, 2], true));
        assert_eq!(numbers(&[(true, 0), (true, 8), (true, 9)], false), (vec![0, 1, 2], true));
        // Where the beginning was not seen, the ranks' numbers may differ.
        assert!(!numbers(&[(true, 5), (true, 13)], false).1);
    }

    #[test]
    fn after_a_loss_nccls_count_is_taken_again() {
        assert_eq!(numbers(&[(true, 3), (true, 4), (true, 9), (true, 9)], true).0, [3, 4, 9, 10]);
    }

    #[test]
    fn nonsense_does_not_overflow() {
        let mut numbers = CallNumbers::default();
        assert_eq!(numbers.number(true, Some(u64::MAX), true), MAX_NUMBER);
        assert_eq!(numbers.number(true, Some(u64::MAX), true), MAX_NUMBER + 1);
    }
}
